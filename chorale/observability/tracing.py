"""Traces of rounds, off unless the settings name a collector. What is here imports no tracing package.

Coordinator and silos give a round the same trace and the same root without a word about it: both ids are
hashes of the job's digest and the round's number. No byte of a peer enters a trace, nothing of a trace is
sent to a peer, and no attribute depends on data; how long a span lasted may. Source: docs/tracing.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from chorale.spec.fields import HIGHEST_PORT
from chorale.spec.validation_errors import got
from chorale.transport.wire import PhaseKey
from crypto.encoding import digest
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.observability.trace_export import Tracer

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

_ENDPOINT = re.compile(
    r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?/[A-Za-z0-9._~/-]*"
)
_tracer: Tracer | None = None


class Service(StrEnum):
    COORDINATOR = "chorale-coordinator"
    SILO = "chorale-silo"


class Span(StrEnum):
    """Every name that a span may have."""

    # at the coordinator, each within the one above it
    ROUND = "round"
    PHASE = "phase"
    ATTEMPT = "attempt"
    # stages of an attempt: at the coordinator as long as it waits for silos, at a silo its own work
    WAITING = "waiting"
    SHARE = "share"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    RECOVER = "recover"
    APPLY = "apply"
    # at a silo alone
    DOWNLOAD = "download"
    TRAIN = "train"
    COMPUTE = "compute"
    MASK = "mask"
    UPLOAD = "upload"


def _checked_endpoint(value: object) -> str:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"expected a URL such as http://collector:4318/v1/traces, got {got(value)}")
    if found["port"] is not None and not 1 <= int(found["port"]) <= HIGHEST_PORT:
        raise ValueError(f"expected a URL with a port from 1 to {HIGHEST_PORT}, got {got(value)}")
    return found.string


Endpoint = Annotated[str, BeforeValidator(_checked_endpoint)]


def trace_id(job_digest: bytes, round: int) -> int:
    """The same at every party of the job. Source: docs/tracing.md."""
    return int.from_bytes(digest("trace", job_digest, round)[:TRACE_ID_BYTES])


def root_span_id(job_digest: bytes, round: int) -> int:
    """Of the coordinator's span over the whole round: what every party's first spans hang from."""
    return int.from_bytes(digest("trace-root", job_digest, round)[:SPAN_ID_BYTES])


@contextmanager
def span(name: Span, job_digest: bytes, round: int, key: PhaseKey | None = None) -> Iterator[None]:
    """Time what happens inside; nothing where tracing is off.

    key: phase and attempt, for every span but the round's own. Security: call it with a job and a round that
    this side has checked, never with what a peer merely said.
    """
    if _tracer is None:
        yield
        return
    with _tracer.span(name, job_digest, round, key):
        yield


@contextmanager
def exporting(endpoint: str | None, *, service: Service, federation: str, instance: str) -> Iterator[None]:
    """Send the spans of this process to a collector, by OTLP over HTTP, until the end of the context.

    Raises ConfigError where the packages of the extra `otel` are not there.
    """
    global _tracer
    if endpoint is None:
        yield
        return
    try:
        from chorale.observability.trace_export import Tracer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing_endpoint: no module {error.name}: tracing needs the extra otel, as in chorale[otel]"
        ) from None
    tracer = _tracer = Tracer(endpoint, service=service, federation=federation, instance=instance)
    try:
        yield
    finally:
        _tracer = None
        tracer.close()
