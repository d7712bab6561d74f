"""The attempts at phases that run at this silo, one a phase."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from silo_agent.rounds.inputs.input_cache import PhaseName, Prepared, phase_name
from silo_agent.rounds.session_handler import SessionHandler


@dataclass(slots=True, kw_only=True)
class RunningTask:
    """One attempt from its task to its end. session is None until its input is ready. prepared is None where
    none is needed: from the share on, and in a session that was taken up from the ledger."""

    key: PhaseKey
    task: pb.PhaseTask
    preparation: asyncio.Task[None] | None = None
    prepared: Prepared | None = None
    own_steps: Mapping[str, float] = field(default_factory=dict)
    session: SessionHandler | None = None
    upload: asyncio.Task[None] | None = None

    @property
    def is_preparing(self) -> bool:
        return self.preparation is not None and not self.preparation.done()

    def is_of(self, job_digest: bytes) -> bool:
        return self.key.job_digest == job_digest

    def end(self) -> None:
        for running in (self.preparation, self.upload):
            if running is not None:
                running.cancel()
        if self.session is not None:
            self.session.end()
        self.prepared = None


class RunningTasks:
    """By phase: a later attempt takes the place of the one before."""

    def __init__(self) -> None:
        self._by_phase: dict[PhaseName, RunningTask] = {}

    def __iter__(self) -> Iterator[RunningTask]:
        return iter(self._by_phase.values())

    def __len__(self) -> int:
        return len(self._by_phase)

    def of(self, key: PhaseKey) -> RunningTask | None:
        """The attempt that runs at the key's phase, whichever it is."""
        return self._by_phase.get(phase_name(key))

    def put(self, running: RunningTask) -> RunningTask:
        self._by_phase[phase_name(running.key)] = running
        return running

    def drop(self, running: RunningTask) -> None:
        """It is over by itself."""
        if self.of(running.key) is running:
            del self._by_phase[phase_name(running.key)]

    def end(self, key: PhaseKey) -> None:
        """End what runs at the key's phase, if anything does."""
        if (running := self._by_phase.pop(phase_name(key), None)) is not None:
            running.end()

    def end_where(self, is_over: Callable[[RunningTask], bool]) -> list[RunningTask]:
        """End all that are over; these."""
        over = [each for each in self._by_phase.values() if is_over(each)]
        for each in over:
            self.end(each.key)
        return over
