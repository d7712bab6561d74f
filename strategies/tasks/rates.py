"""Shares by class, each with its intervals, and their means over classes.

C = classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from strategies.base import FloatArray
from strategies.figure import Figure
from strategies.intervals import ratio_interval
from strategies.tasks.base import mean_of, shares

Ends = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Shapes: (C,) each; NaN where there is nothing to have a share of. noise, sampling: as in a Figure."""

    value_C: FloatArray
    noise: Ends | None
    sampling: Ends | None

    def shown(self, grown: Callable[[FloatArray], FloatArray]) -> Rate:
        """Another figure, which grows with this one."""
        noise, sampling = (
            None if ends is None else (grown(ends[0]), grown(ends[1])) for ends in (self.noise, self.sampling)
        )
        return Rate(value_C=grown(self.value_C), noise=noise, sampling=sampling)

    def mean(self, chosen_C: NDArray[np.bool_]) -> Figure:
        """Over these classes. The mean of the ends is an end of the mean whatever the classes have to do with
        each other: where they are independent the interval is wider than it need be."""
        noise, sampling = (
            None if ends is None else (mean_of(ends[0][chosen_C]), mean_of(ends[1][chosen_C]))
            for ends in (self.noise, self.sampling)
        )
        return Figure(value=mean_of(self.value_C[chosen_C]), noise=noise, sampling=sampling)

    def tables(self, name: str) -> dict[str, FloatArray]:
        """As a record carries it."""
        found = {name: self.value_C}
        for kind, ends in (("noise", self.noise), ("sampling", self.sampling)):
            if ends is not None:
                found |= {f"{name}_{kind}_low": ends[0], f"{name}_{kind}_high": ends[1]}
        return found


def rate_of(right_C: FloatArray, wrong_C: FloatArray, *, variances: tuple[float, float]) -> Rate:
    """right / (right + wrong), two counts of records. variances: of the noise in each, independent."""
    whole_C = right_C + wrong_C
    interval = partial(
        ratio_interval,
        right_C,
        whole_C,
        deviations=(math.sqrt(variances[0]), math.sqrt(sum(variances))),
        covariance=variances[0],
    )
    value_C, is_noised = shares(right_C, whole_C), sum(variances) > 0
    low_C, high_C = interval(records=whole_C)
    if not is_noised:  # of a class without a record nothing is known
        low_C, high_C = (np.where(np.isnan(value_C), np.nan, end_C) for end_C in (low_C, high_C))
    return Rate(value_C=value_C, noise=interval() if is_noised else None, sampling=(low_C, high_C))
