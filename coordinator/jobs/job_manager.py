"""All jobs of this coordinator: accepted, running, steered, watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from chorale.job import Job, JobSpec, SignedJob, open_job
from chorale.observability.logs import get_logger
from chorale.spec.state import float32_bytes, state_from_file
from chorale.transport.wire import PhaseKey
from chorale.v1 import operations_pb2 as pb
from chorale.v1 import records_pb2
from coordinator.jobs.bulletin import Bulletin
from coordinator.jobs.job_runner import JobRunner
from coordinator.jobs.phase_history import completed_rounds
from coordinator.jobs.resources import Resources
from coordinator.storage.store import JobRow, JobStatus
from crypto.errors import ChoraleError, ConfigError, LocalProtocolError, Refusal, RemoteProtocolError
from crypto.session.cohort import SMALLEST_FEDERATION

log = get_logger("coordinator.jobs.job_runner")

NOT_KNOWN = "job: not known here"


class TooManyJobs(RemoteProtocolError):
    """As many jobs run, or are being handed in, as the coordinator allows."""


class Draining(ChoraleError):
    """The coordinator is going away; whoever watches asks again later."""


class JobManager:
    """Starts a driver for every unfinished job and answers for all of them."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._drivers: dict[bytes, JobRunner] = {}
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._bulletins: dict[bytes, Bulletin] = {}
        self._known: dict[bytes, Job] = {}
        self._float32_bytes: dict[bytes, int] = {}
        self._is_draining = False

    def resume_all(self) -> None:
        """At start-up: every unfinished job goes on where it was."""
        self._remove_orphaned_sums()
        for row in self._resources.store.jobs():
            if row.status.is_ended:
                continue
            job = self._stored_job(row)
            self._start(job, is_paused=row.status is JobStatus.PAUSED)
            log.info("job resumed", job=job.id, status=row.status.value)
        self._count_jobs()

    async def stop(self) -> None:
        """Leave every job as it is stored; the next start goes on from there."""
        self._is_draining = True
        for bulletin in self._bulletins.values():
            bulletin.notify()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # submitting

    def check(self, signed: SignedJob) -> Job:
        """Raises RemoteProtocolError for a job that this federation's silos would refuse as a whole."""
        if (
            len(self._drivers) >= self._resources.settings.max_jobs
            and self._resources.store.job(signed.digest) is None
        ):
            limit = self._resources.settings.max_jobs
            raise TooManyJobs(f"job {signed.id}: {limit} jobs are unfinished, which is the most allowed")
        return open_job(
            signed,
            roster=self._resources.roster_book.current,
            authority=self._resources.authority,
            now=self._resources.clock.now(),
        )

    def has(self, digest: bytes) -> bool:
        return self._resources.store.job(digest) is not None

    def submit(self, job: Job, received: Path) -> None:
        """Take over a checked job and its initial state. Raises RemoteProtocolError."""
        digest = bytes.fromhex(job.spec.initial_state or "")
        self._check_state(job, received)
        self._resources.checkpoints.adopt(job.digest, digest, received)
        unix_seconds = self._resources.clock.unix_seconds()
        if self._resources.store.add_job(job.signed, state_digest=digest, unix_seconds=unix_seconds):
            self._resources.audit.append(
                "job_submitted", job=job.id, name=job.spec.name, operator=job.operator
            )
            log.info("job submitted", job=job.id, name=job.spec.name, operator=job.operator)
            self._start(job)
            self._count_jobs()

    def _check_state(self, job: Job, received: Path) -> None:
        """The initial state parses, and the opening phase can be laid out over it."""
        state = state_from_file(received)
        self._check_silos(job)
        everyone = job.named(self._resources.roster_book.current, 0, everyone=True)
        key = PhaseKey(job_digest=job.digest, round=0, phase=job.opening, attempt=1)
        try:
            job.rule(len(everyone))
            job.layout(key, state, len(everyone))
            for kind in job.strategy.round_phases:
                job.layout(
                    PhaseKey(job_digest=job.digest, round=1, phase=kind, attempt=1), state, len(everyone)
                )
        except ConfigError as error:
            raise RemoteProtocolError(f"job {job.id}: {error}", code=Refusal.JOB_INVALID) from None

    def _check_silos(self, job: Job) -> None:
        """Enough of the job's silos are members now: a misspelt name is nobody's."""
        roster = self._resources.roster_book.current
        unknown = sorted(set(job.spec.silos) - roster.silo_names)
        if len(job.spec.silos) - len(unknown) < SMALLEST_FEDERATION:
            raise RemoteProtocolError(
                f"job {job.id}: silos: {', '.join(unknown)} not on the roster (version {roster.version}); "
                f"expected at least {SMALLEST_FEDERATION} that are",
                code=Refusal.JOB_INVALID,
            )

    def _start(self, job: Job, *, is_paused: bool = False) -> None:
        bulletin = self._bulletin(job.digest)
        driver = JobRunner(self._resources, job, on_change=bulletin.notify)
        if is_paused:
            driver.pause()
        self._drivers[job.digest] = driver
        task = asyncio.create_task(driver.run(), name=f"job {job.id}")
        self._tasks[job.digest] = task
        task.add_done_callback(lambda _: self._forget(job.digest))

    def _forget(self, digest: bytes) -> None:
        row = self._resources.store.job(digest)
        if row is not None and row.status.is_ended:
            self._drivers.pop(digest, None)
            self._tasks.pop(digest, None)
        self._count_jobs()
        self._bulletin(digest).notify()

    # running

    def driver(self, digest: bytes) -> JobRunner:
        """Raises RemoteProtocolError where no such job is unfinished."""
        driver = self._drivers.get(digest)
        if driver is None:
            raise RemoteProtocolError("job: no such job is running", code=Refusal.STAGE)
        return driver

    async def control(self, digest: bytes, action: int) -> records_pb2.JobSummary:
        """Pause, resume or cancel. Raises RemoteProtocolError where the job has ended."""
        self._check_steerable(digest)
        driver = self.driver(digest)
        if action == pb.ControlRequest.ACTION_PAUSE:
            self._resources.store.set_job_status(digest, JobStatus.PAUSED)
            driver.pause()
        elif action == pb.ControlRequest.ACTION_RESUME:
            self._resources.store.set_job_status(digest, JobStatus.RUNNING)
            driver.resume()
        elif action == pb.ControlRequest.ACTION_CANCEL:
            await self._cancel(digest, driver)
        else:
            raise RemoteProtocolError("control: expected pause, resume or cancel")
        self._count_jobs()
        self._bulletin(digest).notify()
        return self.summary(digest)

    def _check_steerable(self, digest: bytes) -> None:
        row = self._resources.store.job(digest)
        if row is not None and row.status.is_ended:
            raise RemoteProtocolError(
                f"job {row.signed.id}: it has ended ({row.status.value})", code=Refusal.STAGE
            )

    async def _cancel(self, digest: bytes, driver: JobRunner) -> None:
        task = self._tasks[digest]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        driver.end(JobStatus.CANCELLED)
        self._forget(digest)

    # watching

    def summaries(self) -> list[records_pb2.JobSummary]:
        return [self._summary(row) for row in self._resources.store.jobs()]

    def summary(self, digest: bytes) -> records_pb2.JobSummary:
        """Raises RemoteProtocolError for an unknown job."""
        return self._summary(self._row(digest))

    async def watch(self, digest: bytes) -> AsyncIterator[pb.JobEvent]:
        """The summary, all records so far, and then each new one of both. Raises RemoteProtocolError for an
        unknown job."""
        self._row(digest)  # before a bulletin is kept for it
        told, last = 0, None  # the last phase of which a record was told, and the last summary
        bulletin = self._bulletin(digest)
        while True:
            change = bulletin.next_change()
            summary = self.summary(digest)
            if summary != last:
                yield pb.JobEvent(summary=summary)
            for row in self._resources.store.phases(digest, after=told):
                if row.is_ended:
                    yield pb.JobEvent(record=row.record)
                    told = row.sequence
            last = summary
            if JobStatus(summary.status).is_ended:
                return
            if self._is_draining:
                raise Draining("the coordinator is shutting down")
            await change.wait()

    def model_path(self, digest: bytes) -> Path:
        """The newest global state. Raises RemoteProtocolError for an unknown job."""
        return self._resources.checkpoints.path(digest, self._row(digest).state_digest)

    # helpers

    def _count_jobs(self) -> None:
        self._resources.metrics.count_jobs(self._resources.store.count_jobs())

    def _row(self, digest: bytes) -> JobRow:
        row = self._resources.store.job(digest)
        if row is None:
            raise RemoteProtocolError(NOT_KNOWN, code=Refusal.JOB_INVALID)
        return row

    def _summary(self, row: JobRow) -> records_pb2.JobSummary:
        job = self._stored_job(row)
        driver = self._drivers.get(row.digest)
        return records_pb2.JobSummary(
            job_digest=row.digest,
            name=job.spec.name,
            status=row.status.value,
            strategy=job.spec.strategy.name,
            rounds=job.spec.rounds,
            rounds_completed=completed_rounds(self._resources.store, job),
            reason=row.reason,
            submitted_unix_seconds=row.submitted_unix_seconds,
            float32_bytes=self._model_bytes(row),
            silos=job.spec.silos,
            progress="" if driver is None else driver.progress,
        )

    def _stored_job(self, row: JobRow) -> Job:
        """A job that was checked when it was submitted; phases check it again before they begin."""
        if row.digest not in self._known:
            try:
                spec = JobSpec.from_yaml(row.signed.spec_bytes, source=f"job {row.signed.id}")
            except ConfigError as error:
                raise LocalProtocolError(f"store: {error}") from None
            self._known[row.digest] = Job(spec=spec, signed=row.signed, operator="")
        return self._known[row.digest]

    def _model_bytes(self, row: JobRow) -> int:
        """The same for every state of a job, so it is read from one."""
        if row.digest not in self._float32_bytes:
            state = state_from_file(self._resources.checkpoints.path(row.digest, row.state_digest))
            self._float32_bytes[row.digest] = float32_bytes(state)
        return self._float32_bytes[row.digest]

    def _remove_orphaned_sums(self) -> None:
        """Sums of phases that ended, or of jobs that were cancelled, while nobody could remove them."""
        wanted = {
            f"{phase.sequence}-{phase.attempt}"
            for row in self._resources.store.jobs()
            if not row.status.is_ended
            for phase in self._resources.store.phases(row.digest)
            if not phase.is_ended
        }
        for path in self._resources.settings.sum_directory.glob("*"):
            if path.stem not in wanted:
                path.unlink(missing_ok=True)

    def _bulletin(self, digest: bytes) -> Bulletin:
        return self._bulletins.setdefault(digest, Bulletin())
