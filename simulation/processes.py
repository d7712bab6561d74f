"""Workers that are processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from chorale.job import Job
from chorale.runtime.distributions import Running
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import Objective
from simulation.pool import Computing, Load, Phase, Pool, given
from simulation.results import SimulationFailed
from simulation.silos import Answer, Compute
from simulation.stored import Scratch, StoredSilos
from strategies.base import Arrays

END_SECONDS = 5.0  # for a worker to end once its pipe is closed


class ProcessPool(Pool["Process"]):
    """scratch: for the silos' samples, which all workers map, where they are in no file yet."""

    def __init__(
        self,
        job: Job,
        data: Mapping[str, SiloData],
        *,
        policy: Policy,
        objective: Objective | None,
        compute: Compute,
        workers: int,
        scratch: Scratch,
    ) -> None:
        stored = data if isinstance(data, StoredSilos) else StoredSilos(scratch, data.items())
        super().__init__(stored.samples)
        workers = min(workers, len(stored))
        self.description = f"processes: {workers} worker{'s' * (workers > 1)} on this machine"
        try:
            for place in range(workers):
                load = Load(job=job, policy=policy, compute=compute, objective=objective, place=place)
                self._workers.append(Process(load, stored))
        except BaseException:
            self.close()
            raise

    def ready(self, busy: Sequence[Process]) -> list[Process]:
        pipes = wait([worker.pipe for worker in busy])
        return [worker for worker in busy if worker.pipe in pipes]

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end()


class Process:
    """One worker, seen from here."""

    def __init__(self, load: Load, data: StoredSilos) -> None:
        spawning = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self.pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._sent_phase: Phase | None = None
        self._send(Running())  # before anything that may be of its classes
        self._send((load, data))

    def ask(self, phase: Phase, silo: str, kept: Arrays) -> None:
        """The phase goes first, once: its state is large."""
        if phase is not self._sent_phase:
            self._send(phase)
            self._sent_phase = phase
        self._send((silo, kept))

    def answer(self) -> Answer:
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        return given(answer)

    def end(self) -> None:
        """Between two questions it ends by itself, as its pipe is closed; at work it is stopped."""
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _send(self, message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            raise self._gone() from None

    def _gone(self) -> SimulationFailed:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        return SimulationFailed(f"a worker process ended with code {code}; perhaps memory ran out")


def serve(pipe: Connection) -> None:
    """A worker's life: until the pipe is closed, also by the end of the process that started it."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.recv()  # Running
        load, data = pipe.recv()
        computing = Computing(load, data)
        phase: Phase | None = None
        while True:
            message = pipe.recv()
            if isinstance(message, Phase):
                phase = message
                continue
            assert phase is not None
            silo, kept = message
            pipe.send(computing.answer(phase, silo, kept))
