"""Streams that are read aside: in order, to their end, with what they raise; and open to an interrupt."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict
from rich.console import Console

import cli.job.commands
import cli.job.listing
import cli.job.options
import cli.job.submit
from chorale.v1 import operations_pb2
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, LeftOut, PhaseRecord
from cli.output.progress import table
from client.history import JobHistory
from client.operations import MAX_WAITING, Operations, read_aside
from crypto.errors import printable
from crypto.identity.certificates import Identity, Role
from tests.unit.cli.conftest import Desk


def test_items_come_in_order_and_end() -> None:
    assert list(read_aside(iter(range(100)))) == list(range(100))


def test_what_the_stream_raises_is_raised_after_its_items() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ConnectionError("cut")

    items = read_aside(broken())
    assert next(items) == 1
    with pytest.raises(ConnectionError, match="cut"):
        next(items)


def test_peer_that_sends_without_end_waits_for_its_reader() -> None:
    """All that came was kept until it was taken: a coordinator could fill the memory of who watches."""
    is_sent, is_closed = threading.Event(), threading.Event()

    def endless() -> Iterator[int]:
        try:
            yield from range(10 * MAX_WAITING)
            is_sent.set()
        finally:
            is_closed.set()

    items = read_aside(endless())
    assert next(items) == 0
    assert not is_sent.wait(0.2)
    assert list(items) == list(range(1, 10 * MAX_WAITING))  # the control: nothing is lost
    assert is_sent.is_set()
    is_sent.clear(), is_closed.clear()
    left = cast(Generator[int, None, None], read_aside(endless()))
    assert next(left) == 0
    left.close()  # the thread ends, too
    assert is_closed.wait(20)
    assert not is_sent.is_set()


def test_interrupt_ends_the_wait_for_a_silent_stream() -> None:
    """In gRPC's own wait it may be swallowed: a demo then never ended."""
    is_reading, is_over = threading.Event(), threading.Event()

    def silent() -> Iterator[int]:
        is_reading.set()
        is_over.wait(60)
        yield from ()

    def interrupt() -> None:
        assert is_reading.wait(20)
        # to the main thread, as the system gives it one that is for the process
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # a shell starts background commands, and so perhaps this test, deaf to Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(read_aside(silent()))
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


def test_silos_that_report_other_software_than_the_coordinator_stand_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing that a silo calls its software reaches the operator's terminal as a command."""
    same = {"connected": True, "software_version": "1.0.0", "software_digest": b"\xaa" * 32}
    reply = operations_pb2.ListSilosReply(
        roster_version=4,
        software_version="1.0.0",
        software_digest=b"\xaa" * 32,
        silos=[
            operations_pb2.SiloStatus(name="a", **same),
            operations_pb2.SiloStatus(name="b", **{**same, "software_digest": b"\xbb" * 32}),
            operations_pb2.SiloStatus(name="c", connected=True, software_version="\x1b[2J"),
        ],
    )

    @contextmanager
    def connect(_settings: object) -> Iterator[tuple[object, None]]:
        yield SimpleNamespace(silos=lambda: reply), None

    monkeypatch.setattr(cli.job.listing, "connect", connect)
    monkeypatch.setattr(cli.job.options, "operator_settings", lambda *_, **__: None)
    done = CliRunner().invoke(cli.job.commands.job, ["silos"], catch_exceptions=False)
    head, a, b, c = done.stdout.splitlines()
    assert head == f"roster version 4, the coordinator runs 1.0.0, sha256:{'aa' * 32}"
    assert a.endswith(f"runs 1.0.0, sha256:{'aa' * 32}")
    assert b.endswith(f"runs 1.0.0, sha256:{'bb' * 32}, not the coordinator's")
    assert c.endswith("runs ?, sha256:none, not the coordinator's")


