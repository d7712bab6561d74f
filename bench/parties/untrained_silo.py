"""Silos that train nothing: what a round costs by itself. Named by `module:function` in their settings.

P = trained parameters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

import numpy as np

from silo_agent.data.base import Samples, SiloData
from silo_agent.data.settings import DataSettings
from silo_agent.objective import Objective, Work
from strategies.base import MODEL, Array

SAMPLES = 100
VALUES_IN_HOLES = 1 << 20


def data(settings: DataSettings) -> SiloData:
    return SiloData(train=_zeros(SAMPLES), holdout=_zeros(SAMPLES), name=settings.name)


def objective() -> Objective:
    return Untrained()


def objective_on_disk() -> Objective:
    return Untrained(make=_holes)


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


def _holes(size: int, value: np.float32) -> Array:
    """Mapped from a file of holes, so that values take neither memory nor disk: zeros, the first aside."""
    with tempfile.TemporaryFile() as file:
        delta_P = np.memmap(file, np.float32, "w+", shape=(size,))
    delta_P[:VALUES_IN_HOLES] = value
    return delta_P


def _zeros(count: int) -> Samples:
    return Samples(features=np.zeros((count, 2), np.float32), labels=np.zeros(count, np.int64))
