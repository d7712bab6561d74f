"""Silos on several workers, each of which asks for the next silo when it is done, the largest first.

A worker computes in one thread, one silo at a time, and keeps nothing of a silo: any worker takes any silo,
and which one it is changes no bit of the answer. What goes to a worker and back is Python's own
serialization, between this process and those that it started itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from chorale.job import Job
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ChoraleError, ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import Objective
from silo_agent.training.phase_input import PhaseRequest
from simulation.results import SimulationFailed
from simulation.silos import Answer, Answered, Compute, Locals, SilosHere, built_in, kept_of, unwatched
from strategies.base import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker begins with. objective: None: the built-in training. place: of this worker."""

    job: Job = field(repr=False)
    policy: Policy
    compute: Compute
    objective: Objective | None = None
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """As a worker gets it, before it is asked for silos of it. members: of the whole phase."""

    key: PhaseKey
    state: Mapping[str, Any] = field(repr=False)
    members: int
    as_words: bool


class Worker(Protocol):
    """One of a pool, seen from the process that asks."""

    def ask(self, phase: Phase, silo: str, kept: Arrays) -> None:
        """Have it begin; it is asked again only after it has answered. Raises SimulationFailed."""

    def answer(self) -> Answer:
        """To the last question, once there is one. Raises SimulationFailed, and what the silo's code did."""


W = TypeVar("W", bound=Worker)


class Pool(ABC, Generic[W]):
    """samples: each silo's number of them, by which the order is. description: what computes, in words."""

    description: str

    def __init__(self, samples: Mapping[str, int]) -> None:
        self._samples = samples
        self._workers: list[W] = []

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
        """One for each name, in the order of the names.

        Raises SimulationFailed if a worker is gone, and what a silo's code raised.
        """
        phase = Phase(key=key, state=dict(state), members=len(names), as_words=as_words)
        waiting = deque(sorted(names, key=lambda name: (-self._samples[name], name)))
        answers: dict[str, Answer] = {}
        idle, busy = list(self._workers), list[W]()
        while waiting or busy:
            while idle and waiting:
                silo, worker = waiting.popleft(), idle.pop(0)
                worker.ask(phase, silo, kept_of(local, silo))
                busy.append(worker)
            for worker in self.ready(busy):
                answer = worker.answer()
                answers[answer.silo] = answer
                busy.remove(worker)
                idle.append(worker)
                answered(len(answers), len(names))
        return [answers[name] for name in names]

    @abstractmethod
    def ready(self, busy: Sequence[W]) -> Sequence[W]:
        """Those that have answered, as soon as one has."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


class Computing:
    """A worker's side: the silos' code, made when it is first needed, as it loads torch."""

    def __init__(self, load: Load, data: Mapping[str, SiloData]) -> None:
        self._load = load
        self._data = data
        self._silos: SilosHere | None = None
        self._request: PhaseRequest | None = None

    def answer(self, phase: Phase, silo: str, kept: Arrays) -> Answer | ChoraleError:
        """An error of ours as one that travels: others' may hold what does not, so its message alone does."""
        load = self._load
        try:
            if self._silos is None:
                objective = load.objective or built_in(load.compute, place=load.place)
                self._silos = SilosHere(load.job, self._data, policy=load.policy, objective=objective)
            if self._request is None or self._request.key != phase.key:
                self._request = PhaseRequest.of(load.job, phase.key, phase.state, members=phase.members)
            return self._silos.answer(self._request, silo, kept, as_words=phase.as_words)
        except ChoraleError as error:
            kind = ConfigError if isinstance(error, ConfigError) else SimulationFailed
            return kind(str(error))


def given(answer: Answer | ChoraleError) -> Answer:
    """Raises what the worker would have."""
    if isinstance(answer, ChoraleError):
        raise answer
    return answer
