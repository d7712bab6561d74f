"""Jobs from submission to end: which phase comes next, and the silos' side of it.

One JobRunner per unfinished job; what it must remember is in the store, so a driver that starts
again goes on where the last one was. Source: docs/protocol.md 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from chorale.job import Job, open_job
from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2
from coordinator.complaints import FiledComplaint
from coordinator.jobs.attempt import SESSION_MESSAGES, Attempt
from coordinator.jobs.phase_history import PhaseHistory, completed_rounds
from coordinator.jobs.phase_runner import PhaseRunner
from coordinator.jobs.resources import Resources
from coordinator.jobs.sequence import BudgetSpent, JobFailed, PhaseSequence, Step
from coordinator.members.connectivity import Connectivity
from coordinator.reasons import FailureReason
from coordinator.storage.store import JobStatus, PhaseRow
from crypto.errors import ChoraleError, Refusal, RemoteProtocolError
from crypto.identity.roster import Roster

RESUME_SECONDS = (
    15.0  # after a fault of this machine, such as a full disk; twice as long after each that follows
)
MAX_RESUME_SECONDS = 960.0  # an attempt that a fault breaks off is one of the phase's few

log = get_logger("coordinator.jobs.job_runner")


class JobRunner:
    """Runs one job, phase by phase, and passes on what its silos send."""

    def __init__(self, resources: Resources, job: Job, *, on_change: Callable[[], None]) -> None:
        self.job = job
        self.progress = "starting"
        self._resources = resources
        self._on_change = on_change
        self._round: PhaseRunner | None = None
        self._present_states: list[bytes] = []  # of this phase and the one before
        self._history = PhaseHistory(resources.store, job.digest)
        self._sequence = PhaseSequence(job=job, is_outdated=self._is_outdated)
        self._resume_seconds = RESUME_SECONDS
        self._going = asyncio.Event()
        self._going.set()
        resources.attendance.listen(self)  # before connectivity is read: nobody connects in between unheard
        self._connectivity = Connectivity(
            job.spec.silos,
            connected=[silo for silo in job.spec.silos if resources.attendance.is_connected(silo)],
            now=resources.clock.monotonic(),
        )

    async def run(self) -> None:
        """To the job's end, which is stored and told to its silos. Cancellation leaves it resumable."""
        self._resources.metrics.know_job(self.job.id)
        self._offer(self.job.spec.silos)
        try:
            while not await self._is_run():
                await asyncio.sleep(self._resume_seconds)
                self._resume_seconds = min(2 * self._resume_seconds, MAX_RESUME_SECONDS)
        finally:
            self._resources.attendance.unlisten(self)

    async def _is_run(self) -> bool:
        """Whether the job came to its end: what it must remember is stored, so it goes on after any fault."""
        try:
            self._note_checkpoint()
            status, reason = await self._outcome()
            self.end(status, reason=reason)
        except Exception as error:  # of the disk, the database or a used-up resource of this machine
            log.exception("job stopped", job=self.job.id, resume_seconds=self._resume_seconds)
            wait = f"{self._resume_seconds:g} seconds"
            self._tell_progress(f"stopped by {type(error).__name__}; it is tried again in {wait}")
            return False
        return True

    async def _outcome(self) -> tuple[JobStatus, str]:
        """Of all phases that are left: how the job ends, and why."""
        try:
            step = self._next_step()
            while step is not None:
                step = await self._run_round(step)
        except BudgetSpent as error:
            return JobStatus.STOPPED, str(error)
        except JobFailed as error:
            return JobStatus.FAILED, str(error)
        return JobStatus.DONE, ""

    def pause(self) -> None:
        """Takes effect before the next phase."""
        self._going.clear()
        self._resources.metrics.await_no_checkpoint(self.job.id)

    def resume(self) -> None:
        self._going.set()
        self._note_checkpoint()

    def end(self, status: JobStatus, *, reason: str = "") -> None:
        self._resources.store.set_job_status(self.job.digest, status, reason=reason)
        self._resources.audit.append("job_ended", job=self.job.id, status=status.value, reason=reason)
        ended = pb.JobEnded(job_digest=self.job.digest, status=status.value, reason=reason)
        self._resources.attendance.send_all(self.job.spec.silos, pb.CoordinatorMessage(job_ended=ended))
        self._resources.metrics.await_no_checkpoint(self.job.id)
        log.info("job ended", job=self.job.id, status=status.value, reason=reason)
        self._tell_progress("")

    # what the silos do

    def attempt_for(self, silo: str, key: wire.PhaseKey) -> Attempt:
        """Raises RemoteProtocolError unless that very attempt is running and names the silo."""
        attempt = None if self._round is None else self._round.attempt
        if attempt is None or attempt.key != key or silo not in self.job.spec.silos:
            raise RemoteProtocolError("session: no such attempt is running for this silo", code=Refusal.STAGE)
        return attempt

    def may_download(self, silo: str, state_digest: bytes) -> bool:
        """The job's present state and the one before it, for the job's own silos."""
        return silo in self.job.spec.silos and state_digest in self._present_states

    def on_connected(self, silo: str) -> None:
        if silo not in self.job.spec.silos:
            return
        self._connectivity.on_connected(silo)
        self._offer([silo])
        self._tell_outcomes(silo)
        if self._attempt is not None:
            self._attempt.on_connected(silo)

    def on_lost(self, silo: str) -> None:
        if silo not in self.job.spec.silos:
            return
        self._connectivity.on_lost(silo, now=self._resources.clock.monotonic())
        if self._attempt is not None:
            self._attempt.on_lost(silo)

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        kind = message.WhichOneof("kind")
        if self._attempt is None or silo not in self.job.spec.silos:
            return
        if kind == "heartbeat":
            key = wire.key_to_wire(self._attempt.key)
            self._attempt.on_heartbeat(silo, is_preparing=key in message.heartbeat.preparing)
        elif kind in SESSION_MESSAGES and getattr(message, kind).key == wire.key_to_wire(self._attempt.key):
            self._attempt.on_message(silo, message)

    @property
    def _attempt(self) -> Attempt | None:
        return None if self._round is None else self._round.attempt

    # phases

    async def _run_round(self, first: Step) -> Step | None:
        """Every phase that carries the round's number. Gives the step that follows."""
        step: Step | None = first
        with tracing.span(Span.ROUND, self.job.digest, first[0]):
            while step is not None and step[0] == first[0]:
                if not self._is_begun(step):
                    await self._going.wait()
                await self._run_phase(*step)
                step = self._next_step()
        return step

    async def _run_phase(self, round: int, phase: str) -> None:
        row = self._begin(round, phase)
        self._check_job()
        driver = PhaseRunner(
            resources=self._resources,
            job=self.job,
            row=row,
            connectivity=self._connectivity,
            complaints_before=self._complaints_before(row),
            on_progress=self._tell_progress,
        )
        self._round = driver
        try:
            record = await driver.run()
        finally:
            self._round = None
        self._after(record)
        if driver.ends_job:
            raise self._refused(record)

    def _refused(self, record: records_pb2.PhaseRecord) -> JobFailed:
        refusal = f"refused by silos: {_who(record)}"
        if record.reason != FailureReason.BUDGET:
            return JobFailed(refusal)
        rounds = completed_rounds(self._resources.store, self.job)
        if rounds == 0:
            return JobFailed(f"{FailureReason.BUDGET.value}: {refusal}")
        return BudgetSpent(
            f"{FailureReason.BUDGET.value}: {refusal}; the model after {rounds} of "
            f"{self.job.spec.rounds} rounds stays"
        )

    def _begin(self, round: int, phase: str) -> PhaseRow:
        """The phase's row. Phases of a round share the roster of its first one."""
        store, version = self._resources.store, self._resources.roster_book.current.version
        if not self.job.names_everyone(phase):
            version = store.pin_round_roster(self.job.digest, round, version)
        row = store.begin_phase(
            self.job.digest,
            round,
            phase,
            roster_version=version,
            unix_seconds=self._resources.clock.unix_seconds(),
        )
        self._present_states = store.newest_starts(self.job.digest, 2)
        return row

    def _check_job(self) -> None:
        """An operator who left the roster, or a job past its date, starts no phase."""
        try:
            open_job(
                self.job.signed,
                roster=self._resources.roster_book.current,
                authority=self._resources.authority,
                now=self._resources.clock.now(),
            )
        except ChoraleError as error:
            raise JobFailed(str(error)) from None

    def _after(self, record: records_pb2.PhaseRecord) -> None:
        message = pb.CoordinatorMessage(outcome=pb.PhaseOutcome(record=record))
        self._resources.attendance.send_all(self.job.spec.silos, message)
        completed = completed_rounds(self._resources.store, self.job)
        self._resources.metrics.rounds_completed.labels(federation_job=self.job.id).set(completed)
        newest = [record.state_digest, *(row.state_digest for row in reversed(self._history.rows()))]
        kept = list(dict.fromkeys(newest))[: self._resources.settings.keep_checkpoints]
        self._resources.checkpoints.keep_only(self.job.digest, kept)
        self._note_checkpoint()
        self._resume_seconds = RESUME_SECONDS
        self._on_change()

    def _next_step(self) -> Step | None:
        return self._sequence.next_step(self._history.rows())

    def _is_outdated(self, enrollment: PhaseRow) -> bool:
        """The job's silos on the roster have changed, or a silo that missed the enrollment asks to join."""
        enrolled = self._silos_on(self._roster_of(enrollment))
        if enrolled != self._silos_on(self._resources.roster_book.current):
            return True
        reason = Refusal.NOT_ENROLLED.value
        return self._resources.store.was_absent_since(self.job.digest, enrollment.sequence, reason)

    def _silos_on(self, roster: Roster) -> frozenset[str]:
        return roster.silo_names & frozenset(self.job.spec.silos)

    def _roster_of(self, row: PhaseRow) -> Roster:
        try:
            return self._resources.roster_book.of_version(row.roster_version)
        except RemoteProtocolError:
            return self._resources.roster_book.current

    def _complaints_before(self, row: PhaseRow) -> list[FiledComplaint]:
        earlier = [other for other in self._history.rows() if other.sequence < row.sequence]
        return self._resources.store.complaints(earlier[-1].sequence) if earlier else []

    def _is_begun(self, step: Step) -> bool:
        rows = self._history.rows()
        return bool(rows) and (rows[-1].round, rows[-1].phase) == step

    # telling

    def _offer(self, silos: Sequence[str]) -> None:
        offer = pb.CoordinatorMessage(job=pb.JobOffer(job=self.job.signed.to_wire()))
        self._resources.attendance.send_all(silos, offer)

    def _tell_outcomes(self, silo: str) -> None:
        """A silo that was away, or the coordinator, may have missed how the last phase ended, and the last
        one that holds the silo's own input: its local state follows from that."""
        for record in self._history.outcomes_for(silo):
            message = pb.CoordinatorMessage(outcome=pb.PhaseOutcome(record=record))
            self._resources.attendance.send(silo, message)

    def _note_checkpoint(self) -> None:
        """When the job's present state was written; nobody waits for the next while the job is paused."""
        row = self._resources.store.job(self.job.digest)
        if row is not None and self._going.is_set():
            written = self._resources.checkpoints.written_unix_seconds(row.digest, row.state_digest)
            self._resources.metrics.note_checkpoint(self.job.id, written)

    def _tell_progress(self, line: str) -> None:
        if line != self.progress:
            self.progress = line
            self._on_change()


def _who(record: records_pb2.PhaseRecord) -> str:
    """The silos that refused, with their codes; whoever was only not heard any more is not to blame."""
    refusals = {code.value for code in Refusal}
    told = [f"{entry.silo} ({entry.reason})" for entry in record.left_out if entry.reason in refusals]
    return ", ".join(told) or "too few take part"
