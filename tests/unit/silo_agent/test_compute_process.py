"""Inputs of private jobs are computed by a process that does not answer: its end moves no reply."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from chorale.job import Job
from chorale.runtime.machine import LimitTooLow
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.objective import load_objective
from silo_agent.rounds.inputs.compute_process import Asked, ComputeProcess, ComputingFailed, _Computing, serve
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.objective import Cancelled, LocalState
from silo_agent.training.phase_input import PhaseRequest
from tests.support.gated import BEGUN, FOLDER, GATE, ending, gate
from tests.support.settings import silo_settings
from tests.unit.silo_agent.privacy_book import MEMBERS, STATE, SUMS, policy, private_job

PATIENCE_SECONDS = 20.0
SHORT_LOOK = partial(threading.Event().wait, 0.01)


class Desk:
    """A process whose computing waits for a word, and looks at it that the test lets happen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        gate(folder)
        data = {"format": "module", "module": "tests.support.one_hot:data"}
        self.settings = silo_settings(folder, objective="tests.support.gated:Gated", data=data)
        job = private_job(folder, SUMS)
        key = PhaseKey(job_digest=job.digest, round=1, phase="train", attempt=1)
        self.request = PhaseRequest.of(job, key, STATE, members=MEMBERS)
        self.records: list[int] = []
        self.records_declared: int | None = None
        self.records_held: int | None = None
        self.process = ComputeProcess(self.settings, self)
        self.looks, self.asked, self.is_cancelled = (
            threading.Semaphore(0),
            threading.Semaphore(0),
            threading.Event(),
        )
        self.thread = ThreadPoolExecutor(1)

    def settings_of(self, job: Job) -> DataSettings:
        return self.settings.data_sets[0]

    def records_of(self, settings: DataSettings) -> int | None:
        return self.records_held

    def note_records(self, settings: DataSettings, count: int) -> None:
        self.records.append(count)

    def begin(self, until_look: Callable[[], object] = SHORT_LOOK) -> tuple[Future[object], int]:
        """What will come of it, and the process that computes it now."""
        found = self.thread.submit(self.values, until_look)
        return found, int((self.folder / BEGUN).read_text())

    def values(self, until_look: Callable[[], object] = SHORT_LOOK) -> object:
        return self.process.values(
            self.request,
            policy=policy().model_copy(update={"constant_work_records": self.records_declared}),
            seed=1,
            local=LocalState(),
            is_cancelled=self.is_cancelled.is_set,
            until_look=until_look,
        )

    def until_look(self) -> None:
        self.asked.release()
        self.looks.acquire()

    def say(self, word: str) -> None:
        (self.folder / GATE).write_text(word)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    made = Desk(tmp_path)
    yield made
    made.looks.release(100)
    made.process.close()
    made.thread.shutdown()


async def test_the_end_of_computing_is_seen_at_the_times_to_look_alone(desk: Desk) -> None:
    """Red before: a thread of the agent computed, and replies to bogus messages came sooner once it ended."""
    found, pid = await asyncio.to_thread(desk.begin, desk.until_look)
    assert pid not in (os.getpid(), os.getppid())
    assert desk.process._running is not None
    pipe = desk.process._running[1]
    assert not pipe.poll(0)
    desk.looks.release()  # it looks once, and there is nothing
    for _ in range(2):
        assert await asyncio.to_thread(desk.asked.acquire, timeout=60)
    desk.say("go")
    assert await asyncio.to_thread(pipe.poll, None)  # it has ended
    for _ in range(100):
        await asyncio.sleep(0)  # the loop is free, and nothing woke
    assert (found.done(), desk.asked.acquire(blocking=False), desk.records) == (False, False, [])
    desk.looks.release(2)
    values = await asyncio.wrap_future(found)
    assert isinstance(values, dict)
    np.testing.assert_array_equal(values["delta"], np.full(MEMBERS, 0.25, np.float32))
    assert desk.records != [0]


@pytest.mark.parametrize(
    "word, kind, words",
    [("refuse", PolicyRefusal, "not this"), ("break", RuntimeError, "ZeroDivisionError: of a record")],
)
def test_what_computing_raises_is_raised_here_and_the_process_goes_on(
    desk: Desk, word: str, kind: type[Exception], words: str
) -> None:
    found, pid = desk.begin()
    desk.say(word)
    with pytest.raises(kind, match=words):
        found.result()
    found, again = desk.begin()
    desk.say("go")
    assert found.result()
    assert again == pid


def test_a_process_that_ends_is_started_again(desk: Desk) -> None:
    found, pid = desk.begin()
    desk.say("end")
    with pytest.raises(ComputingFailed, match="ended with code 9"):
        found.result()
    found, again = desk.begin()
    desk.say("go")
    assert found.result()
    assert again != pid


