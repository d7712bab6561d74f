"""Differences of two methods on the same seeds, and what may be said of them.

Silos of a seed differ far more than methods do, so means are compared by pairs alone. Conclusions follow
from an interval: `better` or `worse` where it leaves out zero, `equivalent` where it lies within the margin,
`undecided` otherwise. Source: Schuirmann 1987 (two one-sided tests); Holm 1979.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import optimize, stats  # type: ignore[import-untyped]

MARGIN = 2.0  # points of accuracy: what is smaller does not matter here
ALPHA = 0.05  # chance that a family says anything wrong
POWER = 0.8


class Verdict(StrEnum):
    """What an interval of a difference shows."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """In points of accuracy. shows_equivalence: see `Difference`."""

    low: float
    high: float
    shows_equivalence: bool = True

    @property
    def verdict(self) -> Verdict:
        """An interval within the margin is equivalent, also where it leaves out zero."""
        if self.shows_equivalence and self.low > -MARGIN and self.high < MARGIN:
            return Verdict.EQUIVALENT
        if self.low > 0.0:
            return Verdict.BETTER
        return Verdict.WORSE if self.high < 0.0 else Verdict.UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """mean, error: in points of accuracy; error is the standard error of the mean over the seeds.

    shows_equivalence: whether enough seeds are more than two sides that both guess.
    """

    mean: float
    error: float
    won: int
    lost: int
    seeds: int
    shows_equivalence: bool = True

    def interval(self, level: float) -> Interval:
        """That misses the true difference with the chance `level`, by Student's t."""
        reach = t_point(level, self.seeds) * self.error
        low, high = self.mean - reach, self.mean + reach
        return Interval(low=low, high=high, shows_equivalence=self.shows_equivalence)

    @property
    def chances(self) -> tuple[float, float]:
        """The levels below which the interval leaves out zero, and stops to lie within the margin."""
        equivalent = self._level_at(MARGIN - abs(self.mean)) if self.shows_equivalence else 1.0
        return self._level_at(abs(self.mean)), equivalent

    def detectable(self, level: float) -> float:
        """The least true difference that such an interval leaves out zero for, with 80 % power, if the
        standard error is the one that was found."""
        point, freedom = t_point(level, self.seeds), self.seeds - 1

        def missing_power(errors: float) -> float:
            return float(stats.nct.sf(point, freedom, errors)) - POWER

        # a difference of so many errors as the interval reaches is found about every other time
        return float(optimize.brentq(missing_power, point, 4 * point + 4)) * self.error

    def _level_at(self, distance: float) -> float:
        """Of the interval that reaches so far from the mean; 1 where there is none."""
        if distance <= 0.0:
            return 1.0
        return 0.0 if self.error == 0.0 else float(2 * stats.t.sf(distance / self.error, self.seeds - 1))


def t_point(level: float, values: int) -> float:
    """Of Student's t for a mean of so many values: standard errors on each side of it."""
    return float(stats.t.isf(level / 2, values - 1))


def paired(method: Sequence[float], reference: Sequence[float], *, tests: int | None = None) -> Difference:
    """Both as shares by seed, two seeds or more; a seed is won where the method has the higher accuracy.

    tests: samples that an accuracy is of. The error is at least that of one of them a seed: a few seeds may
    agree by chance, since an accuracy takes no other values.
    """
    differences = [100.0 * (one - other) for one, other in zip(method, reference, strict=True)]
    least = 0.0 if tests is None else 100.0 / tests
    return Difference(
        mean=statistics.mean(differences),
        error=max(statistics.stdev(differences), least) / math.sqrt(len(differences)),
        won=sum(difference > 0 for difference in differences),
        lost=sum(difference < 0 for difference in differences),
        seeds=len(differences),
    )


def level_of(differences: Iterable[Difference]) -> float:
    """The level of all intervals of a family at which they show what Holm's procedure rejects, and no more.

    Two tests a difference: that it is zero, and that it is not within the margin. After R rejections of
    T tests Holm compares with ALPHA / (T - R), and stops: every rejected test is below that level too.
    """
    chances = sorted(chance for one in differences for chance in one.chances)
    for rejected, chance in enumerate(chances):
        level = ALPHA / (len(chances) - rejected)
        if chance > level:
            return level
    return ALPHA
