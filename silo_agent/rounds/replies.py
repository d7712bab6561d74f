"""What leaves this silo in answer to the coordinator, and what people here read of it.

The coordinator learns a code of the closed list; sentences stay in the log and the audit trail of this silo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal, RemoteProtocolError
from silo_agent.metrics import SiloMetrics

MAX_NOTES = 100_000  # adverts and refusals in the audit trail of one run, about 30 MB: a flood fills no disk

log = get_logger("silo_agent.rounds.replies")


class Replies:
    """send: takes one message for the coordinator, without waiting."""

    def __init__(
        self, send: Callable[[pb.SiloMessage], None], *, audit: AuditLog, metrics: SiloMetrics
    ) -> None:
        self.send = send
        self._audit, self._metrics = audit, metrics
        self._notes = 0

    def refuse(self, key: PhaseKey, error: PolicyRefusal | RemoteProtocolError) -> None:
        """The code and the rule to the coordinator; the sentence to this silo's log and audit trail."""
        self._metrics.refusals.labels(reason=error.code.value).inc()
        log.warning("refused", **fields_of(key), code=error.code.value, reason=str(error))
        self.note("refused", key, code=error.code.value, reason=str(error))
        self.send(pb.SiloMessage(refused=wire.refused_to_wire(wire.refused_of(error), key)))

    def note(self, event: str, key: PhaseKey, *, is_flushed: bool = True, **fields: str) -> None:
        """In the audit trail, as far as there is room."""
        self._notes += 1
        if self._notes > MAX_NOTES:
            return  # reveals have entries of their own, without end
        append = self._audit.append if is_flushed else self._audit.append_unflushed
        try:
            append(event, **{**fields_of(key), "job": key.job_digest.hex()}, **fields)
        except OSError as error:  # a full disk; the coordinator hears of a refusal all the same
            log.warning("not noted", entry=event, error=type(error).__name__, reason=str(error))


def fields_of(key: PhaseKey) -> dict[str, Any]:
    """Of a line in the log."""
    return {
        "job": key.job_digest.hex()[:12],
        "round": key.round,
        "phase": key.phase,
        "attempt": key.attempt,
    }
