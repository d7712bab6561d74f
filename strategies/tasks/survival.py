"""Discrete-time survival: the hazard of each interval, and the concordance of risks.

Gensheimer and Narasimhan 2019 (arXiv 1805.00917), Eq. 3: a record that has its event in interval k was seen
through the intervals before k, and so was one that is lost to view in k (censored).
Brier score: Graf et al. 1999, here over the intervals in which it is known whether the record lives, without
weights for censoring. Concordance: Harrell et al. 1982.
A round leaks over the silos' hold-outs the Brier score, the loss and the total size; `concordance` besides
how many records have their event, or are lost, in each interval, by bins of the risk.

J = intervals. B = bins of the risk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from strategies.base import Array
from strategies.figure import Figure
from strategies.intervals import TWO_SIDED
from strategies.tasks.base import LOSS_SUM, NO_NOISE, TESTED, DeclaredTask, Metric, Ratio, Sum, Target, share
from strategies.tasks.confusion import check_classes

BINS = 200
BRIER = Sum(name="brier_sum")  # of a record: the mean over its known intervals, 0 to 1


class Concordance(Metric):
    """times: counts of records by whether they have their event, by interval, and by bin of the risk."""

    def __init__(self, intervals: int) -> None:
        check_classes("concordance", intervals)
        self.sums = (
            Sum(
                name="times",
                shape=(2, intervals, BINS),
                is_count=True,
                is_by_class=True,
                at_most="tested",
            ),
        )

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """concordance: of the pairs of an event and a record that outlives it (one lost in the same interval
        does), the share in which the event has the higher risk, half of those in one bin; the bound is that
        half."""
        lost_JB, event_JB = np.maximum(np.asarray(sums["times"], np.float64), 0.0)
        # those of later intervals, and this one's lost ones
        later_JB = np.cumsum((lost_JB + event_JB)[::-1], axis=0)[::-1] - event_JB
        below_JB = np.cumsum(later_JB, axis=1) - later_JB
        right, tied = float((event_JB * below_JB).sum()), float((event_JB * later_JB).sum())
        pairs = float((event_JB.sum(axis=1) * later_JB.sum(axis=1)).sum())
        found = {
            "concordance": share(right + tied / 2, pairs),
            "concordance_bound": share(tied / 2, pairs),
        }
        return {name: Figure(value=value, noise=self._anywhere(noise)) for name, value in found.items()}

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """events and lost by interval. Shapes: (J,) each."""
        lost_J, event_J = np.asarray(sums["times"], np.float64).sum(axis=2)
        found: dict[str, Array] = {"events": event_J, "lost": lost_J}
        if "times" not in noise:
            return found
        away = TWO_SIDED * noise["times"] * math.sqrt(BINS)
        for name, counted_J in (("events", event_J), ("lost", lost_J)):
            found[f"{name}_noise_low"] = np.maximum(counted_J - away, 0.0)
            found[f"{name}_noise_high"] = np.maximum(counted_J + away, 0.0)
        return found


class Survival(DeclaredTask):
    """Targets: (interval, 1 for an event or 0 for a loss), int64; `classes` says how many intervals there
    are. Outputs: for each interval a logit of its hazard, the chance of the event in it after living through
    those before."""

    word = "survival"
    main = "brier"
    least_classes: ClassVar[int | None] = 2

    @property
    def target(self) -> Target:
        last = self.sizes.classes - 1
        return Target(shape=(2,), is_whole=True, low=0, high=last, highs=(last, 1))

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (BRIER, TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        return {"concordance": lambda: Concordance(self.sizes.classes)}

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """brier: mean over records."""
        return {"brier": Ratio(above="brier_sum")}

    def score(self, sums: Mapping[str, Array]) -> float:
        """1 - Brier score."""
        brier = self.ratios["brier"].value(sums)
        return 0.0 if math.isnan(brier) else 1.0 - brier
