"""What the numbers of DICOM and NIfTI mean in a job, the same at every silo."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from chorale.spec.fields import Finite, OneLine, Positive, SpecPart

AXES = ("LR", "PA", "IS")  # by the side that an axis runs to


class GridSpec(SpecPart):
    """Where a volume is looked at: its center and the directions of its axes stay, what lies beyond its own
    ends is `pad`, what lies beyond the job's size is cut off. Images are interpolated, masks are not."""

    spacing_mm: tuple[Positive, Positive, Positive] = Field(
        description="distance of two neighbors along each axis of the input, in millimeters"
    )
    orientation: str = Field(
        default="RAS",
        description="where each axis of the input runs to, such as RAS (right, anterior, superior) or LPS",
    )
    pad: Finite | None = Field(
        default=None,
        description="value outside of a volume, in the file's unit; null: the lowest of `range`",
    )

    @model_validator(mode="after")
    def _three_axes(self) -> GridSpec:
        found = [next((axis for axis in AXES if letter in axis), "") for letter in self.orientation]
        if sorted(found) != sorted(AXES):
            raise ValueError(
                "orientation: expected three letters, one each of L or R, P or A, I or S, got "
                f"{self.orientation!r}"
            )
        return self


class ScanSpec(SpecPart):
    """Of gray images: what a value is, and which become 0 and 1."""

    values: Literal["modality", "voi"] = Field(
        default="modality",
        description="modality: the values of the modality, Hounsfield units of a CT; voi: of projection "
        "images, as their file wants them shown (VOI LUT or window, then the presentation), from 0 to 1",
    )
    unit: OneLine | None = Field(
        default=None,
        description="of the values, by DICOM's own term such as HU, BQML or US (none): a file in another one "
        "is refused; null: HU, or none",
    )
    range: tuple[Finite, Finite] | None = Field(
        default=None,
        description="values that become 0 and 1, what lies beyond them too; null: as the files say them",
    )
    grid: GridSpec | None = Field(
        default=None,
        description="of volumes: spacing and orientation of the input, whose size is input_shape; null: each "
        "volume is stretched to that size, whatever its spacing",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ScanSpec:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"range: expected the value that becomes 0 first, got {list(self.range)}")
        if self.values == "voi" and (self.unit, self.range, self.grid) != (None, None, None):
            raise ValueError("unit, range and grid: not allowed with values voi, which run from 0 to 1")
        if self.grid is not None and self.grid.pad is None and self.range is None:
            raise ValueError("grid.pad: a value is required without range, such as -1024 for a CT")
        return self

    @property
    def pad(self) -> float | None:
        """Value where a file has none; None: the lowest of its picture."""
        if self.grid is not None and self.grid.pad is not None:
            return self.grid.pad
        return None if self.range is None else self.range[0]


def check_scans(scans: ScanSpec, *, input_type: str, input_shape: tuple[int, ...]) -> None:
    """Raises ValueError for a job whose samples are no such images."""
    if input_type != "float32" or len(input_shape) not in (3, 4):
        raise ValueError(
            f"scans: expected float32 of input_shape (channels, x, y) or (channels, x, y, z), got "
            f"{input_type} of {list(input_shape)}"
        )
    if scans.grid is not None and len(input_shape) != 4:
        raise ValueError(f"scans.grid: expected volumes, of (channels, x, y, z), got {list(input_shape)}")
