"""What a silo computes for a phase, as the agent's core sees it: arrays in, arrays out.

The built-in objective trains with torch and is imported once the agent is connected; a silo may
name its own `package.module:function` in its settings file. No peer ever names one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.fixed_point.layout import Layout
from silo_agent.training.data.base import Cancelled as Cancelled
from silo_agent.training.data.base import SiloData
from strategies.base import Array, Arrays, PhaseContext


class LocalState:
    """One phase's view. arrays: taken over, read-only, empty before the first applied round."""

    def __init__(self, arrays: Arrays | None = None) -> None:
        self.arrays: Arrays = MappingProxyType(dict(arrays or {}))
        self.proposed: Arrays | None = None

    def propose(self, arrays: Mapping[str, Array]) -> None:
        """Arrays of the next state. What the parts of a method propose in one phase takes the place of the
        whole state, if the phase is applied with this silo in its sum."""
        self.proposed = {**(self.proposed or {}), **arrays}


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalModel:
    """What a silo fine-tuned. score and score_before: how good this model and the global one that it came
    from are on the hold-out, from 0 to 1 (`DeclaredTask.score`); None where silos share no model. epochs:
    passes over the data. learning_rate: 0 where nothing was trained by steps."""

    arrays: Arrays = field(repr=False)
    tuned: str
    epochs: float
    learning_rate: float
    tested: int
    score_before: float | None
    score: float


def forget(model: PersonalModel) -> None:
    """What becomes of a personal model where none is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One phase's work. weight: p = n / total; is_cancelled: asked between batches.

    seed: what shuffles and dropout follow from; fresh for every input, but in a simulation.
    class_rows: by class, whether enough silos hold it for its row to be sent; None before class-presence.
    keep_personal: takes what a closing phase fine-tuned; it stays with the institution.
    local: what this silo keeps of the job between rounds; a method reads it and proposes the next.
    layout: of the phase's quantities with their noise; a step of shared noise is handed over in its units.
    constant_work: for how many records a private job computes, whatever the data hold; None: for what is
    there.
    """

    spec: JobSpec
    phase_kind: str
    round: int
    silo: str
    state: Arrays
    context: PhaseContext
    data: SiloData
    weight: float
    seed: int
    is_cancelled: Callable[[], bool]
    class_rows: NDArray[np.bool_] | None = None
    keep_personal: Callable[[PersonalModel], None] = forget
    local: LocalState = field(default_factory=LocalState, repr=False)
    layout: Layout | None = None
    constant_work: int | None = None


class Objective(Protocol):
    """Computes what a silo contributes to a phase."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        """Values of every quantity of the phase in its shape, but for `clipped` and `delta_mean_square`,
        which the agent fills in.

        `gradient`, of a job whose silos share their noise, is int64 in the units of its noise: the sum of the
        clipped gradients of the records that were drawn, each rounded to whole numbers within
        crypto.noise.sensitivity.clipped_sensitivity, each number within the bound.
        A value that is not finite is left in place: the ring refuses it and the silo says so.
        The arrays are given up: those that own their memory are read-only from then on, without a copy.
        """
