"""Silos without torch: silo i contributes the one-hot vector e_i, so a sum tells who is in it.

Named by `module:function` in the silos' own settings files, as an institution names its code.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chorale_models.data import Data
from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.objective import Objective, Work
from strategies.base import Array
from strategies.phases.step import GRADIENT

SAMPLES = 100
HOLDOUT = 20
GATE = "CHORALE_TEST_GATE"  # while this file exists, training waits, from the round on that it holds
KEPT = "method/kept"
RECORD = "CHORALE_TEST_RECORD"  # folder where inputs are written as they go into the ring
LOADING = "loading"  # in the same folder


def data(settings: DataSettings) -> Data:
    return Data(train=_zeros(SAMPLES), holdout=_zeros(HOLDOUT))


def silo_data(name: str) -> SiloData:
    """The same as an agent holds it."""
    return SiloData(train=_zeros(SAMPLES), holdout=_zeros(HOLDOUT), name=name)


def objective() -> Objective:
    return OneHot()


def counting_objective() -> Objective:
    return Counting()


def poisoned_objective() -> Objective:
    return OneHot(spoil=np.nan)


def unloadable_objective() -> Objective:
    """One that is never loaded, as torch from a disk that hangs; that it is begun is written down."""
    (Path(os.environ[RECORD]) / LOADING).touch()
    threading.Event().wait()
    raise AssertionError


class OneHot:
    """delta = p e_i, i the silo's place in the job's list; evaluation counts i correct answers (mod 20)."""

    def __init__(self, *, spoil: float | None = None) -> None:
        self._spoil = spoil

    def compute(self, work: Work) -> Mapping[str, Array]:
        _wait_at_gate(work)
        place = work.spec.silos.index(work.silo)
        values: dict[str, Array] = {
            "correct": np.array(place % HOLDOUT),  # no more than are tested, however many silos there are
            "tested": np.array(HOLDOUT),
            "loss_sum": np.array(float(place)),
        }
        if work.phase_kind == "train" and work.spec.steps is not None:
            values = {GRADIENT: self._gradient(work, place)}
        elif work.phase_kind == "train":
            values["delta"] = self._delta(work, place)
            values["weight"] = np.array(work.weight)
        _record(work, values)
        return values

    def _gradient(self, work: Work, place: int) -> Array:
        """-e_i for each record of an expected batch, so that a step of rate 1 adds e_i / survivors."""
        assert work.layout is not None
        (gradient,) = work.layout.quantities
        assert gradient.noise is not None
        gradient_P = np.zeros(gradient.shape, np.int64)
        gradient_P[place] = -round(gradient.noise.scale * work.spec.training.batch_size)
        return gradient_P

    def _delta(self, work: Work, place: int) -> Array:
        size = sum(work.state[f"model/{name}"].size for name in work.context.trained)
        delta_P = np.zeros(size, np.float32)
        delta_P[place] = work.weight if self._spoil is None else self._spoil
        return delta_P


class Counting(OneHot):
    """Keeps how many of its trainings were applied, and writes down what each started from, one line each:
    `<silo>.kept` in the folder of RECORD."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = super().compute(work)
        if work.phase_kind == "train":
            kept = int(work.local.arrays.get(KEPT, np.array(0)))
            work.local.propose({KEPT: np.array(kept + 1)})
            with (Path(os.environ[RECORD]) / f"{work.silo}.kept").open("a") as file:
                file.write(f"{work.round} {kept}\n")
        return values


def _zeros(count: int) -> Samples:
    return Samples(features=np.zeros((count, 2), np.float32), labels=np.zeros(count, np.int64))


def _wait_at_gate(work: Work) -> None:
    gate = os.environ.get(GATE)
    while gate and _is_closed(Path(gate), work.round):
        if work.is_cancelled():
            raise ConfigError("cancelled at the gate")
        time.sleep(0.02)  # polls a file of another process: there is nothing to wait on


def _is_closed(gate: Path, round: int) -> bool:
    try:
        return round >= int(gate.read_text() or 0)
    except FileNotFoundError:
        return False


def _record(work: Work, values: Mapping[str, Array]) -> None:
    folder = os.environ.get(RECORD)
    if folder:
        np.savez(Path(folder) / f"{work.silo}-{work.phase_kind}-{work.round}.npz", **dict(values))
