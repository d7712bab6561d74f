"""The sessions of this silo: messages of one go to its state machine, and its masked vector leaves.

Source: docs/protocol.md 5.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.masking.masks import Masker, Source
from crypto.session.silo_stages import LeftOut
from crypto.session.sum_check import SumCheck
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.inputs.input_cache import InputCache
from silo_agent.rounds.replies import Replies, fields_of
from silo_agent.rounds.running_tasks import RunningTask, RunningTasks
from silo_agent.rounds.session_handler import SessionHandler
from silo_agent.rounds.task_checks import TaskChecks

# what this silo does when a message of a session arrives
SPANS = {
    "cohort": Span.SHARE,
    "envelopes": Span.MASK,
    "survivors": Span.CONSISTENCY,
    "signatures": Span.UNMASK,
    "recover": Span.RECOVER,
}

log = get_logger("silo_agent.rounds.phase_sessions")


class Uploads(Protocol):
    """Masked vectors up, as silo_agent.connection.transfer has them."""

    def upload(
        self, key: PhaseKey, masker: Masker, source: Source, *, total_bytes: int
    ) -> Coroutine[Any, Any, None]: ...


class PhaseSessions:
    """Answers messages of sessions, each by the attempt that runs at its phase."""

    def __init__(
        self,
        tasks: RunningTasks,
        *,
        checks: TaskChecks,
        inputs: InputCache,
        transfers: Uploads,
        replies: Replies,
        metrics: SiloMetrics,
    ) -> None:
        self._tasks, self._checks, self._inputs = tasks, checks, inputs
        self._transfers, self._replies, self._metrics = transfers, replies, metrics

    def receive(self, message: pb.CoordinatorMessage) -> None:
        """One of SESSION_MESSAGES; answers go out through `replies`."""
        kind = message.WhichOneof("kind") or ""
        key = wire.key_from_wire(getattr(message, kind).key)
        try:
            session = self._session(key)
            with tracing.span(SPANS[kind], key.job_digest, key.round, key):
                reply = session.receive(message)
        except LeftOut as error:
            log.warning("left out of the session", **fields_of(key), reason=str(error))
            return self._replies.note("left out", key)
        except (PolicyRefusal, RemoteProtocolError) as error:
            return self._replies.refuse(key, error)
        running = self._tasks.of(key)
        assert running is not None
        if isinstance(reply, Masker):
            if running.upload is None or running.upload.done():  # else repeated, and under way
                # taken now: the session drops it as soon as it has the survivors
                check = session.sum_check
                running.upload = asyncio.get_running_loop().create_task(self._upload(running, reply, check))
        elif reply is not None:
            self._replies.send(reply)
            if reply.HasField("unmask_shares"):
                self._inputs.drop_phase(key)  # the ledger refuses the phase from now on
                running.prepared = None  # its memory is the next state's

    def _session(self, key: PhaseKey) -> SessionHandler:
        """The session that runs, or as the ledger has it from before a restart."""
        running = self._tasks.of(key)
        if running is not None and running.key == key and running.session is not None:
            return running.session
        if running is not None and running.key.attempt >= key.attempt:
            raise RemoteProtocolError("this silo has no such session", code=Refusal.STAGE)
        session = self._checks.resumed(key)
        log.info("session taken up from the ledger", **fields_of(key))
        self._tasks.put(RunningTask(key=key, task=pb.PhaseTask(), session=session))
        return session

    async def _upload(self, running: RunningTask, masker: Masker, check: SumCheck | None) -> None:
        started = time.monotonic()
        key, prepared = running.key, running.prepared
        try:
            if prepared is None:
                raise LocalProtocolError("session: a session from the ledger masks nothing")
            # durable before the first byte leaves; raises PolicyRefusal where nothing may
            await asyncio.to_thread(prepared.charge.spend, check)
            total_bytes = prepared.encoder.layout.total_bytes
            with tracing.span(Span.UPLOAD, key.job_digest, key.round, key):
                await self._transfers.upload(key, masker, prepared.encoder, total_bytes=total_bytes)
        except (PolicyRefusal, RemoteProtocolError) as error:
            if isinstance(error, PolicyRefusal) and running.session is not None:
                running.session.end()  # nothing of it may leave
            return self._replies.refuse(key, error)
        except Exception as error:  # the disk may be full; where that of the ledger is, nothing has left
            log.error("upload failed", **fields_of(key), error=type(error).__name__, reason=str(error))
            why = PolicyRefusal("the masked vector could not be sent", code=Refusal.INTERNAL)
            return self._replies.refuse(key, why)
        seconds = time.monotonic() - started
        self._metrics.mask_seconds.inc(seconds)
        log.info("masked vector sent", **fields_of(key), bytes=total_bytes, seconds=round(seconds, 3))
