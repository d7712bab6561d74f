"""Spans to a collector through the OpenTelemetry SDK. Imported where tracing is on, and nowhere else.

A collector that is slow or gone costs spans and nothing else: they wait in a queue of fixed length.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from chorale.observability.logs import get_logger
from chorale.observability.spans import SPAN_ID_BYTES, TRACE_ID_BYTES, Service, Span, root_span_id, trace_id
from chorale.transport.wire import PhaseKey

MAX_QUEUED = 2048
BATCH_SPANS = 512
DELAY_MS = 2_000.0
PATIENCE_SECONDS = 5.0  # of one delivery, and of a process that ends while the collector is gone

JOB_ID_DIGITS = 12  # as in logs and commands

_wanted: ContextVar[tuple[int, int] | None] = ContextVar("wanted ids", default=None)

log = get_logger("tracing")


class Tracer:
    """Opens spans and delivers them from a thread of its own, until it is closed."""

    def __init__(self, endpoint: str, *, service: Service, federation: str, instance: str) -> None:
        # its words would come between the JSON lines; the delivery below says what matters
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = {
            "service.name": service.value,
            "service.namespace": federation,
            "service.instance.id": instance,
        }
        self._delivery = _Delivery(endpoint)
        self._provider = TracerProvider(
            resource=Resource(resource), sampler=ALWAYS_ON, id_generator=_Ids(), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._delivery,
                max_queue_size=MAX_QUEUED,
                max_export_batch_size=BATCH_SPANS,
                schedule_delay_millis=DELAY_MS,
            )
        )
        self._tracer = self._provider.get_tracer("chorale")
        log.info("tracing", endpoint=endpoint)

    @contextmanager
    def span(self, name: Span, job_digest: bytes, round: int, key: PhaseKey | None) -> Iterator[None]:
        """A span of the round's trace: below the one that is open here, else below the round's root."""
        ids = trace_id(job_digest, round), root_span_id(job_digest, round)
        # all that a span says besides its name and its times
        job_id = job_digest.hex()[:JOB_ID_DIGITS]
        attributes: dict[str, str | int] = {"chorale.job": job_id, "chorale.round": round}
        if key is not None:
            attributes |= {"chorale.phase": key.phase, "chorale.attempt": key.attempt}
        wanted = _wanted.set(ids if name is Span.ROUND else None)
        try:
            opened = self._tracer.start_span(name.value, context=_parent(name, *ids), attributes=attributes)
        finally:
            _wanted.reset(wanted)
        goes_on = False
        try:
            # no exception is recorded: its message may reveal data
            with trace.use_span(opened, record_exception=False, set_status_on_exception=False):
                yield
        except asyncio.CancelledError:
            goes_on = name is Span.ROUND  # in the coordinator's next process, under the same ids
            raise
        finally:
            if not goes_on:
                opened.end()

    def close(self) -> None:
        """Deliver what waits, if the collector takes it."""
        self._delivery.is_closing = True
        self._provider.shutdown()


class _Ids(IdGenerator):
    """A round's ids for its own span, else random ones; never from the generator that training uses."""

    def generate_trace_id(self) -> int:
        wanted = _wanted.get()
        return secrets.randbits(8 * TRACE_ID_BYTES) | 1 if wanted is None else wanted[0]

    def generate_span_id(self) -> int:
        wanted = _wanted.get()
        return secrets.randbits(8 * SPAN_ID_BYTES) | 1 if wanted is None else wanted[1]


class _Session(requests.Session):
    """Reads an answer's status and headers alone: a body would be held in memory."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        response = super().send(request, **{**options, "stream": True})
        response.close()
        return response


class _Delivery(SpanExporter):
    """OTLP over HTTP, straight to the collector: no proxy of the environment is asked."""

    def __init__(self, endpoint: str) -> None:
        session = _Session()
        session.trust_env = False
        self.is_closing = False
        self._endpoint = endpoint
        self._is_failing = False
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=PATIENCE_SECONDS, session=session)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_closing and self._is_failing:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing != self._is_failing:
            self._is_failing = is_failing
            if is_failing:
                log.warning("traces not delivered", endpoint=self._endpoint)
            else:
                log.info("traces delivered again", endpoint=self._endpoint)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _parent(name: Span, trace_id: int, root_id: int) -> Context:
    if name is Span.ROUND:
        return Context()
    here = trace.get_current_span()
    if here.get_span_context().trace_id == trace_id:
        return trace.set_span_in_context(here)
    root = trace.SpanContext(
        trace_id, root_id, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(root), Context())
