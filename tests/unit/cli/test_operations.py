"""Streams that are read aside: in order, to their end, with what they raise; and open to an interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import cli.job.commands
import cli.job.listing
import cli.job.options
from chorale.v1 import operations_pb2
from client.operations import read_aside


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
    same = {"connected": True, "software_version": "0.1.0", "software_digest": b"\xaa" * 32}
    reply = operations_pb2.ListSilosReply(
        roster_version=4,
        software_version="0.1.0",
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
    head, a, b, c = done.output.splitlines()
    assert head == f"roster version 4, the coordinator runs 0.1.0, sha256:{'aa' * 32}"
    assert a.endswith(f"runs 0.1.0, sha256:{'aa' * 32}")
    assert b.endswith(f"runs 0.1.0, sha256:{'bb' * 32}, not the coordinator's")
    assert c.endswith("runs ?, sha256:none, not the coordinator's")
