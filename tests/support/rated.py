"""Silos whose steps are as long as the learning rate: which arm of a search is best is known beforehand.

Each round moves the sum of the model's values by the rate, and a test's loss is how far that sum is from 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.one_hot import HOLDOUT, OneHot

RATE = "training.learning_rate"


class Rated(OneHot):
    """diverges: by silo, from which rate on its training and test come to no number."""

    def __init__(self, diverges: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.diverges = diverges or {}
        self.works: list[Work] = []

    def compute(self, work: Work) -> Mapping[str, Array]:
        self.works.append(work)
        return super().compute(work) | {"loss_sum": self._number(work, self._loss(work))}

    def _loss(self, work: Work) -> float:
        return HOLDOUT * abs(float(work.state["model/votes"].sum()) - 1.0)

    def _delta(self, work: Work, place: int) -> Array:
        delta_P = super()._delta(work, place)
        return self._number(work, delta_P * work.spec.learning_rate_at(work.round)).astype(np.float32)

    def _number(self, work: Work, value: Array | float) -> Array:
        is_none = work.spec.learning_rate_at(work.round) >= self.diverges.get(work.silo, np.inf)
        return np.full_like(np.asarray(value), np.nan) if is_none else np.asarray(value)
