"""One job: its phases one after the other, and what its silos send on the way.

What a runner must remember is in the store, so one that starts again continues where the last one was.
Source: docs/protocol.md 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chorale.job import Job, open_job
from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.runtime import disk
from chorale.spec.job_spec import JobSpec
from chorale.spec.training.class_rows import rows_in_words
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2
from coordinator.jobs.aggregate import RevealedFile
from coordinator.jobs.attempt_runner import SESSION_MESSAGES, AttemptRunner
from coordinator.jobs.phase_record import told_to_silos
from coordinator.jobs.phase_runner import PhaseRunner
from coordinator.jobs.selection import Selection
from coordinator.jobs.sequence import (
    BudgetSpent,
    JobFailed,
    PhaseHistory,
    Step,
    completed_rounds,
    model_since,
    next_step,
    stood_in_the_way,
)
from coordinator.jobs.statements import KINDS as STATEMENTS
from coordinator.jobs.statements import Statements
from coordinator.phase_machine import PhaseState
from coordinator.reasons import AHEAD, WAITED_FOR, WAY_OUT, Absent, Awaited, FailureReason
from coordinator.resources import Resources
from coordinator.storage.checkpoints import KEPT_CHECKPOINTS
from coordinator.storage.store import Absence, JobStatus, PhaseRow
from crypto.errors import ChoraleError, Refusal, RemoteProtocolError, Rule
from crypto.session.coordinator_session import CoordinatorState

RESUME_SECONDS = 15.0  # after a fault of this machine, such as a full disk; doubled by each that follows
ROOM_SECONDS = 1.0  # where the disk is full: how often it is looked whether it still is
SHOWN_SECONDS = 3600.0  # a job that ended, in the metrics: each scrape sees what it came to
MAX_RESUME_SECONDS = 960.0  # an attempt that a fault breaks off is one of the phase's few

# of silos whose answer was still open when others ended the job
STILL_OPEN = {
    (Refusal.JOB_NOT_APPROVED,): "no approval yet at",
    (Refusal.SETTINGS, Refusal.CONFIGURATION): "settings that wait for their institution at",
    (Absent.NO_ANSWER, Absent.DISCONNECTED): "no answer yet from",
}

log = get_logger("coordinator.jobs.job_runner")


class JobRunner:
    """Runs one job, phase by phase, and passes on what its silos send to the current attempt."""

    def __init__(self, resources: Resources, job: Job, *, on_change: Callable[[], None]) -> None:
        self.job = job
        self.progress = "starting"
        self.awaited: Mapping[str, str] = {}  # by silo, words of coordinator.reasons.Awaited and SiloStage
        self._resources = resources
        self._on_change = on_change
        self._offer = pb.CoordinatorMessage(job=pb.JobOffer(job=job.signed.to_wire()))
        self._phase: PhaseRunner | None = None
        self._present_states: list[bytes] = []  # of this phase and the one before
        self._revealed: RevealedFile | None = None  # kept for silos that are slower than t others
        self._history = PhaseHistory(resources.store, job.digest)
        self.selection = Selection(resources.store, job)
        self.in_the_way = stood_in_the_way(self._history.rows())
        self._resume_seconds = RESUME_SECONDS
        self._going = asyncio.Event()
        self._going.set()
        # before connectivity is read: no silo connects in between unnoticed
        resources.attendance.listeners.append(self)
        # the silos' connectivity: since when each that is not connected has been away, over all connections;
        # one that was never seen counts as lost when the job started here
        now, connected = resources.clock.monotonic(), resources.attendance.connections
        self._away_since = {silo: now for silo in job.spec.silos if silo not in connected}

    async def run(self) -> None:
        """To the job's end, which is stored and told to its silos. Cancellation leaves it resumable."""
        self._resources.metrics.know_job(self.job.id)
        self._resources.attendance.send_all(self.job.spec.silos, self._offer)
        try:
            while True:
                try:
                    return await self._run_to_end()
                except Exception as error:  # of the disk, the database or a used-up resource of this machine
                    directory = self._resources.settings.directory
                    is_full = disk.is_full(error, directory)
                    why = disk.full_in_words(directory) if is_full else type(error).__name__
                    log.exception(
                        "job stopped", job=self.job.id, reason=why, resume_seconds=self._resume_seconds
                    )
                    wait = f"{self._resume_seconds:g} seconds"
                    hope = ", or when there is more room" if is_full else ""
                    self._tell_progress(f"stopped by {why}; it is tried again in {wait}{hope}", {})
                if is_full:
                    await self._wait_for_room(disk.free_bytes(directory))
                else:
                    await asyncio.sleep(self._resume_seconds)
                self._resume_seconds = min(2 * self._resume_seconds, MAX_RESUME_SECONDS)
        finally:
            self._resources.attendance.listeners.remove(self)

    async def _run_to_end(self) -> None:
        """All phases that are left. What the job must remember is stored, so this resumes after any fault."""
        self._note_checkpoint()
        try:
            step = self._next_step()
            while step is not None:
                step = await self._run_round(step)
        except JobFailed as failure:
            self.end(failure.status, reason=str(failure), public=failure.public)
        else:
            self.end(JobStatus.DONE, reason=self.selection.stalled)

    async def _wait_for_room(self, free_bytes: int) -> None:
        """Until more is free than now, or it is time to try all the same."""
        clock, directory = self._resources.clock, self._resources.settings.directory
        gives_up_at = clock.monotonic() + self._resume_seconds
        while clock.monotonic() < gives_up_at:
            await asyncio.sleep(min(ROOM_SECONDS, self._resume_seconds))
            if disk.free_bytes(directory) >= free_bytes + disk.MIN_FREE_BYTES:
                return

    def pause(self) -> None:
        """Takes effect before the next phase."""
        self._going.clear()
        self._resources.metrics.drop_checkpoint(self.job.id)

    def resume(self) -> None:
        self._going.set()
        self._note_checkpoint()

    def skip_round(self) -> None:
        """Wait no longer for silos whose inputs are there. Raises RemoteProtocolError where nothing does."""
        attempt, statements = self.attempt, self.statements
        if attempt is not None and attempt.session.state in (
            CoordinatorState.UNMASK,
            CoordinatorState.RECOVER,
        ):
            attempt.give_up()
        elif statements is not None:
            statements.give_up()
        else:
            where = f"{PhaseState.UNMASK.value} or {PhaseState.REVEALED.value}"
            why = f"job {self.job.id}: no round to skip: none waits in {where}"
            raise RemoteProtocolError(why, code=Refusal.STAGE)

    def end(self, status: JobStatus, *, reason: str = "", public: str | None = None) -> None:
        """Store the job's end, note it in the audit log, and only then tell its silos.

        public: the reason without what a person at a silo typed for the operator.
        """
        public = reason if public is None else public
        self._resources.store.set_job_status(self.job.digest, status, reason=reason)
        self._resources.audit.append("job_ended", job=self.job.id, status=status.value, reason=public)
        ended = pb.JobEnded(job_digest=self.job.digest, status=status.value, reason=public)
        self._resources.attendance.send_all(self.job.spec.silos, pb.CoordinatorMessage(job_ended=ended))
        self._resources.metrics.drop_checkpoint(self.job.id)
        asyncio.get_running_loop().call_later(SHOWN_SECONDS, self._resources.metrics.forget_job, self.job.id)
        if self._revealed is not None:
            self._revealed.path.unlink(missing_ok=True)
        log.info("job ended", job=self.job.id, status=status.value, reason=public)
        self._tell_progress("", {})

    # what the silos do

    @property
    def attempt(self) -> AttemptRunner | None:
        """The current session, if there is one."""
        return None if self._phase is None else self._phase.attempt

    @property
    def statements(self) -> Statements | None:
        """What silos sign of the phase at its end, while they are asked."""
        return None if self._phase is None else self._phase.statements

    def attempt_for(self, silo: str, key: wire.PhaseKey) -> AttemptRunner:
        """Raises RemoteProtocolError unless that very attempt is running and names the silo."""
        attempt = self.attempt
        if attempt is None or attempt.key != key or silo not in self.job.spec.silos:
            raise RemoteProtocolError("session: no such attempt is running for this silo", code=Refusal.STAGE)
        return attempt

    def download(self, silo: str, digest: bytes) -> Path:
        """A file for the job's own silos: its present state, the one before it, or the newest revealed sum.

        Raises RemoteProtocolError for anything else.
        """
        revealed = self._revealed if self._phase is None else self._phase.revealed or self._revealed
        if silo in self.job.spec.silos:
            if digest in self._present_states:
                return self._resources.checkpoints.path(self.job.digest, digest)
            if revealed is not None and digest == revealed.digest:
                return revealed.path
        raise RemoteProtocolError(
            "download: not a present state or sum of a job of this silo", code=Refusal.STAGE
        )

    def on_download(self, silo: str, *, sent_bytes: int) -> None:
        """The silo has taken so many more bytes of a file of the job."""
        for awaiting in (self.attempt, self.statements):
            if awaiting is not None:
                awaiting.on_download(silo, sent_bytes=sent_bytes)

    def on_connected(self, silo: str) -> None:
        """The silo is offered the job. It, or the coordinator, may have missed how the last phase ended, and
        the last one that holds the silo's own input: its local state follows from that."""
        if silo not in self.job.spec.silos:
            return
        self._away_since.pop(silo, None)
        self._resources.attendance.send(silo, self._offer)
        for record in self._history.outcomes_for(silo):
            self._resources.attendance.send(silo, told_to_silos(record))
        if self.attempt is not None:
            self.attempt.on_connected(silo)
        if self.statements is not None:
            self.statements.on_connected(silo)

    def on_lost(self, silo: str) -> None:
        """The silo is waited for `reconnect_grace_seconds` from now."""
        if silo not in self.job.spec.silos:
            return
        self._away_since[silo] = self._resources.clock.monotonic()
        if self.attempt is not None:
            self.attempt.on_lost()
        if self.statements is not None:
            self.statements.on_lost()

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        """Goes to the attempt that it names; one that names no running attempt comes too late."""
        attempt, kind = self.attempt, message.WhichOneof("kind")
        statements = self.statements
        if statements is not None and kind in STATEMENTS and silo in self.job.spec.silos:
            if getattr(message, kind).key == wire.key_to_wire(statements.key):
                statements.on_message(silo, message)
            return
        if attempt is None or silo not in self.job.spec.silos:
            return
        if kind == "stage":
            return attempt.on_silo_stage(silo, wire.stage_from_wire(message.stage))
        key = wire.key_to_wire(attempt.key)
        if kind == "heartbeat":
            attempt.on_heartbeat(silo, is_preparing=key in message.heartbeat.preparing)
        elif kind in SESSION_MESSAGES and getattr(message, kind).key == key:
            attempt.on_message(silo, message)

    # phases

    async def _run_round(self, first: Step) -> Step | None:
        """Every phase that carries the round's number. Gives the step that follows."""
        step: Step | None = first
        with tracing.span(Span.ROUND, self.job.digest, first[0]):
            while step is not None and step[0] == first[0]:
                rows = self._history.rows()
                if not rows or (rows[-1].round, rows[-1].phase) != step:  # it is not under way already
                    await self._going.wait()
                await self._run_phase(*step)
                step = self._next_step()
        return step

    async def _run_phase(self, round: int, phase: str) -> None:
        """Run it, tell its outcome to the job's silos, and drop the checkpoints that no phase needs."""
        row = self._begin(round, phase)
        earlier = [other for other in self._history.rows() if other.sequence < row.sequence]
        title = self._title(round, phase)
        runner = self._phase = PhaseRunner(
            resources=self._resources,
            job=self.job,
            row=row,
            away_since=self._away_since,
            before=earlier[-1] if earlier else None,
            model_since=model_since(self.job, earlier),
            on_progress=lambda line, awaited: self._tell_progress(f"{title}, {line}", awaited),
        )
        try:
            record = await runner.run()
        finally:
            self._phase = None
            self._keep_sum(runner.revealed)
        self._resources.attendance.send_all(self.job.spec.silos, told_to_silos(record))
        self.in_the_way = stood_in_the_way(self._history.rows())
        for silo, rounds in self.in_the_way.items():
            log.warning(
                "round given up for a silo", silo=silo, in_a_row=rounds, hint=WAY_OUT, job=self.job.id
            )
        completed = completed_rounds(self._resources.store, self.job)
        self._resources.metrics.rounds_completed.labels(federation_job=self.job.id).set(completed)
        newest = [record.state_digest, *(row.state_digest for row in reversed(self._history.rows()))]
        kept = list(dict.fromkeys(newest))[:KEPT_CHECKPOINTS]
        best = self.selection.kept
        kept += [] if best is None else [best.state_digest]
        self._resources.checkpoints.keep_only(self.job.digest, kept)
        self._note_checkpoint()
        self._resume_seconds = RESUME_SECONDS
        self._on_change()
        if runner.ends_job:
            raise self._refused(record, runner.absences)

    def _title(self, round: int, phase: str) -> str:
        steps = self.job.spec.steps
        if steps is None or self.job.names_everyone(phase):
            return f"round {round}, {phase}"
        return f"step {completed_rounds(self._resources.store, self.job) + 1} of {steps}, {phase}"

    def _keep_sum(self, revealed: RevealedFile | None) -> None:
        """Of the newest phase that moved the state; silos that were slower still compute it themselves."""
        if revealed is None:
            return
        if self._revealed is not None and self._revealed.path != revealed.path:
            self._revealed.path.unlink(missing_ok=True)
        self._revealed = revealed

    def _begin(self, round: int, phase: str) -> PhaseRow:
        """The phase's row. Phases of a round share the roster of its first one. Raises JobFailed where the
        operator has left the roster, or the job is past its date."""
        store, roster = self._resources.store, self._resources.roster_book.current
        now = self._resources.clock.now()
        version = roster.version
        if not self.job.names_everyone(phase):
            version = store.pin_round_roster(self.job.digest, round, version)
        row = store.begin_phase(
            self.job.digest, round, phase, roster_version=version, unix_seconds=now.timestamp()
        )
        self._present_states = store.newest_starts(self.job.digest, 2)
        try:
            open_job(self.job.signed, roster=roster, authority=self._resources.authority, now=now)
        except ChoraleError as error:
            raise JobFailed(str(error)) from None
        return row

    def _refused(self, record: records_pb2.PhaseRecord, absences: Sequence[Absence]) -> JobFailed:
        """Names the silos that refused, with their codes, and apart from them those that had only not said
        yes yet: they are not to blame.

        absences: of the last session, which they refused.
        """
        codes = {code.value for code in Refusal if code not in WAITED_FOR}
        refused = [absence for absence in absences if absence.reason in codes]
        others = "".join(
            f"; {what}: {', '.join(silos)}"
            for reasons, what in STILL_OPEN.items()
            if (silos := [absence.silo for absence in absences if absence.reason in reasons])
        )
        message, public = (
            f"refused by silos: {', '.join(reasons) or 'too few take part'}{others}"
            for reasons in (
                [f"{each.silo} ({each.why.for_operator})" for each in refused],
                [f"{each.silo} ({each.why.public})" for each in refused],
            )
        )
        if any(absence.reason in AHEAD for absence in absences):
            lost = (
                ": they know later sums of this job than this coordinator, whose files are older, "
                "and none gives a second input: fetch the model, and submit a job that starts from it"
            )
            return JobFailed(message + lost, public=public + lost)
        spec = self.job.spec
        rows = rows_in_words(spec) if isinstance(spec, JobSpec) else ""
        if rows and any(absence.rule == Rule.MIN_CLASS_HOLDERS for absence in absences):
            return JobFailed(f"{message}; class rows: {rows}", public=f"{public}; class rows: {rows}")
        if record.reason != FailureReason.BUDGET:
            return JobFailed(message, public=public)
        budget, rounds = FailureReason.BUDGET.value, completed_rounds(self._resources.store, self.job)
        if rounds == 0:
            return JobFailed(f"{budget}: {message}", public=f"{budget}: {public}")
        stays = f"; the model after {rounds} of {self.job.spec.count} stays"
        return BudgetSpent(f"{budget}: {message}{stays}", public=f"{budget}: {public}{stays}")

    def _next_step(self) -> Step | None:
        rows, stalled = self._history.rows(), self.selection.stalled
        return next_step(self.job, rows, is_outdated=self._is_outdated, has_stalled=bool(stalled))

    def _is_outdated(self, enrollment: PhaseRow) -> bool:
        """The job's silos on the roster have changed, or a silo that missed the enrollment asks to join."""
        book = self._resources.roster_book
        try:
            before = book.of_version(enrollment.roster_version)
        except RemoteProtocolError:  # it has expired
            before = book.current
        if (before.silo_names ^ book.current.silo_names) & frozenset(self.job.spec.silos):
            return True
        reason = Refusal.NOT_ENROLLED.value
        return self._resources.store.was_absent_since(self.job.digest, enrollment.sequence, reason)

    # telling

    def _note_checkpoint(self) -> None:
        """When the job's present state was written; none is expected while the job is paused."""
        row = self._resources.store.job(self.job.digest)
        if row is not None and self._going.is_set():
            written = self._resources.checkpoints.path(row.digest, row.state_digest).stat().st_mtime
            self._resources.metrics.checkpoint.labels(federation_job=self.job.id).set(written)

    def _tell_progress(self, line: str, awaited: Mapping[str, str]) -> None:
        for silos, step in ((self.awaited, -1), (awaited, 1)):
            for silo, why in silos.items():
                if why == Awaited.OVERDUE:
                    self._resources.metrics.overdue.labels(silo=silo).inc(step)
        if (line, awaited) != (self.progress, self.awaited):
            self.progress, self.awaited = line, awaited
            self._on_change()
