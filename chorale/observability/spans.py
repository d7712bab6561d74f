"""The names and ids of spans.

Coordinator and silos give a round the same trace and the same root without a word about it: both ids are
hashes of the job's digest and the round's number. Source: docs/tracing.md.
"""

from __future__ import annotations

from enum import StrEnum

from crypto.encoding import digest

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


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


def trace_id(job_digest: bytes, round: int) -> int:
    """The same at every party of the job. Source: docs/tracing.md."""
    return int.from_bytes(digest("trace", job_digest, round)[:TRACE_ID_BYTES])


def root_span_id(job_digest: bytes, round: int) -> int:
    """Of the coordinator's span over the whole round: what every party's first spans hang from."""
    return int.from_bytes(digest("trace-root", job_digest, round)[:SPAN_ID_BYTES])
