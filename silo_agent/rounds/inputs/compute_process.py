"""The process that computes inputs of private jobs: another one than that which answers the coordinator.

How long a computation takes may tell what noise hides. So the process that answers shares no interpreter
with it, and looks whether it has ended at fixed times alone: no reply to any message shifts when it ends.
What goes between the two is pickled by this silo's own processes.
Source: docs/privacy-proofs.md, "What time tells".
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Protocol, TypeAlias

from chorale.job import Job, SignedJob
from chorale.observability import logs
from chorale.runtime.machine import check_memory
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.errors import ChoraleError
from silo_agent.account_units import admitted_records
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.objective import load_objective
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.formats.memory import check_records, check_room
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings, rows_beyond_in_words
from silo_agent.training.objective import LocalState
from silo_agent.training.phase_input import PhaseRequest, cut_holdout, faults_refused, phase_values
from strategies.base import Array, Arrays

log = logs.get_logger("silo_agent.rounds.inputs.compute_process")

END_SECONDS = 5.0  # for the process to end once its pipe is closed


class Word(StrEnum):
    READY = "ready"  # the objective is loaded
    DONE = "done"  # something was computed; it waits to be taken
    TAKE = "take"
    CANCEL = "cancel"


class DataOfJobs(Protocol):
    """What is known of a job's data in the process that answers: silo_agent.rounds.inputs.open_data."""

    def settings_of(self, job: Job) -> DataSettings: ...
    def records_of(self, settings: DataSettings) -> int | None: ...
    def note_records(self, settings: DataSettings, count: int) -> None: ...


class ComputingFailed(ChoraleError):
    """The process ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a phase asks, and what of this silo decides on its input."""

    signed: SignedJob
    operator: str
    key: PhaseKey
    members: int
    state: Arrays = field(repr=False)
    local: Arrays = field(repr=False)
    policy: Policy
    data: DataSettings
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """values: before they are masked. proposed: of the local state. records: that the data set gave."""

    values: Mapping[str, Array] = field(repr=False)
    proposed: Arrays | None = field(repr=False)
    records: int


Answer: TypeAlias = Computed | Exception
Messages: TypeAlias = SimpleQueue[Asked | bytes | Word]  # bytes: of a job whose data are not asked for again


class ComputeProcess:
    """Started before the first private job; ends with the agent. One input at a time."""

    def __init__(self, settings: SiloSettings, data: DataOfJobs) -> None:
        self._settings, self._data = settings, data
        self._running: tuple[multiprocessing.process.BaseProcess, Connection] | None = None
        self._changing = threading.Lock()  # the agent may stop while a thread starts it
        self._is_loaded = self._is_ended = False

    @property
    def is_warm(self) -> bool:
        return self._is_loaded

    def warm_up(self) -> None:
        """Start it where it does not run, until it has loaded its objective. Raises what that raises, and
        LimitTooLow where memory has no room for two processes."""
        if self._is_loaded:
            return
        check_memory(2 * self._settings.min_memory_bytes, what="the process of private jobs")
        spawning = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        pipe, theirs = spawning.Pipe()
        process = spawning.Process(target=serve, args=(theirs, self._settings))
        with self._changing:
            if self._is_ended:
                raise ComputingFailed("the agent stops")
            process.start()
            self._running = process, pipe
        theirs.close()
        try:
            self._received()
        except BaseException:
            self.close()
            raise
        self._is_loaded = True
        log.info("private jobs have a process", process=process.pid)

    def values(
        self,
        request: PhaseRequest,
        *,
        policy: Policy,
        seed: int,
        local: LocalState,
        is_cancelled: Callable[[], bool],
        until_look: Callable[[], object],
    ) -> Mapping[str, Array]:
        """As `phase_values`. until_look: returns when the answer may be taken next.

        Raises what computing raises, and ComputingFailed.
        """
        with faults_refused(request):
            data = self._data.settings_of(request.job)
            if (held := self._data.records_of(data)) is not None:
                check_records(held, policy.most_records, settings=data)
            check_room(request.job.training, request.context.state, data, most=policy.most_records)
        asked = Asked(
            signed=request.job.signed,
            operator=request.job.operator,
            key=request.key,
            members=request.rule.members,
            state=dict(request.context.state),
            local=dict(local.arrays),
            policy=policy,
            data=data,
            seed=seed,
        )
        self.warm_up()
        self._send(asked)
        answer = self._answer(is_cancelled, until_look)
        self._data.note_records(asked.data, answer.records)
        if answer.proposed is not None:
            local.propose(answer.proposed)
        return answer.values

    def forget(self, job_digest: bytes) -> None:
        """Its data are not asked for again."""
        if self._running is not None:
            self._send(job_digest)

    def end(self) -> None:
        """It is never started again."""
        self._is_ended = True
        self.close()

    def close(self) -> None:
        with self._changing:
            running, self._running = self._running, None
            was_loaded, self._is_loaded = self._is_loaded, False
        if running is not None:
            process, pipe = running
            if was_loaded:  # else it holds nothing, and a thread may be reading
                pipe.close()
                process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def _answer(self, is_cancelled: Callable[[], bool], until_look: Callable[[], object]) -> Computed:
        assert self._running is not None
        pipe = self._running[1]
        is_told = False
        while True:
            until_look()
            if pipe.poll(0):
                self._received()  # that it is done
                self._send(Word.TAKE)
                answer = self._received()
                assert isinstance(answer, Computed)
                return answer
            if is_cancelled() and not is_told:
                self._send(Word.CANCEL)
                is_told = True

    def _send(self, message: object) -> None:
        assert self._running is not None
        try:
            self._running[1].send(message)
        except OSError:
            raise self._gone() from None

    def _received(self) -> Computed | Word:
        assert self._running is not None
        try:
            answer: Answer | Word = self._running[1].recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _gone(self) -> ComputingFailed:
        if self._running is None:
            return ComputingFailed("the agent stops")
        process = self._running[0]
        process.join(END_SECONDS)  # its pipe is closed first: killed now, it would have our code
        self.close()
        perhaps = "; perhaps memory ran out" if process.exitcode == -signal.SIGKILL else ""
        return ComputingFailed(f"the process that computes ended with code {process.exitcode}{perhaps}")


