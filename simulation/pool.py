"""Silos in processes of their own: each worker holds some of them, and computes in one thread.

What goes through a pipe is between this process and those that it started itself. A silo stays with its
worker, so its data travels once; which worker it is changes no bit of its answer.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from chorale.job import Job
from chorale.runtime.distributions import Running
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ChoraleError, ConfigError
from silo_agent.data.base import SiloData
from silo_agent.objective import Objective
from silo_agent.policy.policy import Policy
from silo_agent.rounds.phase_input import PhaseRequest
from simulation.results import SimulationFailed
from simulation.silos import Answer, Locals, SilosHere, built_in

END_SECONDS = 5.0  # for a worker to end once its pipe is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker begins with. objective: None: the built-in training on that device."""

    job: Job = field(repr=False)
    data: Mapping[str, SiloData] = field(repr=False)
    policy: Policy
    device: str
    objective: Objective | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A phase, as a worker is asked. members: of the whole phase; names: this worker's of them."""

    key: PhaseKey
    state: Mapping[str, Any] = field(repr=False)
    members: int
    names: tuple[str, ...]
    local: Locals = field(repr=False)
    as_words: bool


class Pool:
    """N workers that hold the silos between them, the largest dealt out first."""

    def __init__(
        self,
        job: Job,
        data: Mapping[str, SiloData],
        *,
        policy: Policy,
        objective: Objective | None,
        device: str,
        workers: int,
    ) -> None:
        shares = dealt(data, min(workers, len(data)))
        self._worker_of = {name: place for place, share in enumerate(shares) for name in share}
        self._workers: list[_Worker] = []
        try:
            for share in shares:
                mine = {name: data[name] for name in share}
                load = Load(job=job, data=mine, policy=policy, device=device, objective=objective)
                self._workers.append(_Worker(load))
        except BaseException:
            self.close()
            raise

    def answers(
        self, key: PhaseKey, state: GlobalState, names: Sequence[str], local: Locals, *, as_words: bool
    ) -> list[Answer]:
        """Raises SimulationFailed if a worker is gone, and what a silo's code raised."""
        mine: dict[int, list[str]] = {}
        for name in names:
            mine.setdefault(self._worker_of[name], []).append(name)
        for place, asked in mine.items():
            question = Question(
                key=key,
                state=dict(state),
                members=len(names),
                names=tuple(asked),
                local={name: dict(local[name]) for name in asked if name in local},
                as_words=as_words,
            )
            self._workers[place].send(question)
        answers = {answer.silo: answer for place in mine for answer in self._workers[place].answers()}
        return [answers[name] for name in names]

    def close(self) -> None:
        for worker in self._workers:
            worker.end()


def dealt(data: Mapping[str, SiloData], workers: int) -> list[list[str]]:
    """Names for each worker: by falling number of samples, each to the worker with the fewest so far."""
    shares: list[list[str]] = [[] for _ in range(workers)]
    samples = [0] * workers
    for name in sorted(data, key=lambda name: (-len(data[name].train), name)):
        place = min(range(workers), key=lambda place: (samples[place], place))
        shares[place].append(name)
        samples[place] += len(data[name].train)
    return shares


class _Worker:
    """One process, seen from here."""

    def __init__(self, load: Load) -> None:
        spawning = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.send(Running())  # before silos' data, which may be of their classes
        self.send(load)

    def send(self, message: Running | Load | Question) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._gone() from None

    def answers(self) -> list[Answer]:
        """To the last question. Raises SimulationFailed if the process is gone, and what a silo raised."""
        try:
            answers = self._pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(answers, ChoraleError):
            raise answers
        return list(answers)

    def end(self) -> None:
        """Between two questions it ends by itself; at work it is stopped."""
        self._pipe.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _gone(self) -> SimulationFailed:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        return SimulationFailed(f"a worker process ended with code {code}; perhaps memory ran out")


def serve(pipe: Connection) -> None:
    """A worker's life: until the pipe is closed, also by the end of the process that started it."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there
    silos: SilosHere | None = None
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.recv()  # Running
        load: Load = pipe.recv()
        while True:
            question: Question = pipe.recv()
            try:
                if silos is None:
                    objective = load.objective or built_in(load.device)
                    silos = SilosHere(load.job, load.data, policy=load.policy, objective=objective)
                request = PhaseRequest.of(load.job, question.key, question.state, members=question.members)
                answers = [
                    silos.answer(request, name, question.local.get(name, {}), as_words=question.as_words)
                    for name in question.names
                ]
                pipe.send(answers)
            except ChoraleError as error:
                # other errors may hold what does not travel: the message alone does
                kind = ConfigError if isinstance(error, ConfigError) else SimulationFailed
                pipe.send(kind(str(error)))
