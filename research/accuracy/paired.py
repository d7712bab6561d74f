"""Differences of two methods on the same seeds, and what may be said of them.

Silos of a seed differ far more than methods do, so means are compared by pairs alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# two-sided 95 % points of Student's t by degrees of freedom; beyond ten the normal one is close enough
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL_95 = 1.96


class Verdict(StrEnum):
    """By a paired t-test at 5 %."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """mean, error: of the differences, in points of accuracy; error is the standard error of the mean."""

    mean: float
    error: float
    won: int
    lost: int
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """Equal differences on every seed are a decision where they are not zero."""
        t = T_95[self.seeds - 2] if self.seeds - 2 < len(T_95) else NORMAL_95
        if abs(self.mean) <= t * self.error or self.mean == 0.0:
            return Verdict.UNDECIDED
        return Verdict.BETTER if self.mean > 0 else Verdict.WORSE


def paired(method: Sequence[float], reference: Sequence[float]) -> Paired:
    """Both as shares by seed, two seeds or more; a seed is won where the method has the higher accuracy."""
    differences = [100.0 * (one - other) for one, other in zip(method, reference, strict=True)]
    return Paired(
        mean=statistics.mean(differences),
        error=statistics.stdev(differences) / math.sqrt(len(differences)),
        won=sum(difference > 0 for difference in differences),
        lost=sum(difference < 0 for difference in differences),
        seeds=len(differences),
    )