def serve(pipe: Connection, settings: SiloSettings) -> None:
    """The process's life: until the pipe is closed, also by the end of the agent."""
    # both reach the whole group, and the agent ends it; what it starts itself may be terminated
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the agent's log level
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    logs.configure(level=settings.log_level, silo=settings.name)
    is_cancelled, messages = threading.Event(), Messages()
    # before anything is loaded: that may hang, and the agent be killed meanwhile
    threading.Thread(target=_listen, args=(pipe, messages, is_cancelled), daemon=True).start()
    try:
        computing = _Computing(settings, is_cancelled.is_set)
    except Exception as error:
        return pipe.send(error)
    pipe.send(Word.READY)
    while True:
        message = messages.get()
        if isinstance(message, bytes):
            computing.data.pop(message, None)
        elif isinstance(message, Asked):
            answer = computing.answer(message)
            pipe.send(Word.DONE)
            messages.get()  # that it is taken: nothing of it moves before
            pipe.send(answer)


def _listen(pipe: Connection, messages: Messages, cancelled: threading.Event) -> None:
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the agent is gone
        if message is Word.CANCEL:
            cancelled.set()
            continue
        if isinstance(message, Asked):
            cancelled.clear()
        messages.put(message)


class _Computing:
    """data: of the last job, the hold-out cut as its size is summed."""

    def __init__(self, settings: SiloSettings, is_cancelled: Callable[[], bool]) -> None:
        self._settings, self._is_cancelled = settings, is_cancelled
        self._objective = load_objective(settings)
        self.data: dict[bytes, SiloData] = {}

    def answer(self, asked: Asked) -> Answer:
        spec = JobSpec.from_yaml(asked.signed.spec_bytes, source=f"job {asked.key.job_digest.hex()[:12]}")
        job, local = Job(spec=spec, signed=asked.signed, operator=asked.operator), LocalState(asked.local)
        try:
            values = phase_values(
                PhaseRequest.of(job, asked.key, asked.state, members=asked.members),
                silo=self._settings.name,
                rules=asked.policy,
                load_data=lambda: self._own_data(job, asked),
                objective=self._objective,
                is_cancelled=self._is_cancelled,
                seed=asked.seed,
                local=local,
            )
        except ChoraleError as error:
            return error
        except Exception as error:  # torch's, an author's: perhaps nothing that can be pickled
            return RuntimeError(f"{type(error).__name__}: {error}"[:300])
        data = self.data.get(job.digest)
        return Computed(
            values=values,
            proposed=local.proposed,
            records=0 if data is None else data.records,
        )

    def _own_data(self, job: Job, asked: Asked) -> SiloData:
        held = self.data.get(job.digest)
        if held is None or not held.is_current:
            self.data.clear()  # how many jobs wait at a time is an operator's choice
            most = asked.policy.most_records
            admitted = admitted_records(self._settings, asked.data, most=most)
            found = load_data(asked.data, job.training, admitted=admitted, is_cancelled=self._is_cancelled)
            if found.rows_beyond:
                log.warning(rows_beyond_in_words(asked.data, found.rows_beyond), job=job.id)
            check_records(found.records, most, settings=asked.data)
            self.data[job.digest] = cut_holdout(found, job=job, rules=asked.policy)
        return self.data[job.digest]
