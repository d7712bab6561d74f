"""How a power law fits a series: time = a * size ^ slope, so that linear growth has slope 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.rows import Row

MIN_POINTS = 3  # of the fit, which takes the upper half: below it fixed costs show
MAX_SLOPE = 1.1  # passes for linear: a fixed part makes a slope smaller, nothing linear makes it larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements over rising sizes; a suite plots all series that share `plot` in one picture."""

    name: str
    plot: str  # the picture's file name, such as "length"
    x_label: str
    y_label: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Of the straight line through the upper half of the points, on logarithmic axes."""
        return log_slope(self.sizes, self.values)

    def row(self) -> Row:
        """No more than linear growth."""
        return Row(name=f"{self.name}: slope", target=MAX_SLOPE, value=self.slope, unit="")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "slope": self.slope}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Series:
        known = {name: value for name, value in fields.items() if name != "slope"}
        return cls(**{**known, "sizes": tuple(known["sizes"]), "values": tuple(known["values"])})


def log_slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope of log(value) over log(size), from the upper half of the points."""
    used = max(MIN_POINTS, math.ceil(len(sizes) / 2))
    slope, _ = np.polyfit(np.log(sizes[-used:]), np.log(values[-used:]), 1)
    return float(slope)
