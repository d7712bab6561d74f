"""What the agent does with each message of the coordinator: check, compute, join, answer.

The coordinator hears a code of the closed list; sentences stay in the log and the audit trail of
this silo. Source: docs/protocol.md 5, 7, 8, 9.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chorale.job import SignedJob
from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.runtime.audit import AuditLog
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1.session_pb2 import SessionKey
from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import Identity
from crypto.masking.masks import Masker, Source
from crypto.session.silo_session import SiloSession
from crypto.session.silo_stages import LeftOut
from silo_agent.ledger.budget import Charge
from silo_agent.ledger.reveals import Reveals
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.metrics import PhaseResult, SiloMetrics, phase_label
from silo_agent.objective import Cancelled
from silo_agent.rounds.attempt import SESSION_MESSAGES, Attempt, Upload
from silo_agent.rounds.inputs import Inputs, PhaseName
from silo_agent.rounds.job_book import JobBook
from silo_agent.rounds.phase_check import PhaseCheck
from silo_agent.rounds.phase_input import DataRefusal
from silo_agent.rounds.rosters import Rosters

MAX_LOGGED_SILOS = 200
MAX_NOTES = 100_000  # adverts and refusals in the audit trail of one run, about 30 MB: a flood fills no disk

# what this silo does when a message of a session arrives
SPANS = {
    "cohort": Span.SHARE,
    "envelopes": Span.MASK,
    "survivors": Span.CONSISTENCY,
    "signatures": Span.UNMASK,
    "recover": Span.RECOVER,
}

log = get_logger("silo_agent.rounds.participate")


class Carrier(Protocol):
    """Bulk transfers, as silo_agent.connection.transfer has them."""

    def download(self, *, job_digest: bytes, state_digest: bytes, size_bytes: int) -> Awaitable[Path]: ...

    def upload(
        self, key: PhaseKey, masker: Masker, source: Source, *, total_bytes: int
    ) -> Coroutine[Any, Any, None]: ...

    def forget(self, *, keep: frozenset[bytes]) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Work:
    """One attempt from its task to its end. attempt and charge are None until its input is ready."""

    key: PhaseKey
    task: pb.PhaseTask
    total_bytes: int = 0
    preparation: asyncio.Task[None] | None = None
    upload: asyncio.Task[None] | None = None
    attempt: Attempt | None = None
    charge: Charge | None = None

    @property
    def is_preparing(self) -> bool:
        return self.preparation is not None and not self.preparation.done()

    def end(self) -> None:
        for running in (self.preparation, self.upload):
            if running is not None:
                running.cancel()
        if self.attempt is not None:
            self.attempt.end()


class Participant:
    """Serves every job at once; one attempt per phase. `receive` never raises and never waits."""

    def __init__(
        self,
        *,
        identity: Identity,
        rosters: Rosters,
        jobs: JobBook,
        check: PhaseCheck,
        reveals: Reveals,
        inputs: Inputs,
        local: LocalStates,
        carrier: Carrier,
        audit: AuditLog,
        metrics: SiloMetrics,
        send: Callable[[pb.SiloMessage], None],
    ) -> None:
        self._identity = identity
        self._rosters = rosters
        self._jobs = jobs
        self._check = check
        self._reveals = reveals
        self._inputs = inputs
        self._local = local
        self._carrier = carrier
        self._audit = audit
        self._metrics = metrics
        self._send = send
        self._works: dict[PhaseName, _Work] = {}
        self._unapproved: dict[bytes, pb.PhaseTask] = {}
        self._last_outcome: dict[bytes, PhaseKey] = {}
        self._notes = 0
        self._handlers: dict[str, Callable[[pb.CoordinatorMessage], None]] = {
            "roster": self._on_roster,
            "job": self._on_job,
            "task": lambda message: self._on_task(message.task),
            "session_ended": self._on_session_ended,
            "outcome": self._on_outcome,
            "job_ended": self._on_job_ended,
            **dict.fromkeys(SESSION_MESSAGES, self._on_session_message),
        }

    @property
    def preparing(self) -> tuple[PhaseKey, ...]:
        """Attempts whose input is being fetched or computed."""
        return tuple(work.key for work in self._works.values() if work.is_preparing)

    def receive(self, message: pb.CoordinatorMessage) -> None:
        """Take one message; answers go out through `send`, now or later."""
        kind = message.WhichOneof("kind")
        handler = self._handlers.get(kind or "")
        if handler is None:
            return
        try:
            handler(message)
        except (PolicyRefusal, RemoteProtocolError) as error:
            self._count_refusal(error.code)
            log.warning("message refused", kind=kind, code=error.code.value, reason=str(error))
        except Exception:
            log.exception("message failed", kind=kind)  # a bug or a full disk; the session is over

    def poll(self) -> None:
        """Take up phases that waited for an approval which has been given since."""
        for job_digest, task in list(self._unapproved.items()):
            if self._jobs.is_approved(job_digest):
                self._on_task(task)

    async def close(self) -> None:
        """Stop everything; what the ledger holds is taken up by the next run."""
        running = [task for work in self._works.values() for task in (work.preparation, work.upload) if task]
        for work in self._works.values():
            work.end()
        self._works.clear()
        self._inputs.close()
        await asyncio.gather(*running, return_exceptions=True)

    # jobs and rosters

    def _on_roster(self, message: pb.CoordinatorMessage) -> None:
        roster = self._rosters.take(wire.roster_from_wire(message.roster.roster))
        self._metrics.roster_version.set(roster.version)
        self._rosters.check_own_entry(roster)

    def _on_job(self, message: pb.CoordinatorMessage) -> None:
        self._jobs.offer(SignedJob.from_wire(message.job.job), self._rosters.current)

    def _on_job_ended(self, message: pb.CoordinatorMessage) -> None:
        digest = wire.checked_digest(message.job_ended.job_digest, what="job digest")
        for name in [name for name in self._works if name[0] == digest]:
            self._works.pop(name).end()
        self._inputs.drop_job(digest)
        self._check.forget(digest)
        self._jobs.forget(digest)
        self._unapproved.pop(digest, None)
        self._last_outcome.pop(digest, None)
        self._carrier.forget(keep=self._wanted_states())
        self._reveals.blank_old_shares()
        ended = message.job_ended
        log.info("job ended", job=digest.hex()[:12], status=ended.status[:64], reason=ended.reason[:200])
        self._local.end(digest)

    # phases

    def _on_task(self, task: pb.PhaseTask) -> None:
        key = wire.key_from_wire(task.key)
        self._unapproved.pop(key.job_digest, None)  # asked again meanwhile, or for the next phase
        work = self._works.get(_name(key))
        if work is not None and work.key.attempt > key.attempt:
            return self._refuse(key, _stage(f"attempt {work.key.attempt} was begun already"))
        if work is not None and work.key == key and (work.is_preparing or work.attempt):
            return self._repeat(work, task)
        if work is not None:
            work.end()
        self._drop_unready(key)
        work = self._works[_name(key)] = _Work(key=key, task=task)
        work.preparation = asyncio.get_running_loop().create_task(self._prepare(work))
        self._carrier.forget(keep=self._wanted_states())

    def _repeat(self, work: _Work, task: pb.PhaseTask) -> None:
        """The coordinator lost sight of this silo and asks again."""
        if task != work.task:
            self._refuse(
                work.key, RemoteProtocolError("task: changed within one attempt", code=Refusal.TERMS)
            )
        elif work.attempt is not None and work.attempt.is_over:
            self._refuse(work.key, _stage("this silo's session is over"))
        elif work.attempt is not None:
            self._send(work.attempt.advertise())

    async def _prepare(self, work: _Work) -> None:
        key = work.key
        try:
            await self._try_to_join(work)
        finally:
            if work.attempt is None and self._works.get(_name(key)) is work:
                del self._works[_name(key)]

    async def _try_to_join(self, work: _Work) -> None:
        key = work.key
        try:
            await self._join(work)
        except DataRefusal as error:
            self._jobs.suspend(key.job_digest)  # durable before the coordinator hears of it
            self._refuse(key, error)
        except (PolicyRefusal, RemoteProtocolError) as error:
            if error.code is Refusal.JOB_NOT_APPROVED:
                self._unapproved[key.job_digest] = work.task
            self._refuse(key, error)
        except Cancelled:
            log.info("input given up", **_fields(key))
        except Exception as error:
            log.error("input failed", **_fields(key), error=type(error).__name__, reason=str(error))
            self._refuse(key, PolicyRefusal("the input could not be computed", code=Refusal.INTERNAL))

    def _drop_unready(self, key: PhaseKey) -> None:
        """A job has one phase at a time: who asks for the next has given up the one before.

        Security: else tasks fill this machine with states, and get several refusals that tell.
        """
        for name, work in list(self._works.items()):
            if name[0] == key.job_digest and name != _name(key) and work.attempt is None:
                self._works.pop(name).end()
                self._inputs.drop_phase(work.key)

    async def _join(self, work: _Work) -> None:
        roster, job = self._check.job(work.key)
        size_bytes = self._check.state_bytes(work.task)
        with _span(Span.DOWNLOAD, work.key):
            path = await self._carrier.download(
                job_digest=work.key.job_digest, state_digest=work.task.state_digest, size_bytes=size_bytes
            )
        request = await asyncio.to_thread(self._check.request, work.key, work.task, job, roster, path)
        with _span(Span.TRAIN if work.key.kind == "train" else Span.COMPUTE, work.key):
            prepared = await self._inputs.get(request)
        session = self._check.session(request.terms, roster)
        work.total_bytes = request.terms.layout.total_bytes
        work.charge = prepared.charge
        work.attempt = Attempt(work.key, session, policy=self._check.policy, source=prepared.encoder)
        self._send(work.attempt.advertise())
        self._note("advertised", work.key)
        self._drop_older(work.key)
        if (label := phase_label(work.key.kind)) is not None:
            self._metrics.sessions.labels(phase=label).inc()

    def _drop_older(self, key: PhaseKey) -> None:
        """Rounds never go back once this silo adverted for a later one."""
        for name in [name for name in self._works if name[0] == key.job_digest and name[1] < key.round]:
            self._works.pop(name).end()
        self._inputs.drop_older(key)
        self._carrier.forget(keep=self._wanted_states())

    # sessions

    def _on_session_message(self, message: pb.CoordinatorMessage) -> None:
        kind = message.WhichOneof("kind") or ""
        key = wire.key_from_wire(getattr(message, kind).key)
        try:
            attempt = self._attempt(key)
            with _span(SPANS[kind], key):
                reply = attempt.receive(message)
        except LeftOut as error:
            log.warning("left out of the session", **_fields(key), reason=str(error))
            return self._note("left out", key)
        except (PolicyRefusal, RemoteProtocolError) as error:
            return self._refuse(key, error)
        self._answer(key, reply)

    def _attempt(self, key: PhaseKey) -> Attempt:
        work = self._works.get(_name(key))
        if work is not None and work.key == key and work.attempt is not None:
            return work.attempt
        if work is not None and work.key.attempt >= key.attempt:
            raise _stage("this silo has no such session")
        resumed = self._resumed(key)
        self._works[_name(key)] = _Work(key=key, task=pb.PhaseTask(), attempt=resumed)
        return resumed

    def _resumed(self, key: PhaseKey) -> Attempt:
        """The session as the ledger has it from before a restart."""
        recorded = self._reveals.recorded(key.job_digest, key.round, key.phase)
        if recorded is None or recorded[0].attempt != key.attempt:
            raise _stage("this silo has no such session")
        if not self._jobs.is_approved(key.job_digest):
            raise PolicyRefusal("the job is not approved here any more", code=Refusal.JOB_NOT_APPROVED)
        pending, is_revealed = recorded
        session = SiloSession.resume(
            pending, revealed=is_revealed, identity=self._identity, ledger=self._reveals
        )
        log.info("session taken up from the ledger", **_fields(key))
        return Attempt(key, session, policy=self._check.policy, source=None)

    def _answer(self, key: PhaseKey, reply: pb.SiloMessage | Upload | None) -> None:
        if isinstance(reply, Upload):
            work = self._works[_name(key)]
            work.upload = asyncio.get_running_loop().create_task(self._upload(work, reply))
            return
        if reply is None:
            return
        self._send(reply)
        if reply.HasField("unmask_shares"):
            self._inputs.drop_phase(key)  # the ledger refuses the phase from now on

    async def _upload(self, work: _Work, upload: Upload) -> None:
        started = time.monotonic()
        try:
            await self._spend(work)
            with _span(Span.UPLOAD, work.key):
                await self._carrier.upload(
                    work.key, upload.masker, upload.source, total_bytes=work.total_bytes
                )
        except Exception as error:  # the disk of the ledger may be full; nothing has left then
            log.warning("upload failed", **_fields(work.key), error=type(error).__name__, reason=str(error))
            if work.attempt is not None:
                work.attempt.end()
            return
        seconds = time.monotonic() - started
        self._metrics.mask_seconds.inc(seconds)
        log.info("masked vector sent", **_fields(work.key), bytes=work.total_bytes, seconds=round(seconds, 3))

    async def _spend(self, work: _Work) -> None:
        """Durable before the first byte leaves. Raises PolicyRefusal where nothing may."""
        if work.charge is None:
            raise LocalProtocolError("session: a vector without a charge")
        await asyncio.to_thread(work.charge.spend)

    def _on_session_ended(self, message: pb.CoordinatorMessage) -> None:
        key = wire.key_from_wire(message.session_ended.key)
        work = self._works.get(_name(key))
        if work is not None and work.key == key:
            self._works.pop(_name(key)).end()
        log.info("session ended", **_fields(key), reason=message.session_ended.reason[:64])

    def _on_outcome(self, message: pb.CoordinatorMessage) -> None:
        record = message.outcome.record
        ended = SessionKey(job_digest=record.job_digest, round=record.round, phase=record.phase)
        key = wire.key_from_wire(ended)
        if not self._jobs.has(key.job_digest):
            return  # of no concern here
        result = self._result(record.result, tuple(record.cohort))
        self._local.settle(key, is_applied=result is PhaseResult.APPLIED)
        last = self._last_outcome.get(key.job_digest)
        if last is not None and (key == last or key.round < last.round):
            return  # told again because this silo was away
        self._last_outcome[key.job_digest] = key
        work = self._works.pop(_name(key), None)
        if work is not None:
            work.end()
        self._check.note_outcome(key, result)
        left_out = [f"{out.silo} ({out.stage}: {out.reason})" for out in record.left_out[:MAX_LOGGED_SILOS]]
        log.info(
            "phase ended",
            job=key.job_digest.hex()[:12],
            round=key.round,
            phase=key.phase,
            result=result.value,
            reason=record.reason[:64],
            cohort=len(record.cohort),
            left_out=left_out,
            data_share=round(record.data_share, 4),
        )
        self._count_outcome(key, result, record.data_share)

    def _result(self, result: str, cohort: tuple[str, ...]) -> PhaseResult:
        if result != PhaseResult.APPLIED.value:
            return PhaseResult.USED_UP
        return PhaseResult.APPLIED if self._identity.member.name in cohort else PhaseResult.LEFT_OUT

    def _count_outcome(self, key: PhaseKey, result: PhaseResult, data_share: float) -> None:
        if (label := phase_label(key.kind)) is not None:
            self._metrics.rounds.labels(phase=label, result=result.value).inc()
        if key.kind == "train":
            self._metrics.data_share.set(data_share)

    # refusing

    def _refuse(self, key: PhaseKey, error: PolicyRefusal | RemoteProtocolError) -> None:
        """The code to the coordinator; the sentence to this silo's log and audit trail."""
        self._count_refusal(error.code)
        log.warning("refused", **_fields(key), code=error.code.value, reason=str(error))
        self._note("refused", key, code=error.code.value, reason=str(error))
        self._send(pb.SiloMessage(refused=wire.refused_to_wire(error.code, key)))

    def _count_refusal(self, code: Refusal) -> None:
        self._metrics.refusals.labels(reason=code.value).inc()

    def _note(self, event: str, key: PhaseKey, **fields: str) -> None:
        if self._notes >= MAX_NOTES:
            return  # reveals are told elsewhere, and without end
        self._notes += 1
        self._audit.append(
            event, job=key.job_digest.hex(), round=key.round, phase=key.phase, attempt=key.attempt, **fields
        )

    def _wanted_states(self) -> frozenset[bytes]:
        return frozenset(work.task.state_digest for work in self._works.values() if work.is_preparing)


def _span(name: Span, key: PhaseKey) -> AbstractContextManager[None]:
    return tracing.span(name, key.job_digest, key.round, key)


def _name(key: PhaseKey) -> PhaseName:
    return key.job_digest, key.round, key.phase


def _stage(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(why, code=Refusal.STAGE)


def _fields(key: PhaseKey) -> dict[str, Any]:
    return {
        "job": key.job_digest.hex()[:12],
        "round": key.round,
        "phase": key.phase,
        "attempt": key.attempt,
    }