def test_a_coordinator_without_jobs_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """It printed nothing, as a command does that went wrong."""

    @contextmanager
    def connect(_settings: object) -> Iterator[tuple[object, None]]:
        yield SimpleNamespace(jobs=list), None

    monkeypatch.setattr(cli.job.listing, "connect", connect)
    monkeypatch.setattr(cli.job.options, "operator_settings", lambda *_, **__: None)
    done = CliRunner().invoke(cli.job.commands.job, ["list"], catch_exceptions=False)
    assert (done.stdout, done.stderr) == ("", "no job was submitted yet\n")


def test_a_job_whose_copy_cannot_be_saved_is_not_submitted(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    """It was submitted, and the command then ended with an error and without its id."""
    pytest.importorskip("torch", reason="draws the initial model")
    submitted: list[object] = []

    def submit(signed: object, _state: bytes) -> bytes:
        submitted.append(signed)
        return JOB

    @contextmanager
    def connect(_settings: object) -> Iterator[tuple[object, Identity]]:
        yield SimpleNamespace(submit=submit), desk.ceremony.enroll(Role.OPERATOR, "ops")

    monkeypatch.setattr(cli.job.submit, "connect", connect)
    save = ["--save", str(desk.folder / "nowhere" / "job.txt")]
    arguments = ["submit", str(desk.job()), "--config", str(desk.operator())]
    done = CliRunner().invoke(cli.job.commands.job, [*arguments, *save])
    assert isinstance(done.exception, FileNotFoundError)
    assert submitted == []


JOB = b"j" * 32
HOSTILE = "\x1b[2Jdone\u202e"


def _texts(value: object) -> list[str]:
    """Every text of a message as a dictionary, keys included."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for each in pair for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
    return []


@pytest.mark.parametrize("word", ["done", HOSTILE])
def test_no_text_of_a_coordinators_moves_a_cursor(word: str) -> None:
    """Whatever is read through the operator's line: jobs, silos, events, and what a command answers."""
    summary = JobSummary(job_digest=JOB, name=word, status=word, main_figure=word, silos=[word])
    summary.awaited.add(silo=word, why=word)
    record = PhaseRecord(job_digest=JOB, result=word, cohort=[word, "a"], figures={word: 1.0, "loss": 2.0})
    record.left_out.add(silo=word, text=word)
    record.tables[word].values.append(1.0)
    events = [JobEvent(summary=summary), JobEvent(record=record)]
    operations = object.__new__(Operations)
    operations._stub = cast(
        Any,
        SimpleNamespace(
            ListJobs=lambda _: operations_pb2.ListJobsReply(jobs=[summary]),
            ListSilos=lambda _: operations_pb2.ListSilosReply(
                silos=[operations_pb2.SiloStatus(name=word, software_version=word)]
            ),
            WatchJob=lambda _, **__: [JobEvent.FromString(each.SerializeToString()) for each in events],
            ControlJob=lambda _: JobSummary.FromString(summary.SerializeToString()),
        ),
    )
    messages = [
        *operations.jobs(),
        operations.silos(),
        *operations.watch(JOB),
        operations.control(JOB, "cancel"),
    ]
    history = operations.history(JOB)
    messages += [history.summary, *history.records]
    shown = printable(word)
    for message in messages:
        texts = _texts(MessageToDict(message))
        assert shown in texts
        assert all(each.isprintable() for each in texts)
    assert dict(history.records[0].figures) == {shown: 1.0, "loss": 2.0}
    assert list(history.records[0].tables[shown].values) == [1.0]


def test_words_in_brackets_are_words_in_the_live_table() -> None:
    """rich reads [/x] as a mark and fails where nothing was opened."""
    history = JobHistory(summary=JobSummary(name="digits", main_figure="[/y]"))
    history.records.append(
        PhaseRecord(round=1, phase="train", result="[/x]", left_out=[LeftOut(silo="[red]a")])
    )
    console = Console(width=100, file=io.StringIO())
    console.print(table(history))
    output = cast(io.StringIO, console.file).getvalue()
    assert "[/x]" in output
    assert "[red]a" in output
    assert "[/y] before" in output
