"""Traces of rounds, off unless the settings name a collector. This module imports no tracing package.

No byte of a peer enters a trace, no trace is sent to a peer, and no attribute depends on data; a span's
duration may. Source: docs/tracing.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from chorale.observability.spans import Service, Span
from chorale.spec.fields import HIGHEST_PORT
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError
from strategies.expected import got

if TYPE_CHECKING:
    from chorale.observability.trace_export import Tracer

__all__ = ["Endpoint", "Service", "Span", "exporting", "span"]

_ENDPOINT = re.compile(
    r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?/[A-Za-z0-9._~/-]*"
)
_tracer: Tracer | None = None


def _checked_endpoint(value: object) -> str:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"expected a URL such as http://collector:4318/v1/traces, got {got(value)}")
    if found["port"] is not None and not 1 <= int(found["port"]) <= HIGHEST_PORT:
        raise ValueError(f"expected a URL with a port from 1 to {HIGHEST_PORT}, got {got(value)}")
    return found.string


Endpoint = Annotated[str, BeforeValidator(_checked_endpoint)]


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
            f"tracing_endpoint: no module {error.name}: tracing needs the extra otel: pip install '.[otel]'"
        ) from None
    tracer = _tracer = Tracer(endpoint, service=service, federation=federation, instance=instance)
    try:
        yield
    finally:
        _tracer = None
        tracer.close()
