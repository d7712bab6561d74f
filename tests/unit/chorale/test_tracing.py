"""Spans of one process: their ids, what an error leaves in them, and a collector that is not there."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from hashlib import sha256

import pytest

from chorale.observability import logs, spans, trace_export, tracing
from chorale.observability.tracing import Service, Span
from chorale.transport.wire import PhaseKey
from crypto.encoding import encode
from tests.support.collector import Collector, collecting

JOB = bytes(range(32))
KEY = PhaseKey(job_digest=JOB, round=7, phase="train", attempt=2)
ENDLESS = 1 << 29  # far beyond what two sockets hold
NO_COLLECTOR = "http://127.0.0.1:9/v1/traces"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def exporting(endpoint: str) -> object:
    return tracing.exporting(endpoint, service=Service.SILO, federation="test", instance="silo-0")


def test_ids_are_those_of_the_documentation() -> None:
    assert spans.trace_id(JOB, 7).to_bytes(16) == sha256(encode("trace", JOB, 7)).digest()[:16]
    assert spans.root_span_id(JOB, 7).to_bytes(8) == sha256(encode("trace-root", JOB, 7)).digest()[:8]


def test_an_error_within_a_span_leaves_nothing_in_it(collector: Collector) -> None:
    with (
        exporting(collector.endpoint),
        pytest.raises(ValueError, match="patient-x"),
        tracing.span(Span.TRAIN, JOB, 7, KEY),
    ):
        raise ValueError("loss 0.25 of patient-x")
    (one,) = collector.spans
    assert one.span.name == "train"
    assert (list(one.span.events), one.span.status.ByteSize()) == ([], 0)
    assert "patient-x" not in str(one)  # no number: times and ids hold any
    assert one.span.parent_span_id == spans.root_span_id(JOB, 7).to_bytes(8)


def test_spans_of_two_rounds_at_once_do_not_mix(collector: Collector) -> None:
    with (
        exporting(collector.endpoint),
        tracing.span(Span.ROUND, JOB, 1),
        tracing.span(Span.PHASE, JOB, 2, KEY),
    ):
        pass
    traces = {one.span.name: int.from_bytes(one.trace) for one in collector.spans}
    assert traces == {"round": spans.trace_id(JOB, 1), "phase": spans.trace_id(JOB, 2)}


def test_a_round_that_goes_on_in_the_next_process_is_told_once(collector: Collector) -> None:
    for error in (asyncio.CancelledError, KeyError):
        with (
            exporting(collector.endpoint),
            pytest.raises(error),
            tracing.span(Span.ROUND, JOB, 7),
            tracing.span(Span.PHASE, JOB, 7, KEY),
        ):
            raise error
    assert sorted(one.span.name for one in collector.spans) == ["phase", "phase", "round"]


def test_an_answer_without_an_end_is_not_read() -> None:
    """In control, all of a short one leaves the collector."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    for size, is_taken in ((4, True), (ENDLESS, False)):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as answering:
            sent = answering.submit(answered, server, answer % size, size)
            with (
                exporting(f"http://127.0.0.1:{server.getsockname()[1]}/"),
                tracing.span(Span.TRAIN, JOB, 7, KEY),
            ):
                pass
            assert (sent.result() == size) == is_taken


def answered(server: socket.socket, start: bytes, size: int) -> int:
    """How much of an answer of this size could be sent before the line was closed."""
    line, _ = server.accept()
    sent = 0
    with line, suppress(OSError):
        line.recv(1 << 16)
        line.sendall(start)
        while sent < size:
            sent += line.send(bytes(min(size - sent, 1 << 20)))
    return sent


def test_a_collector_that_is_not_there_costs_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace_export, "PATIENCE_SECONDS", 0.1)
    logs.configure()
    with exporting(NO_COLLECTOR):
        for _ in range(trace_export.BATCH_SPANS + 1):  # two deliveries
            with tracing.span(Span.TRAIN, JOB, 7, KEY):
                pass
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["tracing", "traces not delivered"]
    assert tracing.span(Span.TRAIN, JOB, 7, KEY).__enter__() is None


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://collector/x", "http://olga:x@collector/", "", 4318]
)
def test_an_endpoint_is_a_whole_url(endpoint: object) -> None:
    with pytest.raises(ValueError, match="expected a URL such as http://collector:4318/v1/traces"):
        tracing._checked_endpoint(endpoint)


@pytest.mark.parametrize(
    ("port", "is_one"), [("0", False), ("65536", False), ("99999", False), ("65535", True)]
)
def test_the_port_of_an_endpoint_exists(port: str, is_one: bool) -> None:
    endpoint = f"http://collector:{port}/v1/traces"
    with nullcontext() if is_one else pytest.raises(ValueError, match="port from 1 to 65535, got 'http"):
        assert tracing._checked_endpoint(endpoint) == endpoint
