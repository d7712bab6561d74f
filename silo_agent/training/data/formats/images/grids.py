"""Where the values of an image lie, and the same values in the form that the job states.

A volume is turned to the job's orientation, else to right, anterior, superior (x, y, z), whatever way it was
stored.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.spec.samples.scan_specs import GridSpec, ScanSpec
from crypto.errors import ConfigError

Values: TypeAlias = NDArray[Any]
Affine: TypeAlias = NDArray[np.float64]

NEAR_MM = 1e-2  # files write positions with so many digits
UPRIGHT = "RAS"
BACKGROUND = 0  # of a mask, outside of its file


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """size: before it becomes the job's. affine: from places to millimeters; None where the file has none.
    steps: places of the file from one of the job's to the next, by axis; None where it was stretched. axes:
    where the file's own axes run to, before they were turned; None where nothing was turned."""

    size: tuple[int, ...]
    affine: Affine | None = None
    steps: tuple[float, ...] | None = None
    axes: str | None = None

    def outside(self, size: tuple[int, ...]) -> float:
        """The share of the file's volume that lies beyond a job's grid of that size."""
        if self.steps is None:
            return 0.0
        axes = zip(self.size, size, self.steps, strict=True)
        return 1.0 - math.prod(min(1.0, made * step / own) for own, made, step in axes)

    def check_same(self, other: Grid, *, source: Path) -> None:
        """Raises ConfigError where other, that of the mask at source, lies elsewhere."""
        if other.size != self.size:
            raise ConfigError(f"{source}: a mask of size {other.size}, expected its image's {self.size}")
        if self.affine is None or other.affine is None:
            return
        apart = other.affine - self.affine
        # a spacing that is nearly the same is far off at the other end
        sizes = (*self.size, 1, 1, 1)[:3]
        ends = np.array([(*each, 1) for each in itertools.product(*((0, size - 1) for size in sizes))])
        half_mm = np.linalg.norm(self.affine[:3, :3], axis=0).min() / 2
        if abs(apart).max() > NEAR_MM or np.linalg.norm(ends @ apart.T, axis=1).max() > half_mm:
            raise ConfigError(
                f"{source}: a mask in another grid than its image (position, spacing or direction): "
                "resample it onto the image's"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What was read of an image. Shapes: values (channels, *size of the job). is_lost: of a mask, whether all
    that it marks lies beyond the job's grid."""

    values: Values
    grid: Grid
    is_lost: bool = False


def in_form(
    values: Values,
    affine: Affine | None,
    size: tuple[int, ...],
    scans: ScanSpec,
    *,
    is_mask: bool,
    source: Path,
    is_placed: bool = True,
) -> Picture:
    """What a file holds, as the job's samples are: its axes, its grid or size, its range.

    Shapes: values (channels, ...). affine: of a volume; is_placed: whether it is in millimeters. Raises
    ConfigError for one that does not say how it lies, as far as that matters.
    """
    spec = scans.grid
    axes = None
    if affine is not None and len(size) == 3:
        axes = axes_of(affine)
        values, affine = turned(values, affine, UPRIGHT if spec is None else spec.orientation, source=source)
    grid = Grid(size=values.shape[1:], affine=affine if is_placed else None, axes=axes)
    if spec is None:
        made = resized(values, size, is_mask=is_mask)
    else:
        grid = replace(grid, steps=_steps(grid.affine, spec, source))
        assert grid.steps is not None
        assert scans.pad is not None  # ScanSpec refuses a grid without it
        outside = BACKGROUND if is_mask else scans.pad
        made = np.stack([_resampled(each, grid.steps, size, outside, is_mask=is_mask) for each in values])
    if scans.range is not None and not is_mask:
        low, high = scans.range
        made = (np.clip(made, low, high) - np.float32(low)) / np.float32(high - low)
    is_lost = is_mask and spec is not None and bool(values.any()) and not made.any()
    return Picture(values=made, grid=grid, is_lost=is_lost)


def back(mask: Values, grid: Grid) -> Values:
    """A mask in the job's form, in its file's size again, without mixing numbers. Shapes: (*size of the job)
    -> (*grid.size)."""
    if grid.steps is not None:
        steps = tuple(1.0 / step for step in grid.steps)
        return _resampled(mask, steps, grid.size, BACKGROUND, is_mask=True)
    nearest = [
        ((np.arange(size) + 0.5) * made / size).astype(np.int64)
        for size, made in zip(grid.size, mask.shape, strict=True)
    ]
    found: Values = mask[np.ix_(*nearest)]
    return found


def _steps(affine: Affine | None, spec: GridSpec, source: Path) -> tuple[float, ...]:
    """Raises ConfigError for a volume that does not say its spacing."""
    if affine is None:
        raise ConfigError(f"{source}: neither positions nor spacing, which the job's scans.grid needs")
    spaces = np.linalg.norm(affine[:3, :3], axis=0)
    return tuple(float(wanted / own) for wanted, own in zip(spec.spacing_mm, spaces, strict=True))


def _resampled(
    values: Values, steps: tuple[float, ...], size: tuple[int, ...], outside: float, *, is_mask: bool
) -> Values:
    """About the same center; what lies beyond the outer faces of the first and last place is `outside`.
    Shapes: (x, y, z) -> (*size)."""
    from scipy.ndimage import affine_transform  # type: ignore[import-untyped]

    starts = [
        (own - 1) / 2 - (made - 1) / 2 * step
        for own, made, step in zip(values.shape, size, steps, strict=True)
    ]
    order = 0 if is_mask else 1
    made: Values = affine_transform(values, steps, starts, tuple(size), order=order, mode="nearest")
    for axis, (own, step, start) in enumerate(zip(values.shape, steps, starts, strict=True)):
        places = start + step * np.arange(size[axis])
        is_outside = (places < -0.5) | (places > own - 0.5)
        made[(slice(None),) * axis + (is_outside,)] = outside
    return made


def as_stored(mask: Values, grid: Grid) -> tuple[Values, Affine]:
    """A mask of grid.size with its axes as its file has them, and its affine."""
    affine = np.eye(4) if grid.affine is None else grid.affine
    if grid.axes is None:
        return mask, affine
    made, affine = turned(mask[np.newaxis], affine, grid.axes, source=Path())
    return made[0], affine


def axes_of(affine: Affine) -> str | None:
    """None where the affine has no directions, which `turned` refuses."""
    from nibabel import orientations

    if not np.isfinite(affine).all():
        return None
    typed: Any = orientations  # whose functions have no types
    return "".join(each or "" for each in typed.aff2axcodes(affine))


def turned(values: Values, affine: Affine, axes: str, *, source: Path) -> tuple[Values, Affine]:
    """Shapes: values (channels, x, y, z). axes: where they run to. Raises ConfigError where the affine has no
    directions."""
    from nibabel import orientations

    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise ConfigError(f"{source}: its affine does not say which way its axes run")
    typed: Any = orientations  # whose functions have no types
    way = typed.ornt_transform(typed.io_orientation(affine), typed.axcodes2ornt(tuple(axes)))
    made = np.stack([typed.apply_orientation(each, way) for each in values])
    return made, affine @ typed.inv_ornt_aff(way, values.shape[1:])


def resized(values: Values, size: tuple[int, ...], *, is_mask: bool) -> Values:
    """In the job's size, masks without mixing their numbers. Shapes: (channels, ...) -> (channels, *size)."""
    from monai.transforms import Resize

    image = np.ascontiguousarray(values, dtype=np.float32)
    if is_mask:
        return np.asarray(Resize(size, mode="nearest")(image), np.float32)
    mode = "trilinear" if len(size) == 3 else "bilinear"
    return np.asarray(Resize(size, mode=mode, anti_aliasing=True)(image), np.float32)
