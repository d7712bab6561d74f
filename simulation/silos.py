"""The silos of a simulation: what each gives a phase, computed by the code that its agent would run."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from chorale.job import Job
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto import encoding
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from crypto.fixed_point.ring import Encoded
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.entry_point import load_entry_point
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.machine.settings import MemoryFormat, Precision
from silo_agent.training.objective import LocalState, Objective, Work
from silo_agent.training.phase_input import PhaseRequest, cut_holdout, encoded, phase_values
from simulation.stored import KeptFile
from strategies.base import Array, Arrays

Locals = Mapping[str, KeptFile]  # by silo: what it keeps between rounds
Answered = Callable[[int, int], None]  # how many silos of a phase have answered, and of how many


def unwatched(done: int, of: int) -> None:
    """Nobody asks how far a phase is."""


def kept_of(local: Locals, silo: str) -> Arrays:
    """What the silo keeps, read now; nothing before it kept anything."""
    return local[silo].arrays() if silo in local else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How silos train: auto, cpu or cuda; in which number type and memory order. Private jobs: in float32."""

    device: str = "auto"
    precision: Precision = Precision.FLOAT32
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one silo gave a phase: values, or words where the sum is one of words; or why it refused.

    proposed: what it keeps if the phase is applied; None: what it has.
    """

    silo: str
    values: Mapping[str, Array] = field(default_factory=dict, repr=False)
    encoded: Encoded | None = field(default=None, repr=False)
    clipped: int = 0
    proposed: Arrays | None = field(default=None, repr=False)
    refused: str = ""
    message: str = ""


class SilosHere:
    """Silos in this process, one after the other, all with the same policy and objective.

    data: opened when a silo is asked, and not kept here.
    """

    description = "one process"

    def __init__(
        self, job: Job, data: Mapping[str, SiloData], *, policy: Policy, objective: Objective
    ) -> None:
        self._job = job
        self._data = data
        self._policy = policy
        self._objective = objective

    def answers(
        self,
        key: PhaseKey,
        state: GlobalState,
        names: Sequence[str],
        local: Locals,
        *,
        as_words: bool,
        answered: Answered = unwatched,
    ) -> list[Answer]:
        """One for each name, in the order of the names."""
        request = PhaseRequest.of(self._job, key, state, members=len(names))
        answers = []
        for name in names:
            answers.append(self.answer(request, name, kept_of(local, name), as_words=as_words))
            answered(len(answers), len(names))
        return answers

    def close(self) -> None:
        """Nothing was started."""

    def answer(self, request: PhaseRequest, silo: str, kept: Arrays, *, as_words: bool) -> Answer:
        """One silo's, of those that the phase names. kept: its local state."""
        local = LocalState(kept)
        try:
            values = phase_values(
                request,
                silo=silo,
                rules=self._policy,
                load_data=lambda: cut_holdout(self._data[silo], job=self._job, rules=self._policy),
                objective=self._objective,
                is_cancelled=lambda: False,
                seed=training_seed(job_seed=self._job.training.seed, silo=silo, round=request.key.round),
                local=local,
            )
            encoder = encoded(request, values, random=rounding_bytes(request.key, silo))
        except PolicyRefusal as refusal:
            return Answer(silo=silo, refused=refusal.code.value, message=str(refusal))
        return Answer(
            silo=silo,
            values={} if as_words else values,
            encoded=encoder.encode() if as_words else None,
            clipped=encoder.clipped_total,
            proposed=local.proposed,
        )


class OwnObjectives:
    """Each silo's objective as its settings file names it; the built-in training of those that name none.

    They are loaded where they compute, so a worker process gets their names alone.
    """

    def __init__(self, entry_points: Mapping[str, str], *, compute: Compute) -> None:
        self._entry_points = dict(entry_points)
        self._compute = compute
        self._loaded: dict[str, Objective] = {}

    def compute(self, work: Work) -> Mapping[str, Array]:
        """Raises ConfigError for one that cannot be loaded, and for what its code raises."""
        name = self._entry_points.get(work.silo, "")
        if name not in self._loaded:
            self._loaded[name] = self._made(name)
        try:
            return self._loaded[name].compute(work)
        except ChoraleError:
            raise
        except Exception as error:
            raise ConfigError(f"objective: {name}: {type(error).__name__}: {error}") from error

    def _made(self, name: str) -> Objective:
        if not name:
            return built_in(self._compute)
        return cast(Callable[[], Objective], load_entry_point(name, field="objective"))()


def built_in(compute: Compute, *, place: int = 0) -> Objective:
    """The agents' own training, in one thread. place: of this worker, which decides its GPU.

    Raises ConfigError for a device that is not there.
    """
    from silo_agent.training.models.forms import Forms  # torch
    from silo_agent.training.torch_objective import TorchObjective

    forms = Forms(precision=compute.precision, memory_format=compute.memory_format)
    return TorchObjective(device=compute.device, gpu=place, forms=forms)


def rounding_bytes(key: PhaseKey, silo: str) -> Callable[[int], bytes]:
    """Bytes for rounding and noise that follow from the job, so that a simulation can be repeated.

    Security: no agent does this; who knows the job could take this noise off again.
    """
    seed = encoding.digest("simulated-dice", key.job_digest, silo, key.round, key.phase)
    draws = itertools.count(1)
    return lambda size: hashlib.shake_256(seed + next(draws).to_bytes(8, "big")).digest(size)