@pytest.mark.parametrize(
    ("name", "why"), [("nothing", "nothing: module .* has no attribute"), ("exiting", "exiting exits: not a")]
)
def test_what_cannot_be_loaded_is_tried_and_said_again(
    desk: Desk, tmp_path: Path, name: str, why: str
) -> None:
    """Red before: the second time it counted as running, and the error said that memory ran out.
    An objective that exits ended the agent."""
    settings = silo_settings(tmp_path, objective=f"tests.support.gated:{name}")
    process = ComputeProcess(settings, desk)
    for load in (process.warm_up, process.warm_up, partial(load_objective, settings)):
        with pytest.raises(ConfigError, match=why):
            load()
        assert not process.is_warm


def test_a_process_that_ends_while_it_loads_has_its_own_code(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red before: killed as it ended, it had code -9, and memory was said to have run out."""
    monkeypatch.setattr("silo_agent.rounds.inputs.compute_process.serve", ending)
    with pytest.raises(ComputingFailed, match="ended with code 9$"):
        desk.process.warm_up()


def test_a_process_ends_with_its_agent_while_it_loads(desk: Desk, tmp_path: Path) -> None:
    """Red before: an agent that was killed left it behind, for good where loading hangs."""
    spawning = multiprocessing.get_context("spawn")
    pipe, theirs = spawning.Pipe()
    settings = silo_settings(tmp_path, objective="tests.support.gated:gated_too")
    process = spawning.Process(target=serve, args=(theirs, settings))
    process.start()
    (tmp_path / BEGUN).read_text()
    theirs.close()
    pipe.close()
    process.join(PATIENCE_SECONDS)
    code = process.exitcode
    process.kill()
    assert code == 0


def test_a_machine_without_room_for_two_processes_gets_no_second_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun ahead of any task, it would end the agent for memory."""
    needed = 2 * desk.settings.min_memory_bytes
    monkeypatch.setattr("chorale.runtime.machine.memory_limit_bytes", lambda: needed - 1)
    with pytest.raises(LimitTooLow, match="the process of private jobs needs at least 192 MiB"):
        desk.process.warm_up()
    assert desk.process._running is None


def test_an_agent_that_stops_ends_it_while_it_loads_and_for_good(desk: Desk, tmp_path: Path) -> None:
    settings = silo_settings(tmp_path, objective="tests.support.gated:gated_too")
    process = ComputeProcess(settings, desk)
    loading = desk.thread.submit(process.warm_up)
    pid = int((tmp_path / BEGUN).read_text())
    process.end()
    with pytest.raises(ComputingFailed, match="the agent stops"):
        loading.result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ComputingFailed, match="the agent stops"):
        process.warm_up()


def test_a_signal_to_the_whole_group_is_no_failure_of_an_input(desk: Desk) -> None:
    """Red before: where the agent was stopped with its group, the process went first, and `internal` left."""
    found, pid = desk.begin()
    os.kill(pid, signal.SIGTERM)
    desk.say("go")
    assert found.result()


def test_what_is_not_wanted_any_more_ends_at_the_next_look(desk: Desk) -> None:
    found, pid = desk.begin()
    desk.say("until cancelled")
    desk.is_cancelled.set()
    with pytest.raises(Cancelled):
        found.result()
    desk.is_cancelled.clear()
    desk.process.forget(desk.request.job.digest)
    found, again = desk.begin()
    desk.say("go")
    assert found.result()
    assert again == pid


def test_data_of_one_job_at_a_time_are_held(desk: Desk, tmp_path: Path) -> None:
    """An operator chooses how many jobs wait at a time, and each could hold its own copy."""
    computing = _Computing(desk.settings, lambda: False)
    first, second = (private_job(tmp_path, SUMS, nonce=nonce) for nonce in range(2))
    for job in (first, second):
        asked = Asked(
            signed=job.signed,
            operator=job.operator,
            key=desk.request.key,
            members=MEMBERS,
            state=STATE,
            local={},
            policy=policy(),
            data=desk.settings.data_sets[0],
            seed=1,
        )
        assert len(computing._own_data(job, asked).train) > 0
    assert list(computing.data) == [second.digest]


def test_a_job_too_wide_for_the_declared_records_is_refused_without_the_process(desk: Desk) -> None:
    """Red before: whether memory ended told 48,213 records from 48,214."""
    desk.records_declared = 1 << 60
    with pytest.raises(PolicyRefusal, match="inputs and answers of 1152921504606846976 records") as caught:
        desk.values()
    assert (caught.value.code, desk.process.is_warm) == (Refusal.DATA, False)


@pytest.mark.parametrize("held", [None, 2])
def test_more_records_than_declared_wait_for_the_institution(desk: Desk, held: int | None) -> None:
    """As an opening counted them, before the process is asked; else as the data are read."""
    desk.records_declared, desk.records_held = 1, held
    with pytest.raises(PolicyRefusal, match="constant_work_records in the policy says how many") as caught:
        desk.values()
    assert (caught.value.code, desk.process.is_warm) == (Refusal.CONFIGURATION, held is None)


def test_data_that_are_closed_are_refused_without_the_process(desk: Desk) -> None:
    def closed(job: object) -> object:
        raise ConfigError("closed")

    desk.settings_of = closed  # type: ignore[method-assign,assignment]
    with pytest.raises(PolicyRefusal, match="train: closed") as caught:
        desk.values()
    assert caught.value.code is Refusal.DATA
    assert not desk.process.is_warm
