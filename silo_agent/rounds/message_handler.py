"""Where each message of the coordinator is answered: check, compute, join, answer.

The coordinator is told a code of the closed list; sentences stay in the log and the audit trail of
this silo. Source: docs/protocol.md 5, 7, 8, 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from chorale.job import SignedJob
from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.runtime.audit import AuditLog
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1.session_pb2 import Abandoned, SessionKey
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session.messages import RevealedSum
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import PhaseEnd, SiloMetrics, phase_label
from silo_agent.rounds.inputs.input_cache import InputCache, phase_name
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.phase_sessions import PhaseSessions, Uploads
from silo_agent.rounds.replies import Replies, fields_of
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.running_tasks import RunningTask, RunningTasks
from silo_agent.rounds.session_handler import SESSION_MESSAGES
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from silo_agent.training.objective import Cancelled
from silo_agent.training.phase_input import DataRefusal

MAX_LOGGED_SILOS = 200
MAX_SUM_SECONDS = 120.0  # in which nothing moves: no longer does a task wait for this silo's own next state

# refusals that people at this silo may bring to an end
FOR_PEOPLE_HERE = (
    Refusal.JOB_NOT_APPROVED,
    Refusal.REJECTED,
    Refusal.SETTINGS,
    Refusal.CONFIGURATION,
)

log = get_logger("silo_agent.rounds.message_handler")


class Transfers(Uploads, Protocol):
    """Global states down, too."""

    moved_bytes: int

    def download(
        self, *, job_digest: bytes, digest: bytes, size_bytes: int, target: Path
    ) -> Awaitable[None]: ...


class MessageHandler:
    """Serves every job at once; one attempt per phase. `receive` never raises and never waits."""

    def __init__(
        self,
        *,
        rosters: Rosters,
        jobs: OfferedJobs,
        checks: TaskChecks,
        inputs: InputCache,
        local: LocalStates,
        chain: StateChain,
        sums: RevealedSums,
        files: StateFiles,
        transfers: Transfers,
        audit: AuditLog,
        metrics: SiloMetrics,
        send: Callable[[pb.SiloMessage], None],
    ) -> None:
        self._rosters = rosters
        self._jobs = jobs
        self._checks = checks
        self._inputs = inputs
        self._local = local
        self._chain = chain
        self._sums = sums
        self._files = files
        self._transfers = transfers
        self._audit = audit
        self._metrics = metrics
        self._replies = Replies(send, audit=audit, metrics=metrics)
        self._tasks = RunningTasks()
        self._sessions = PhaseSessions(
            self._tasks,
            checks=checks,
            inputs=inputs,
            transfers=transfers,
            replies=self._replies,
            metrics=metrics,
        )
        self._summing: dict[PhaseKey, asyncio.Task[None]] = {}  # revealed sums that are being checked
        # tasks that people here can bring on, and the version of their files then
        self._waiting: dict[bytes, tuple[pb.PhaseTask, int]] = {}
        self._last_outcome: dict[bytes, PhaseKey] = {}
        self._handlers: dict[str, Callable[[pb.CoordinatorMessage], object]] = {
            "roster": self._on_roster,
            "job": lambda message: self._jobs.offer(
                SignedJob.from_wire(message.job.job), self._rosters.current
            ),
            "task": lambda message: self._on_task(message.task),
            "revealed_sum": self._on_revealed_sum,
            "abandon": self._on_abandon,
            "session_ended": self._on_session_ended,
            "outcome": self._on_outcome,
            "job_ended": self._on_job_ended,
            **dict.fromkeys(SESSION_MESSAGES, self._sessions.receive),
        }

    @property
    def preparing(self) -> tuple[PhaseKey, ...]:
        """Attempts whose input is being fetched or computed."""
        return tuple(running.key for running in self._tasks if running.is_preparing)

    @property
    def roster_version(self) -> int:
        """The newest that this silo ever accepted; 0 before the first."""
        return self._rosters.version

    @property
    def is_idle(self) -> bool:
        """Whether no phase runs here."""
        return not self._tasks and not self._summing

    def receive(self, message: pb.CoordinatorMessage) -> None:
        """Take one message; answers go out through `send`, now or later."""
        kind = message.WhichOneof("kind")
        handler = self._handlers.get(kind or "")
        if handler is None:
            return
        try:
            handler(message)
        except (PolicyRefusal, RemoteProtocolError) as error:
            self._metrics.refusals.labels(reason=error.code.value).inc()
            log.warning("message refused", kind=kind, code=error.code.value, reason=str(error))
        except Exception:
            log.exception("message failed", kind=kind)  # a bug or a full disk; the session is over

    def poll(self) -> None:
        """Take up phases whose job was decided on, or this silo's files changed, since they were refused;
        tell who decided what. The first one, of a line that came about, begins to load training."""
        self._inputs.warm_ahead()
        try:
            self._jobs.tell_decisions(self._audit)
            self._checks.files.look()
        except OSError as error:  # a full disk; the next heartbeat tries again
            log.warning("decision not told", error=type(error).__name__, reason=str(error))
        for job_digest, (task, version) in list(self._waiting.items()):
            if self._checks.files.version != version or self._jobs.is_decided_since(job_digest):
                self._on_task(task)

    async def close(self) -> None:
        """Stop everything; what the ledger holds is taken up by the next run."""
        ending = [task for each in self._tasks for task in (each.preparation, each.upload) if task]
        for task in self._summing.values():
            task.cancel()
        ending += self._summing.values()
        self._tasks.end_where(lambda _: True)
        self._inputs.close()
        self._checks.close()
        await asyncio.gather(*ending, return_exceptions=True)

    # jobs and rosters

    def _on_roster(self, message: pb.CoordinatorMessage) -> None:
        roster = self._rosters.take(
            wire.signed_body_from_wire(message.roster.roster, max_bytes=wire.MAX_ROSTER_BYTES)
        )
        self._metrics.roster_version.set(roster.version)
        self._rosters.check_own_entry(roster)

    def _on_job_ended(self, message: pb.CoordinatorMessage) -> None:
        digest = wire.checked_digest(message.job_ended.job_digest, what="job digest")
        self._tasks.end_where(lambda each: each.is_of(digest))
        for key in [key for key in self._summing if key.job_digest == digest]:
            summing = self._summing.pop(key)
            summing.add_done_callback(lambda _: self._forget_states())  # what came of it is kept until then
            summing.cancel()
        self._inputs.drop_job(digest)
        self._checks.forget(digest)
        is_news = self._jobs.end(digest)
        self._waiting.pop(digest, None)
        self._last_outcome.pop(digest, None)
        self._forget_states()
        ended = message.job_ended
        if is_news:
            log.info("job ended", job=digest.hex()[:12], status=ended.status[:64], reason=ended.reason[:200])
        self._local.end(digest)

    # phases

    def _on_task(self, task: pb.PhaseTask) -> None:
        key = wire.key_from_wire(task.key)
        self._waiting.pop(key.job_digest, None)  # asked again meanwhile, or for the next phase
        running = self._tasks.of(key)
        if running is not None and running.key.attempt > key.attempt:
            why = f"attempt {running.key.attempt} was begun already"
            self._replies.refuse(key, RemoteProtocolError(why, code=Refusal.STAGE))
            return
        if running is not None and running.key == key and (running.is_preparing or running.session):
            # the coordinator lost the connection and sends the task again
            if task != running.task:
                self._replies.refuse(
                    key, RemoteProtocolError("task: changed within one attempt", code=Refusal.TERMS)
                )
            elif running.session is not None and running.session.is_over:
                self._replies.refuse(
                    key, RemoteProtocolError("this silo's session is over", code=Refusal.STAGE)
                )
            elif running.session is not None:
                self._replies.send(running.session.advertise())
            return
        if running is not None:
            running.end()
        # A job has one phase at a time: a task for the next gives up the one before.
        # Security: else tasks fill this machine with states, and get several refusals that tell.
        for other in self._tasks.end_where(
            lambda each: (
                each.is_of(key.job_digest)
                and each.session is None
                and phase_name(each.key) != phase_name(key)
            )
        ):
            self._inputs.drop_phase(other.key)
        running = self._tasks.put(RunningTask(key=key, task=task))
        running.preparation = asyncio.get_running_loop().create_task(self._prepare(running))
        self._forget_states()

    async def _prepare(self, running: RunningTask) -> None:
        key = running.key
        try:
            await self._join(running)
        except DataRefusal as error:
            self._jobs.suspend(key.job_digest)  # durable before the coordinator is told
            self._replies.refuse(key, error)
        except (PolicyRefusal, RemoteProtocolError) as error:
            if error.code in FOR_PEOPLE_HERE:
                self._waiting[key.job_digest] = (running.task, self._checks.files.version)
            self._replies.refuse(key, error)
        except Cancelled:
            log.info("input given up", **fields_of(key))
        except Exception as error:
            log.error("input failed", **fields_of(key), error=type(error).__name__, reason=str(error))
            failed = PolicyRefusal("the input could not be computed", code=Refusal.INTERNAL)
            self._replies.refuse(key, failed)
        finally:
            if running.session is None:
                self._tasks.drop(running)

    async def _join(self, running: RunningTask) -> None:
        key, task = running.key, running.task
        self._audit.flush()  # of phases whose outcome the coordinator never told
        roster, job = self._checks.job(key, task)
        await self._inputs.warm_up(job)
        # slower than t others: this silo computes the task's state itself, rather than fetch it, too
        summing = {task for other, task in self._summing.items() if self._chain.is_open(other, job)}
        while summing:
            before = self._transfers.moved_bytes
            _, summing = await asyncio.wait(summing, timeout=MAX_SUM_SECONDS)
            if self._transfers.moved_bytes == before and not self._sums.is_computing:
                break  # a coordinator can draw it out
        await asyncio.to_thread(self._chain.accept, key, task, job, roster=roster)
        path = self._files.state(task.state_digest)
        drawn = await self._checks.first_state(key, task, job)
        if drawn is not None:
            await asyncio.to_thread(self._files.take, drawn, task.state_digest)
        with tracing.span(Span.DOWNLOAD, key.job_digest, key.round, key):
            await self._transfers.download(
                job_digest=key.job_digest, digest=task.state_digest, size_bytes=task.state_bytes, target=path
            )
        terms, request = await asyncio.to_thread(self._checks.request, key, task, job, roster, path)
        computing = Span.TRAIN if key.kind == "train" else Span.COMPUTE
        with tracing.span(computing, key.job_digest, key.round, key):
            prepared = await self._inputs.get(request, state_digest=terms.state_digest)
        session = self._checks.session(terms, roster)
        running.prepared, running.own_steps = prepared, prepared.own_steps
        running.session = self._checks.handler(key, session, begun=(job, terms))
        self._replies.send(running.session.advertise())
        self._replies.note("advertised", key, is_flushed=False)
        # rounds never go back once this silo adverted for a later one
        self._tasks.end_where(lambda each: each.is_of(key.job_digest) and each.key.round < key.round)
        self._inputs.drop_older(key)
        self._forget_states()
        if (label := phase_label(key.kind)) is not None:
            self._metrics.sessions.labels(phase=label).inc()

    # the end of a phase

    def _on_revealed_sum(self, message: pb.CoordinatorMessage) -> None:
        key = wire.key_from_wire(message.revealed_sum.key)
        revealed = wire.from_coordinator(message)
        assert isinstance(revealed, RevealedSum)
        if key in self._summing:
            return  # repeated after a reconnection; its answer is under way
        self._summing[key] = asyncio.get_running_loop().create_task(self._answer_sum(key, revealed))

    async def _answer_sum(self, key: PhaseKey, revealed: RevealedSum) -> None:
        try:
            with tracing.span(Span.APPLY, key.job_digest, key.round, key):
                statement = await self._sums.answer(key, revealed, own_steps=self._own_steps(key))
        except (PolicyRefusal, RemoteProtocolError) as error:
            self._replies.refuse(key, error)
        except Exception as error:  # the disk may be full; the coordinator asks again
            log.error("sum not answered", **fields_of(key), error=type(error).__name__, reason=str(error))
            self._replies.refuse(key, PolicyRefusal("the sum could not be checked", code=Refusal.INTERNAL))
        else:
            self._replies.send(wire.to_coordinator("next_state", statement, key))
        finally:
            if self._summing.get(key) is asyncio.current_task():  # else the job has ended meanwhile
                del self._summing[key]
        self._forget_states()

    def _own_steps(self, key: PhaseKey) -> Mapping[str, float]:
        """How far this silo's own input would move the model; it is not known after a restart."""
        running = self._tasks.of(key)
        return {} if running is None else running.own_steps

    def _on_abandon(self, message: pb.CoordinatorMessage) -> None:
        """The coordinator has given a phase up, and other silos want to know that it has no sum."""
        key = wire.key_from_wire(message.abandon.key)
        try:
            statement, certificate = self._checks.abandoned(key)
        except (PolicyRefusal, RemoteProtocolError) as error:
            return self._replies.refuse(key, error)
        self._tasks.end(key)
        self._inputs.drop_phase(key)
        self._replies.note("abandoned", key)
        signed = wire.signed_body_to_wire(statement)
        abandoned = Abandoned(key=message.abandon.key, certificate=certificate, statement=signed)
        self._replies.send(pb.SiloMessage(abandoned=abandoned))

    def _on_session_ended(self, message: pb.CoordinatorMessage) -> None:
        key = wire.key_from_wire(message.session_ended.key)
        running = self._tasks.of(key)
        if running is not None and running.key == key:
            self._tasks.end(key)
        log.info("session ended", **fields_of(key), reason=message.session_ended.reason[:64])

    def _on_outcome(self, message: pb.CoordinatorMessage) -> None:
        record = message.outcome.record
        ended = SessionKey(job_digest=record.job_digest, round=record.round, phase=record.phase)
        key = wire.key_from_wire(ended)
        if not self._jobs.has(key.job_digest):
            return  # a job that this silo does not serve
        end = PhaseEnd.of(record, self._jobs.silo)
        last = self._last_outcome.get(key.job_digest)
        if last is not None and (key == last or key.round < last.round):
            return  # repeated because this silo was away
        self._last_outcome[key.job_digest] = key
        self._tasks.end(key)
        self._checks.note_outcome(key, end)
        left_out = [f"{out.silo} ({out.stage}: {out.reason})" for out in record.left_out[:MAX_LOGGED_SILOS]]
        log.info(
            "phase ended",
            job=key.job_digest.hex()[:12],
            round=key.round,
            phase=key.phase,
            result=end.value,
            reason=record.reason[:64],
            cohort=len(record.cohort),
            left_out=left_out,
            data_share=round(record.data_share, 4),
        )
        if (label := phase_label(key.kind)) is not None:
            self._metrics.rounds.labels(phase=label, result=end.value).inc()
        if key.kind == "train":
            self._metrics.data_share.set(record.data_share)
        self._audit.flush()  # nobody waits: what the phase entered need not come to disk before the next one

    def _forget_states(self) -> None:
        """Global states but those that a running task reads and the newest of each job."""
        running = {each.task.state_digest for each in self._tasks if each.is_preparing}
        if not self._sums.is_computing:  # no coordinator can draw that out, as it can a download
            newest = self._chain.newest(self._jobs.digests)
            self._files.keep_only(running | newest | self._sums.fetching)
