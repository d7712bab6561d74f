"""Silos that train nothing: what a round costs by itself. Named by `module:function` in their settings.

P = trained parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from chorale_models.data import Data
from silo_agent.training.data.base import Samples
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.objective import Objective, Work
from strategies.base import MODEL, Array

SAMPLES = 100
FIRST_VALUES = 1 << 20


def data(settings: DataSettings) -> Data:
    return Data(train=_zeros(SAMPLES), holdout=_zeros(SAMPLES))


def objective() -> Objective:
    return Untrained()


def objective_without_memory() -> Objective:
    return Untrained(make=_mostly_zeros)


class Untrained:
    """A delta that costs one pass over its bytes to make, as large and as dense as a trained one. make: an
    array of so many values, from the value of each."""

    def __init__(self, make: Callable[[int, np.float32], Array] = np.full) -> None:
        self._make = make

    def compute(self, work: Work) -> Mapping[str, Array]:
        values: dict[str, Array] = {
            "correct": np.array(SAMPLES),
            "tested": np.array(SAMPLES),
            "loss_sum": np.array(0.5),
        }
        if work.phase_kind == "train":
            size = sum(work.state[MODEL + name].size for name in work.context.trained)
            delta_P = self._make(size, np.float32(work.weight / 1024))
            values |= {"delta": delta_P, "weight": np.array(work.weight)}
        return values


def _mostly_zeros(size: int, value: np.float32) -> Array:
    """The system gives no memory for zeros that are only read: a few first values are others."""
    delta_P = np.zeros(size, np.float32)
    delta_P[:FIRST_VALUES] = value
    return delta_P


def _zeros(count: int) -> Samples:
    return Samples(features=np.zeros((count, 2), np.float32), labels=np.zeros(count, np.int64))
