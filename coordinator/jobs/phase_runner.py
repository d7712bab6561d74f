"""One phase of one job: attempts until a sum is revealed, then its effect, once.

Every step is stored before what follows from it is sent. A process that crashes is continued from
the stored state: in UNMASK with the same session, afterwards by applying the stored sum, before
it by a new attempt with fresh keys. Source: docs/protocol.md 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from chorale.job import Job
from chorale.observability import tracing
from chorale.observability.logs import get_logger
from chorale.observability.tracing import Span
from chorale.spec.state import GlobalState
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2, session_pb2
from coordinator.complaints import FiledComplaint, excluded_silos
from coordinator.jobs.aggregate import MaskedSum, RevealedFile, revealed_file, unmask_stored
from coordinator.jobs.agreement import Abandonment, Agreement, cohort_proof
from coordinator.jobs.attempt_runner import REOFFER_SECONDS, AttemptFailed, AttemptRunner
from coordinator.jobs.outcome import outcome_of
from coordinator.jobs.phase_record import ApprovalWait, note_absences, phase_record, publish
from coordinator.jobs.statements import Statements
from coordinator.metrics import AttemptResult
from coordinator.phase_machine import RETRYABLE, PhaseEvent, PhaseMachine, PhaseState
from coordinator.reasons import Absent, FailureReason
from coordinator.resources import Resources
from coordinator.storage.spool import SessionSpool
from coordinator.storage.store import Absence, PhaseRow
from coordinator.storage.sum_files import SumFiles
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.roster import Roster
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import SessionTerms
from crypto.session.session_record import SessionRecord
from crypto.session.statements import AbandonedProof, StateProof
from strategies.base import PhaseResult

log = get_logger("coordinator.jobs.phase_runner")


class PhaseRunner:
    """Runs one phase to its end.

    `attempt` is the current session, if there is one; `ends_job` whether silos refused the whole job;
    `absences` are those of the last session. `statements` is what silos sign at its end; `revealed` the part
    of the sum that they fetch for it.
    away_since: the connectivity of the job's silos, kept up to date by its runner. before: the phase before.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        job: Job,
        row: PhaseRow,
        away_since: Mapping[str, float],
        before: PhaseRow | None,
        model_since: int,
        on_progress: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        self.attempt: AttemptRunner | None = None
        self.statements: Statements | None = None
        self.revealed: RevealedFile | None = None
        self.ends_job = False
        self.absences: list[Absence] = []
        self._resources = resources
        self._job = job
        self._row = row
        self._away_since = away_since
        self._before = before
        self._model_since = model_since
        self._has_inputs = row.attempt > 0  # silos may have sent some; of an earlier process it is not known
        self._on_progress = on_progress
        self._machine = PhaseMachine(state=row.state, attempt=max(row.attempt, 1))
        self._stage_began = resources.clock.monotonic()
        self._approval_wait = ApprovalWait()
        self._upload_bytes = row.upload_bytes
        self._record: SessionRecord | None = None
        self._shown: RevealedFile | None = None

    async def run(self) -> records_pb2.PhaseRecord:
        """The phase's record, already stored."""
        with self._span(Span.PHASE):
            try:
                roster = self._resources.roster_book.of_version(self._row.roster_version)
                state = self._resources.checkpoints.load(self._job.digest, self._row.state_digest)
                if self._machine.state is PhaseState.UNMASK:
                    with self._span(Span.ATTEMPT):
                        await self._resume(roster, state)
                elif self._machine.state is not PhaseState.REVEALED:
                    await self._run_attempts(roster, state)
            except AttemptFailed as failure:
                self.ends_job = failure.ends_job
                reason = failure.reason
            except RemoteProtocolError as error:
                log.warning("phase not possible", reason=str(error), **self._scope)
                reason = FailureReason.ROSTER
            else:
                with self._span(Span.APPLY):
                    return await self._apply(roster, state)
            lost = PhaseResult(state=None, reason=reason.value)
            return self._end(lost, self._row.state_digest, [], abandoned=await self._abandoned())

    # attempts

    async def _run_attempts(self, roster: Roster, state: GlobalState) -> None:
        """Retry until one reveals its sum. Raises AttemptFailed of the last one."""
        await self._prove_earlier()
        if self._row.attempt > 0:  # it ended with an earlier process
            self._fail_attempt(FailureReason.RESTARTED, is_told=False)
            self._machine.advance(PhaseEvent.ATTEMPT_FAILED)
        while True:
            if self._machine.attempt > self._job.spec.max_attempts:
                raise AttemptFailed(FailureReason.RESTARTED, is_final=True)
            try:
                with self._span(Span.ATTEMPT):
                    return await self._run_attempt(roster, state)
            except AttemptFailed as failure:
                is_last = self._machine.attempt >= self._job.spec.max_attempts
                self._fail_attempt(failure.reason)
                if failure.is_final or is_last or self._machine.state not in RETRYABLE:
                    raise
                self._advance(PhaseEvent.ATTEMPT_FAILED)

    async def _run_attempt(self, roster: Roster, state: GlobalState) -> None:
        """One session with fresh keys, to its revealed sum. Raises AttemptFailed, and RemoteProtocolError
        where the phase's roster holds no more."""
        store = self._resources.store
        self._resources.roster_book.of_version(roster.version)
        store.begin_attempt(self._row.sequence, self._machine.attempt)
        self._log_stage()
        terms = self._terms(roster, state)
        cohorts, abandoned = store.phase_proofs(self._job.digest, after=self._model_since)
        task = pb.PhaseTask(
            key=wire.key_to_wire(self._key),
            state_digest=terms.state_digest,
            state_bytes=self._resources.checkpoints.path(self._job.digest, terms.state_digest).stat().st_size,
            session_digest=terms.digest(),
            cohorts=cohorts,
            abandoned=abandoned,
        )
        session = CoordinatorSession(
            terms=terms, roster=roster, authority=self._resources.authority, now=self._resources.clock.now()
        )
        attempt = self._new_attempt(session, terms)
        uploads = SessionSpool(
            self._resources.settings.spool_directory / f"{self._row.sequence}-{self._machine.attempt}",
            total_bytes=terms.layout.total_bytes,
            memory=self._resources.spool_memory,
        )
        try:
            with uploads as spool:
                with self._span(Span.WAITING):
                    await attempt.collect_adverts(task, store.proofs(self._job.digest))
                with self._span(Span.SHARE):
                    await attempt.share()
                self._has_inputs = True
                with self._span(Span.MASKED):
                    await attempt.masked(spool)
                with self._span(Span.CONSISTENCY):
                    await self._store_sum(attempt, await attempt.consistency())
            await self._reveal(attempt)
        finally:
            self._close_attempt(attempt)

    async def _resume(self, roster: Roster, state: GlobalState) -> None:
        """The stored session asks again for its shares; the silos repeat their answers."""
        session = CoordinatorSession.resume(
            self._files.read_session(self._row.session_digest or b""),
            roster=roster,
            authority=self._resources.authority,
            now=self._resources.clock.now(),
        )
        self._record = session.record
        self._log_stage()
        attempt = self._new_attempt(session, self._terms(roster, state))
        try:
            await self._reveal(attempt)
        except AttemptFailed as failure:
            self._fail_attempt(failure.reason)
            raise
        finally:
            self._close_attempt(attempt)

    def _new_attempt(self, session: CoordinatorSession, terms: SessionTerms) -> AttemptRunner:
        after = {(self._row.sequence, self._machine.attempt - 1)}
        if self._before is not None:
            after.add((self._before.sequence, self._before.attempt))
        excluded = excluded_silos(self._resources.store.complaints(self._job.digest), after=after)
        self.attempt = AttemptRunner(
            resources=self._resources,
            job=self._job,
            key=self._key,
            terms=terms,
            session=session,
            away_since=self._away_since,
            excluded=excluded & frozenset(terms.names),
            on_stage=self._advance,
            on_progress=self._tell_progress,
        )
        return self.attempt

    def _close_attempt(self, attempt: AttemptRunner) -> None:
        """Keep what is known of the silos, whatever became of the session."""
        attempt.stop()
        self.attempt = None
        liars = attempt.session.liars
        lied = [Absence(silo=silo, stage=PhaseState.UNMASK.value, reason=Absent.LIED.value) for silo in liars]
        self.absences = [*lied, *attempt.absences]
        note_absences(self._resources, self._row, self._machine.attempt, self.absences)
        for sender, accused in attempt.session.complaints:
            self._resources.store.add_complaint(
                FiledComplaint(
                    phase=self._row.sequence, attempt=self._machine.attempt, sender=sender, accused=accused
                )
            )
            log.warning("silo complained", silo=sender, accused=accused, **self._scope)

    async def _store_sum(self, attempt: AttemptRunner, total: MaskedSum) -> None:
        """Masked sum, sets, signatures and envelopes are durable before a share is asked for."""
        self._upload_bytes = _mean_of(attempt.sent_bytes, attempt.session.survivors)
        self._resources.store.enter_unmask(
            self._row.sequence,
            session_digest=await asyncio.to_thread(
                self._files.store, total.parts(), attempt.session.snapshot()
            ),
            cohort=attempt.session.survivors,
            upload_bytes=self._upload_bytes,
        )
        self._record = attempt.session.record
        self._advance(PhaseEvent.SUM_STORED)

    async def _reveal(self, attempt: AttemptRunner) -> None:
        """Take the masks off the stored sum. The result is durable before the state says so."""
        with self._span(Span.UNMASK):
            before = dict(attempt.sent_bytes)
            plan = await attempt.unmask()
            self._shown = await asyncio.to_thread(unmask_stored, self._files, plan)
            sent = {silo: total - before[silo] for silo, total in attempt.sent_bytes.items()}
            self._upload_bytes += _mean_of(sent, plan.survivors)
            opens_draw = self._job.opens_draw(self._row.round, self._row.phase)
            self._resources.store.enter_revealed(
                self._row.sequence,
                upload_bytes=self._upload_bytes,
                self_mask_seeds=plan.self_mask_seeds if opens_draw else None,
            )
            self._row = self._resources.store.phase(self._row.sequence)
            self._advance(PhaseEvent.SUM_REVEALED)
            completed = AttemptResult.COMPLETED.value
            self._resources.metrics.attempts.labels(phase=self._key.kind, result=completed).inc()

    # the end

    async def _abandoned(self) -> AbandonedProof | None:
        """That t silos never reveal the phase, where inputs of it may have left and nothing says whose."""
        if not self._has_inputs or not self._job.strategy.reads_state(self._key.kind):
            return None
        if self._session_record() is not None:  # it says who would be in the sum
            return None
        return await self._ask_abandoned(self._row, self._machine.attempt)

    async def _prove_earlier(self) -> None:
        """That phases which too few silos were there to abandon when they ended are never revealed.

        Until it is proven silos give no input over the same model, so they are waited for as for this
        phase's inputs. Raises AttemptFailed.
        """
        store, clock = self._resources.store, self._resources.clock
        reads_state = self._job.strategy.reads_state
        gives_up_at = clock.monotonic() + self._job.spec.train_hard_cap_seconds
        for row in store.unproven_phases(self._job.digest, after=self._model_since):
            if not reads_state(self._key.kind) or not reads_state(wire.phase_kind(row.phase)):
                continue
            while (proof := await self._ask_abandoned(row, row.attempt)) is None:
                if clock.monotonic() >= gives_up_at:
                    raise AttemptFailed(FailureReason.TRAIN_HARD_CAP, is_final=True)
                await asyncio.sleep(REOFFER_SECONDS)
            store.add_abandoned(row.sequence, wire.abandoned_proof_to_wire(proof, self._job.digest))

    async def _ask_abandoned(self, row: PhaseRow, attempt: int) -> AbandonedProof | None:
        """None where too few silos are there to sign, or the phase's roster is not in use any more."""
        try:
            roster = self._resources.roster_book.of_version(row.roster_version)
            state = self._resources.checkpoints.load(self._job.digest, row.state_digest)
            terms = self._job.terms(
                roster=roster,
                round=row.round,
                phase=row.phase,
                attempt=attempt,
                state=state,
                state_digest=row.state_digest,
            )
        except (ConfigError, RemoteProtocolError):
            return None
        abandonment = Abandonment(
            resources=self._resources,
            key=PhaseKey(job_digest=self._job.digest, round=row.round, phase=row.phase, attempt=attempt),
            roster=roster,
            terms=terms,
            away_since=self._away_since,
            on_progress=self._tell_progress,
        )
        self.statements = abandonment.statements
        try:
            return await abandonment.run()
        finally:
            self.statements = None

    async def _apply(self, roster: Roster, state: GlobalState) -> records_pb2.PhaseRecord:
        """What the stored sum does, once t silos have computed the same."""
        terms = self._terms(roster, state)
        quantities = [quantity.name for quantity in terms.layout.quantities]
        record = self._session_record()
        assert record is not None  # stored before a share was asked for
        revealed = self._shown or await asyncio.to_thread(revealed_file, self._files, terms.layout)
        outcome = await asyncio.to_thread(
            outcome_of,
            self._job,
            self._key,
            terms,
            state,
            files=self._files,
            revealed=revealed,
            survivors=len(record.survivors),
            self_mask_seeds=self._row.self_mask_seeds,
            checkpoints=self._resources.checkpoints,
        )
        if outcome.revealed is None:
            return self._end(outcome.result, outcome.digest, quantities)
        self.revealed = outcome.revealed
        agreement = Agreement(
            resources=self._resources,
            key=self._key,
            record=record,
            roster=roster,
            outcome=outcome,
            self_mask_seeds=self._row.self_mask_seeds or {},
            away_since=self._away_since,
            on_progress=self._tell_progress,
        )
        self.statements = agreement.statements
        try:
            proof = await agreement.run()
        except AttemptFailed as failure:
            self.absences = agreement.statements.missing()
            note_absences(self._resources, self._row, self._machine.attempt, self.absences)
            self._fail_attempt(failure.reason)
            lost = PhaseResult(state=None, figures=outcome.result.figures, reason=failure.reason.value)
            return self._end(lost, self._row.state_digest, quantities)
        finally:
            self.statements = None
        threshold = terms.rule.threshold
        return self._end(outcome.result, outcome.digest, quantities, proof=proof, threshold=threshold)

    def _end(
        self,
        result: PhaseResult,
        state_digest: bytes,
        quantities: Sequence[str],
        *,
        proof: StateProof | None = None,
        abandoned: AbandonedProof | None = None,
        threshold: int = 0,
    ) -> records_pb2.PhaseRecord:
        """Store how the phase ended, then remove its sums and report it: a process that crashes in between
        leaves sums that the next start removes."""
        is_applied = result.state is not None
        self._machine.advance(PhaseEvent.SUM_APPLIED if is_applied else PhaseEvent.GIVEN_UP)
        record = phase_record(
            self._resources,
            self._row,
            result,
            state=self._machine.state,
            attempts=self._machine.attempt,
            state_digest=state_digest,
            quantities=quantities,
            upload_bytes=self._upload_bytes,
            verified_by=0 if proof is None else len(proof.signers),
            threshold=threshold,
            approval_seconds=self._approval_wait.seconds(now=self._resources.clock.monotonic()),
        )
        self._resources.store.end_phase(
            self._row.sequence,
            state=self._machine.state,
            record=record,
            proof=None if proof is None else wire.proof_to_wire(proof, self._job.digest),
            cohort=self._cohort_proof(),
            abandoned=None
            if abandoned is None
            else wire.abandoned_proof_to_wire(abandoned, self._job.digest),
        )
        self._log_stage()
        self._files.remove(keeps_tagged=self.revealed is not None)
        publish(self._resources, record)
        return record

    def _cohort_proof(self) -> session_pb2.CohortProof | None:
        """Who was in the sum, or would be; further phases over the same model need it."""
        record = self._session_record()
        if record is None or not self._job.strategy.reads_state(self._key.kind):
            return None
        return cohort_proof(self._key, record)

    def _session_record(self) -> SessionRecord | None:
        """Of the session that came to UNMASK, in this process or an earlier one; None where none did."""
        if self._record is None and self._row.session_digest is not None:
            self._record = SessionRecord.from_bytes(self._files.read_session(self._row.session_digest))
        return self._record

    # helpers

    @property
    def _key(self) -> PhaseKey:
        return PhaseKey(
            job_digest=self._job.digest,
            round=self._row.round,
            phase=self._row.phase,
            attempt=self._machine.attempt,
        )

    @property
    def _files(self) -> SumFiles:
        return SumFiles(
            self._resources.settings.sum_directory,
            sequence=self._row.sequence,
            attempt=self._machine.attempt,
        )

    def _span(self, name: Span) -> AbstractContextManager[None]:
        return tracing.span(name, self._job.digest, self._row.round, self._key)

    @property
    def _scope(self) -> dict[str, object]:
        return {
            "job": self._job.id,
            "round": self._row.round,
            "phase": self._row.phase,
            "attempt": self._machine.attempt,
        }

    def _advance(self, event: PhaseEvent) -> None:
        """Take a step of the phase machine and store it."""
        now = self._resources.clock.monotonic()
        stage = self._machine.state
        self._resources.metrics.stage_duration.labels(stage=stage.value).observe(now - self._stage_began)
        self._stage_began = now
        state = self._machine.advance(event)
        if event not in (PhaseEvent.SUM_STORED, PhaseEvent.SUM_REVEALED, PhaseEvent.ATTEMPT_FAILED):
            self._resources.store.set_phase_state(self._row.sequence, state)
        if event is not PhaseEvent.ATTEMPT_FAILED:
            self._log_stage()

    def _log_stage(self) -> None:
        log.info("stage", state=self._machine.state.value, **self._scope)
        self._tell_progress("", {})

    def _tell_progress(self, detail: str, awaited: Mapping[str, str]) -> None:
        """One line for those who watch: attempt, stage, who is awaited; and what of each silo."""
        self._approval_wait.note(awaited, now=self._resources.clock.monotonic())
        line = f"attempt {self._machine.attempt}: "
        self._on_progress(line + ", ".join(filter(None, [self._machine.state.value, detail])), awaited)

    def _terms(self, roster: Roster, state: GlobalState) -> SessionTerms:
        """Raises AttemptFailed where the roster leaves too few silos for this job."""
        try:
            return self._job.terms(
                roster=roster,
                round=self._row.round,
                phase=self._row.phase,
                attempt=self._machine.attempt,
                state=state,
                state_digest=self._row.state_digest,
            )
        except ConfigError as error:
            log.warning("phase not possible", reason=str(error), **self._scope)
            raise AttemptFailed(FailureReason.TOO_FEW_SILOS, is_final=True) from error

    def _fail_attempt(self, reason: FailureReason, *, is_told: bool = True) -> None:
        """Count it, and tell all silos of the job, so that they drop their sessions of this attempt."""
        self._resources.metrics.session_failures.labels(reason=reason.value).inc()
        self._resources.metrics.attempts.labels(phase=self._key.kind, result=AttemptResult.FAILED.value).inc()
        log.warning("attempt failed", reason=reason.value, **self._scope)
        if is_told:
            ended = session_pb2.SessionEnded(key=wire.key_to_wire(self._key), reason=reason.value)
            message = pb.CoordinatorMessage(session_ended=ended)
            self._resources.attendance.send_all(self._job.spec.silos, message)


def _mean_of(counts: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(counts[name] for name in names) // max(1, len(names))
