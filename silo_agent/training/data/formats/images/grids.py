"""Where the values of an image lie, and the same values in the job's size.

A volume is turned to right, anterior, superior (x, y, z), whatever way it was stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError

Values: TypeAlias = NDArray[Any]
Affine: TypeAlias = NDArray[np.float64]

NEAR_MM = 1e-2  # files write positions with so many digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """size: before it becomes the job's. affine: from places to millimeters; None where the file has none."""

    size: tuple[int, ...]
    affine: Affine | None = None

    def check_same(self, other: Grid, *, source: Path) -> None:
        """Raises ConfigError where other, that of the mask at source, lies elsewhere."""
        if other.size != self.size:
            raise ConfigError(f"{source}: a mask of size {other.size}, expected its image's {self.size}")
        if self.affine is None or other.affine is None:
            return
        if not np.allclose(self.affine, other.affine, rtol=0, atol=NEAR_MM):
            raise ConfigError(
                f"{source}: a mask in another grid than its image (position, spacing or direction): "
                "resample it onto the image's"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What was read of an image. Shapes: values (channels, *size of the job)."""

    values: Values
    grid: Grid


def turned(values: Values, affine: Affine, *, source: Path) -> tuple[Values, Affine]:
    """Shapes: values (channels, x, y, z). Raises ConfigError where the affine has no directions."""
    from nibabel import orientations

    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise ConfigError(f"{source}: its affine does not say which way its axes run")
    typed: Any = orientations  # whose functions have no types
    way = typed.io_orientation(affine)
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
