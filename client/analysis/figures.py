"""Figures that follow from published ones alone: quartiles by parts, and differences between two groups.

T = published parts of a column in its table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.analysis.parts import Part
from strategies.figure import Figure, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation: as they were published, rounded, or with noise."""

    mean: Figure
    deviation: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedCount:
    """Of a cell, and its percent of the records of its head."""

    count: Figure
    percent: Figure

    @property
    def count_in_words(self) -> str:
        assert self.count.noise is not None
        low, high = map(round, self.count.noise)
        return f"{round(self.count.value)} ({low} to {high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quartile:
    """In the part from `start` to `end`. value: as if that were evenly filled, off by less than its width;
    None in an outermost one, which ends where values are no longer plausible. is_lowest: the first of them.
    noise: the edges between which it is, where counts carry noise.
    """

    start: float
    end: float
    value: float | None
    is_lowest: bool = False
    noise: Interval | None = None

    @property
    def width(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """By the counts of parts. has_missing: a part counts missing values, too."""

    low: Quartile
    median: Quartile
    high: Quartile
    has_missing: bool

    @property
    def all(self) -> tuple[Quartile, Quartile, Quartile]:
        return self.low, self.median, self.high


def quartiles(parts_T: Sequence[Part], counts_T: Sequence[float]) -> Quartiles | None:
    """None where fewer than two parts hold values. A part of missing values alone is left out."""
    held = [
        (part.low, part.high, count)
        for part, count in zip(parts_T, counts_T, strict=True)
        if part.low is not None and part.high is not None
    ]
    if len(held) < 2:
        return None
    low, median, high = (_quarter(held, number) for number in (1, 2, 3))
    return Quartiles(
        low=low,
        median=median,
        high=high,
        has_missing=any(part.has_missing and not part.is_missing for part in parts_T),
    )


def _quarter(held: Sequence[tuple[float, float, float]], number: int) -> Quartile:
    """Below which that many quarters of all lie. held: low, high and count of each part, rising."""
    place, below = number * sum(count for _, _, count in held) / 4, 0.0
    part = next(part for part, each in enumerate(held) if place <= (below := below + each[2]))
    start, end, count = held[part]
    if part in (0, len(held) - 1):
        return Quartile(start=start, end=end, value=None, is_lowest=part == 0)
    return Quartile(start=start, end=end, value=start + (end - start) * (place - below + count) / count)


def difference_of_means(first: Spread, second: Spread) -> float | None:
    """Standardized: in standard deviations, the root of the mean of both variances. None without any."""
    deviation = math.hypot(first.deviation.value, second.deviation.value) / math.sqrt(2)
    apart = abs(first.mean.value - second.mean.value)
    # an edge may be of any size
    return apart / deviation if 0 < deviation < math.inf and apart < math.inf else None


def difference_of_parts(first_T: Sequence[int], second_T: Sequence[int]) -> float | None:
    """Standardized, of two multinomials; of two parts that of proportions. None of a single part.

    Source: Yang and Dalton, "A unified approach to measuring the effect size between two groups using SAS",
    SAS Global Forum 2012, paper 335.
    """
    if len(first_T) < 2:
        return None
    shares = [np.array(counts[1:]) / sum(counts) for counts in (first_T, second_T)]
    covariances = [np.diag(share) - np.outer(share, share) for share in shares]
    apart = shares[0] - shares[1]
    try:
        square = float(apart @ np.linalg.solve((covariances[0] + covariances[1]) / 2, apart))
    except np.linalg.LinAlgError:
        return None
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else None
