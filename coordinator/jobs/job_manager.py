"""All jobs of this coordinator: accepted, running, steered, watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from chorale.job import Job, SignedJob, open_job
from chorale.observability.logs import get_logger
from chorale.runtime import disk
from chorale.runtime.machine import check_memory
from chorale.spec.kinds import any_spec
from chorale.spec.settings_file import parse_mapping
from chorale.spec.state import float32_bytes, state_from_file
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as federation_pb
from chorale.v1 import operations_pb2 as pb
from chorale.v1 import records_pb2
from coordinator.jobs.job_runner import JobRunner
from coordinator.jobs.selection import Kept, Selection
from coordinator.jobs.sequence import completed_rounds
from coordinator.process import MIN_MEMORY_BYTES
from coordinator.reasons import standstill_in_words
from coordinator.resources import Resources
from coordinator.storage.checkpoints import KEPT_CHECKPOINTS
from coordinator.storage.store import JobRow, JobStatus
from crypto.errors import ChoraleError, ConfigError, LocalProtocolError, Refusal, RemoteProtocolError
from crypto.session.cohort import SMALLEST_FEDERATION
from strategies.base import TOTAL
from strategies.phases.enrollment import draw_seed_in
from strategies.phases.training import TRAIN

MAX_REPORTED_ENDS = 32  # older jobs expire by not_after; far from MAX_QUEUED_MESSAGES

log = get_logger("coordinator.jobs.job_manager")


class TooManyJobs(RemoteProtocolError):
    """As many jobs run, or are being handed in, as the coordinator allows."""


class UnknownJob(RemoteProtocolError):
    """No job of this digest was ever submitted here."""


class NotTheOperator(RemoteProtocolError):
    """The job belongs to another operator."""


class Draining(ChoraleError):
    """The coordinator is going away; a watcher asks again later."""


class JobManager:
    """Starts a runner for every unfinished job and answers for all of them."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._runners: dict[bytes, JobRunner] = {}
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._changes: dict[bytes, asyncio.Event] = {}  # of watched jobs: set at the next change, then gone
        self._known: dict[bytes, Job] = {}
        self._selections: dict[bytes, Selection] = {}
        self._float32_bytes: dict[bytes, int] = {}
        self._is_draining = False

    def resume_all(self) -> None:
        """At start-up: every unfinished job resumes where it was."""
        store, wanted = self._resources.store, set()
        unfinished = [row for row in store.jobs() if not row.status.is_ended]
        for row in unfinished:
            under_way = [phase for phase in store.phases(row.digest) if not phase.is_ended]
            wanted |= {f"{phase.sequence}-{phase.attempt}" for phase in under_way}
        for path in self._resources.settings.sum_directory.glob("*"):
            if path.stem not in wanted:  # of a phase that ended, or a job that was cancelled, and not removed
                path.unlink(missing_ok=True)
        for row in unfinished:
            job = self._stored_job(row)
            self._start(job, is_paused=row.status is JobStatus.PAUSED)
            log.info("job resumed", job=job.id, status=row.status.value)
        self._count_jobs()

    async def stop(self) -> None:
        """Leave every job as it is stored; the next start resumes from there."""
        self._is_draining = True
        for digest in list(self._changes):
            self._note_change(digest)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell_ended(self, silo: str) -> None:
        """A silo that was away is told which jobs of its own have ended, the newest of them; not why, which a
        person of another silo may have typed."""
        for row in self._resources.store.last_ended(MAX_REPORTED_ENDS):
            try:
                is_named = silo in self._stored_job(row).spec.silos
            except LocalProtocolError:  # not readable by this version
                continue
            if is_named:
                over = federation_pb.JobEnded(job_digest=row.digest, status=row.status.value)
                self._resources.attendance.send(silo, federation_pb.CoordinatorMessage(job_ended=over))

    # submitting

    async def check(self, signed: SignedJob) -> Job:
        """Raises RemoteProtocolError for a job that this federation's silos would refuse as a whole."""
        limit = self._resources.settings.max_jobs
        if len(self._runners) >= limit and self._resources.store.job(signed.digest) is None:
            raise TooManyJobs(f"job {signed.id}: {limit} jobs are unfinished, which is the most allowed")
        return await asyncio.to_thread(  # a large job file takes no time of the event loop
            open_job,
            signed,
            roster=self._resources.roster_book.current,
            authority=self._resources.authority,
            now=self._resources.clock.now(),
        )

    def submit(self, job: Job, received: Path) -> None:
        """Take over a checked job and its initial state. Raises RemoteProtocolError, NoRoom, LimitTooLow."""
        digest = bytes.fromhex(job.spec.initial_state or "")
        self._check_state(job, received)
        self._resources.checkpoints.adopt(job.digest, digest, received)
        unix_seconds = self._resources.clock.unix_seconds()
        if self._resources.store.add_job(job.signed, state_digest=digest, unix_seconds=unix_seconds):
            self._resources.audit.append(
                "job_submitted", job=job.id, name=job.spec.name, operator=job.operator
            )
            log.info("job submitted", job=job.id, name=job.spec.name, operator=job.operator)
            self._known[job.digest] = job
            self._start(job)
            self._count_jobs()

    def _check_state(self, job: Job, received: Path) -> None:
        """The initial state parses, enough of the job's silos are members now, and the opening phase and
        those of a round can be laid out over it, and disk and memory have room for the job.

        Raises NoRoom and LimitTooLow.
        """
        state, roster = state_from_file(received), self._resources.roster_book.current
        unknown = sorted(set(job.spec.silos) - roster.silo_names)
        if len(job.spec.silos) - len(unknown) < SMALLEST_FEDERATION:  # a misspelled name is no member's
            raise RemoteProtocolError(
                f"job {job.id}: silos: {', '.join(unknown)} not on the roster (version {roster.version}); "
                f"expected at least {SMALLEST_FEDERATION} that are",
                code=Refusal.JOB_INVALID,
            )
        try:
            members = len(job.named(roster.silo_names, 0, job.opening, draw_seed_in(state)))
            job.spec.rule(members)
            sized = {**state, TOTAL: np.array(1)}  # which enrollment writes; it decides no size
            largest_bytes = 0
            for round, phase in [(0, job.opening), *((1, kind) for kind in job.strategy.round_phases)]:
                key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
                largest_bytes = max(largest_bytes, job.layout(key, sized, members).total_bytes)
        except ConfigError as error:
            raise RemoteProtocolError(f"job {job.id}: {error}", code=Refusal.JOB_INVALID) from None
        settings = self._resources.settings
        # what it keeps at once: states, the one that is written among them, and two sums, masked and revealed
        needed_bytes = (KEPT_CHECKPOINTS + 1) * received.stat().st_size + 2 * largest_bytes
        disk.check_room(settings.directory, needed_bytes, what=f"job {job.id}")
        # docs/operations.md, "Capacity"; what uploads may take is taken before the sum
        vectors_bytes = received.stat().st_size + 6 * largest_bytes // 5 + settings.spool_memory_bytes
        check_memory(MIN_MEMORY_BYTES + vectors_bytes, what=f"job {job.id}")

    def _start(self, job: Job, *, is_paused: bool = False) -> None:
        runner = JobRunner(self._resources, job, on_change=lambda: self._note_change(job.digest))
        if is_paused:
            runner.pause()
        self._runners[job.digest] = runner
        task = asyncio.create_task(runner.run(), name=f"job {job.id}")
        self._tasks[job.digest] = task
        task.add_done_callback(lambda _: self._forget(job.digest))

    def _forget(self, digest: bytes) -> None:
        """A runner has stopped; it is kept where only this process ends, and not its job."""
        row = self._resources.store.job(digest)
        if row is not None and row.status.is_ended:
            self._runners.pop(digest, None)
            self._tasks.pop(digest, None)
        self._count_jobs()
        self._note_change(digest)

    # running

    def runner(self, digest: bytes) -> JobRunner:
        """Raises RemoteProtocolError where no such job is unfinished."""
        runner = self._runners.get(digest)
        if runner is None:
            raise RemoteProtocolError("job: no such job is running", code=Refusal.STAGE)
        return runner

    async def control(
        self, digest: bytes, action: pb.ControlRequest.Action.ValueType, *, caller: str
    ) -> records_pb2.JobSummary:
        """Pause, resume, cancel or skip a round, as its operator or an admin of the roster.

        Raises NotTheOperator, and RemoteProtocolError where the job has ended or no round can be skipped.
        """
        row = self._resources.store.job(digest)
        if row is not None and not self._resources.roster_book.current.is_admin(caller):
            self._check_owner(row, caller, "only this operator or an admin of the roster may control it")
        if row is not None and row.status.is_ended:
            raise RemoteProtocolError(
                f"job {row.signed.id}: it has ended ({row.status.value})", code=Refusal.STAGE
            )
        runner = self.runner(digest)
        if action == pb.ControlRequest.ACTION_PAUSE:
            self._resources.store.set_job_status(digest, JobStatus.PAUSED)
            runner.pause()
        elif action == pb.ControlRequest.ACTION_RESUME:
            self._resources.store.set_job_status(digest, JobStatus.RUNNING)
            runner.resume()
        elif action == pb.ControlRequest.ACTION_SKIP_ROUND:
            runner.skip_round()
        elif action == pb.ControlRequest.ACTION_CANCEL:
            task = self._tasks[digest]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            runner.end(JobStatus.CANCELLED)
            self._forget(digest)
        else:
            raise RemoteProtocolError("control: expected pause, resume, cancel or skip_round")
        word = pb.ControlRequest.Action.Name(action).removeprefix("ACTION_").lower()
        self._resources.audit.append("job_controlled", job=runner.job.id, action=word, operator=caller)
        self._count_jobs()
        self._note_change(digest)
        return self.summary(self.row(digest))

    # watching

    def row(self, digest: bytes) -> JobRow:
        """Raises UnknownJob."""
        row = self._resources.store.job(digest)
        if row is None:
            raise UnknownJob("job: not known here", code=Refusal.JOB_INVALID)
        return row

    def model(self, digest: bytes, *, caller: str) -> tuple[JobRow, Path]:
        """The job and the state that its operator fetches: the newest, or the one that the job keeps.

        Raises UnknownJob, also where the model was removed, and NotTheOperator.
        """
        row = self.row(digest)
        self._check_owner(row, caller, "only this operator may fetch its model and its evidence")
        try:
            kept = self._kept(row)
        except LocalProtocolError:  # not readable by this version
            kept = None
        state_digest = row.state_digest if kept is None else kept.state_digest
        path = self._resources.checkpoints.path(digest, state_digest)
        if not path.exists():
            raise UnknownJob(f"job {row.signed.id}: its model was removed from the coordinator's disk")
        return row, path

    def summary(self, row: JobRow) -> records_pb2.JobSummary:
        """What an operator is told of the job, as things stand."""
        runner = self._runners.get(row.digest)
        if row.digest not in self._float32_bytes:  # the same for every state of a job, so read from one
            path = self._resources.checkpoints.path(row.digest, row.state_digest)
            # of a job that has ended a person may have removed it, to make room
            self._float32_bytes[row.digest] = float32_bytes(state_from_file(path)) if path.exists() else 0
        return records_pb2.JobSummary(
            job_digest=row.digest,
            status=row.status.value,
            reason=row.reason,
            submitted_unix_seconds=row.submitted_unix_seconds,
            float32_bytes=self._float32_bytes[row.digest],
            progress="" if runner is None else runner.progress,
            state=self._state(row, runner),
            awaited=[
                records_pb2.Awaited(silo=silo, why=why)
                for silo, why in sorted(({} if runner is None else runner.awaited).items())
            ],
            operator=row.signed.operator,
            **self._signed_facts(row),
        )

    async def watch(self, digest: bytes, *, once: bool = False) -> AsyncIterator[pb.JobEvent]:
        """The signed job, the summary, all records, and then each new one of both, to the job's end.

        once: what is known now, and no more. Raises UnknownJob.
        """
        yield pb.JobEvent(job=self.row(digest).signed.to_wire())  # known, before an event is kept for it
        sequence, last = 0, None  # the last phase of which a record was told, and the last summary
        while True:
            # taken before the job is read: what changes meanwhile is read in the next turn
            change = self._changes.setdefault(digest, asyncio.Event())
            summary = self.summary(self.row(digest))
            if summary != last:
                yield pb.JobEvent(summary=summary)
            for row in self._resources.store.phases(digest, after=sequence):
                if row.is_ended:
                    yield pb.JobEvent(record=row.record)
                    sequence = row.sequence
            last = summary
            if once or JobStatus(summary.status).is_ended:
                return
            if self._is_draining:
                raise Draining("the coordinator is shutting down")
            await change.wait()

    # helpers

    def _state(self, row: JobRow, runner: JobRunner | None) -> str:
        """One line: what a running job waits for, else its status."""
        if row.status is not JobStatus.RUNNING or runner is None:
            return row.status.value
        silos = len(runner.job.spec.silos)
        return standstill_in_words(runner.awaited, silos=silos, in_the_way=runner.in_the_way)

    def _check_owner(self, row: JobRow, caller: str, rule: str) -> None:
        owner = row.signed.operator
        if caller != owner:
            raise NotTheOperator(f"job {row.signed.id}: it belongs to operator {owner}; {rule}")

    def _count_jobs(self) -> None:
        self._resources.metrics.count_jobs(self._resources.store.count_jobs())

    def _signed_facts(self, row: JobRow) -> dict[str, Any]:
        """What the signed job says, and how far it came, as fields of its summary."""
        store = self._resources.store
        try:
            job = self._stored_job(row)
        except LocalProtocolError:
            # not readable by this version; its model can be fetched
            values = parse_mapping(row.signed.spec_bytes, source=f"job {row.signed.id}")
            said = {name: values[name] for name in ("name", "rounds", "silos")}
            return {**said, "rounds_completed": store.count_applied(row.digest, TRAIN)}
        kept = self._kept(row)
        return {
            "name": job.spec.name,
            "strategy": job.strategy.name,
            "main_figure": job.strategy.main_figure,
            "rounds": job.spec.rounds,
            "steps": job.spec.steps or 0,
            "silos": job.spec.silos,
            "rounds_completed": completed_rounds(store, job),
            "model_round": store.last_applied(row.digest, TRAIN) if kept is None else kept.round,
            "kept": "" if kept is None else kept.description,
        }

    def _kept(self, row: JobRow) -> Kept | None:
        """Raises LocalProtocolError for a job that is not readable by this version."""
        job = self._stored_job(row)
        if job.spec.keep is None:
            return None
        return self._selections.setdefault(row.digest, Selection(self._resources.store, job)).kept

    def _stored_job(self, row: JobRow) -> Job:
        """A job that was checked when it was submitted; phases check it again before they begin."""
        if row.digest not in self._known:
            try:
                spec = any_spec(row.signed.spec_bytes, source=f"job {row.signed.id}")
            except ConfigError as error:
                raise LocalProtocolError(f"store: {error}") from None
            self._known[row.digest] = Job(spec=spec, signed=row.signed, operator="")
        return self._known[row.digest]

    def _note_change(self, digest: bytes) -> None:
        """Wake the watchers of a job."""
        if (change := self._changes.pop(digest, None)) is not None:
            change.set()
