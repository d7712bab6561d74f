"""What a silo computes for a phase, as the agent's core sees it: arrays in, arrays out.

The built-in objective trains with torch and is imported only when a job needs it; a silo may
name its own `package.module:function` in its settings file. No peer ever names one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from chorale.job import JobSpec
from crypto.fixed_point.layout import Layout
from silo_agent.data.base import Cancelled as Cancelled
from silo_agent.data.base import SiloData
from silo_agent.entry_point import load_entry_point
from silo_agent.local_storage.local_state import LocalState
from silo_agent.local_storage.personal_models import PersonalModel, forget
from silo_agent.settings import SiloSettings
from strategies.base import Array, Arrays, PhaseContext

DEFAULT_OBJECTIVE = "silo_agent.training.objective_of_settings:objective_of"


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


def load_objective(settings: SiloSettings) -> Objective:
    """The silo's own objective, or the built-in one. Raises ConfigError."""
    if settings.objective is not None:
        own = cast(Callable[[], Objective], load_entry_point(settings.objective, field="objective"))
        return own()
    built_in = cast(Callable[..., Objective], load_entry_point(DEFAULT_OBJECTIVE, field="objective"))
    return built_in(settings)
