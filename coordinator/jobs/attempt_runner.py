"""One session at the coordinator: what is sent in each stage, who is waited for, who is lost.

The session itself (crypto.session.coordinator_session) knows neither time nor silos' connections; this
file adds both and nothing else. Messages come in through `on_message`, uploads through
`open_upload`; the stages run one after the other as coroutines. Source: docs/protocol.md 5 and 7.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1.session_pb2 import StateProof
from coordinator.jobs.aggregate import MaskedSum
from coordinator.jobs.deadlines import StageDeadlines, StageLimits, following_work, limits_of
from coordinator.phase_machine import PhaseEvent, PhaseState
from coordinator.reasons import (
    FATAL_TO_JOB,
    FATAL_TO_PHASE,
    OVERDUE_SECONDS,
    WAITED_FOR,
    Absent,
    Awaited,
    FailureReason,
    Reason,
)
from coordinator.resources import Resources
from coordinator.storage.spool import SessionSpool, Spool
from coordinator.storage.store import Absence
from crypto.errors import ChoraleError, LocalProtocolError, Refusal, RemoteProtocolError, SiloStage
from crypto.masking.masks import UnmaskPlan
from crypto.session.coordinator_session import (
    AbortReason,
    CoordinatorSession,
    CoordinatorState,
    SessionAborted,
)
from crypto.session.messages import SessionTerms

ADDED_AT_ONCE_BYTES = 8 << 20  # in some 2 ms: a thread takes turns of the interpreter's lock besides
REOFFER_SECONDS = 10.0  # a silo that refused for now is asked again while too few are there
SHARES_RECEIVED = "shares received"  # the event of the log

log = get_logger("coordinator.jobs.attempt_runner")

Outbox = Mapping[str, pb.CoordinatorMessage]


class AttemptFailed(ChoraleError):
    """The session ended without a sum. is_final: another attempt at this phase cannot help."""

    def __init__(self, reason: FailureReason, *, is_final: bool = False, ends_job: bool = False) -> None:
        super().__init__(f"attempt failed: {reason.value}")
        self.reason = reason
        self.is_final = is_final
        self.ends_job = ends_job


@dataclass(frozen=True, slots=True)
class _Inbound:
    """What a silo may send, in which state of the session, and who takes it in."""

    state: CoordinatorState
    take: Callable[[CoordinatorSession, str, Any], None]


_INBOUND: dict[str, _Inbound] = {
    "advert": _Inbound(CoordinatorState.ADVERTISE, CoordinatorSession.on_advert),
    "shares": _Inbound(CoordinatorState.SHARE, CoordinatorSession.on_shares),
    "complaint": _Inbound(CoordinatorState.MASKED, CoordinatorSession.on_complaint),
    "consistency": _Inbound(CoordinatorState.CONSISTENCY, CoordinatorSession.on_consistency),
    "unmask_shares": _Inbound(CoordinatorState.UNMASK, CoordinatorSession.on_unmask),
    "recovered_seeds": _Inbound(CoordinatorState.RECOVER, CoordinatorSession.on_recovered),
}
SESSION_MESSAGES = frozenset(_INBOUND) | {"refused"}


class AttemptRunner:
    """Runs one CoordinatorSession. `on_stage` makes each step durable before its messages leave.

    away_since: the connectivity of the job's silos, kept up to date by the job's runner. excluded: silos
    that sit out this attempt.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        job: Job,
        key: PhaseKey,
        terms: SessionTerms,
        session: CoordinatorSession,
        away_since: Mapping[str, float],
        excluded: frozenset[str],
        on_stage: Callable[[PhaseEvent], None],
        on_progress: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        self.key = key
        self.session = session
        self.absences: list[Absence] = []
        self.sent_bytes: dict[str, int] = dict.fromkeys(terms.names, 0)
        settings = self._settings = resources.settings
        self._clock = resources.clock
        self._send = resources.attendance.send
        self._floor = limits_of(settings)
        self._line_rates = resources.line_rates
        self._spec = job.spec
        self._terms = terms
        self._min_silos = terms.rule.min_survivors
        self._away_since = away_since
        self._excluded = excluded
        self._on_stage = on_stage
        self._on_progress = on_progress
        self._scope = {"job": job.id, "round": key.round, "phase": key.phase, "attempt": key.attempt}
        self._is_given_up = False
        self._overdue_at = math.inf  # when a stage that no silo can be missed in names those it waits for
        self._outbox: Outbox = {}  # what this stage sent, for a silo that comes back
        self._out: dict[str, Reason] = {}  # silos that are out of this stage, and why
        self._stages: dict[str, SiloStage] = {}  # what silos say that they do before they compute
        self._news = asyncio.Event()
        self._spool: SessionSpool | None = None
        self._sum: MaskedSum | None = None
        self._additions: dict[str, asyncio.Task[None]] = {}
        self._adding = asyncio.Lock()
        self._deadlines = StageDeadlines(
            self._floor, started=self._clock.monotonic(), away_since=away_since
        )  # until the first stage begins

    # what the silos do

    def on_connected(self, silo: str) -> None:
        """The silo gets again what it has not answered."""
        if self.session.state is CoordinatorState.ADVERTISE:
            self._out.pop(silo, None)  # it may have a new policy, or have been approved meanwhile
        self._send_again(silo)
        self._news.set()

    def on_lost(self) -> None:
        """The stage looks again at how long it waits for whom."""
        self._news.set()

    def on_heartbeat(self, silo: str, *, is_preparing: bool) -> None:
        """is_preparing: the heartbeat lists this phase, so the silo's input is being computed. A silo that
        neither computes nor has answered may have lost its task, and gets it again."""
        if self.session.state is not CoordinatorState.ADVERTISE:
            return  # its input was ready when it adverted: nothing else than its answer is a sign of progress
        if is_preparing:
            self._deadlines.on_alive(silo, now=self._clock.monotonic())
        else:
            self._send_again(silo)

    def on_silo_stage(self, silo: str, stage: SiloStage | None) -> None:
        """stage: what the silo does before it computes an input; None: no longer."""
        self._stages.pop(silo, None)
        if stage is not None:
            self._stages[silo] = stage
        self._news.set()

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        """Take in what a named silo sent for this very attempt."""
        if silo not in self._terms.names or silo in self._excluded:
            return
        kind = str(message.WhichOneof("kind"))
        self.sent_bytes[silo] += message.ByteSize()
        try:
            if kind == "refused":
                refused = wire.refused_from_wire(message.refused)
                rule = "" if refused.rule is None else refused.rule.value
                log.info("silo refused", silo=silo, code=refused.code.value, rule=rule, **self._scope)
                if silo in self.session.awaited:
                    self._out[silo] = Reason(code=refused.code.value, rule=rule, text=refused.text)
            elif self.session.state is not (inbound := _INBOUND[kind]).state:
                log.info("message too late or too early", silo=silo, **self._scope)
            elif kind == "complaint" and silo in self._additions:
                raise RemoteProtocolError("complaint: the silo has masked already", code=Refusal.STAGE)
            else:
                inbound.take(self.session, silo, wire.from_silo(message))
                self._out.pop(silo, None)
                if kind == "complaint":
                    self._out[silo] = Reason(code=Absent.COMPLAINED.value)
                if kind == "shares":
                    log.info(SHARES_RECEIVED, silo=silo, **self._scope)
        except RemoteProtocolError as error:
            log.warning("message not accepted", silo=silo, kind=kind, reason=str(error), **self._scope)
            self._out[silo] = Reason(code=error.code.value)
        self._news.set()

    def open_upload(self, silo: str, total_bytes: int) -> Spool:
        """Where the silo's vector goes. Raises RemoteProtocolError out of stage or of size."""
        if self._spool is not None and silo in self._additions:
            return self._spool.open(silo)  # complete: the silo missed the receipt, and may at any stage
        if self._spool is None or self.session.state is not CoordinatorState.MASKED:
            raise RemoteProtocolError("upload: no masked vector is awaited now", code=Refusal.STAGE)
        if silo not in self.session.sharers:
            raise RemoteProtocolError("upload: the silo is not in U2", code=Refusal.LEFT_OUT)
        if total_bytes != self._terms.layout.total_bytes:
            expected = self._terms.layout.total_bytes
            raise RemoteProtocolError(f"upload: {total_bytes} bytes, expected {expected} for this layout")
        return self._spool.open(silo)

    @property
    def standstill_seconds(self) -> float:
        """How long nothing may come on an upload: a silo that resumes it masks again what is here."""
        return self._deadlines.limits.standstill_seconds

    def on_download(self, silo: str, *, sent_bytes: int) -> None:
        """The silo has taken so many more bytes of the state that it prepares its input from."""
        if self.session.state is CoordinatorState.ADVERTISE:
            self._deadlines.on_transfer(silo, moved_bytes=sent_bytes, now=self._clock.monotonic())

    def on_upload_progress(self, silo: str, *, chunk_bytes: int) -> None:
        """chunk_bytes: what has just arrived, with its frame."""
        self.sent_bytes[silo] += chunk_bytes
        if self.session.state is CoordinatorState.MASKED:  # later a silo only asks again for its receipt
            self._deadlines.on_transfer(silo, moved_bytes=chunk_bytes, now=self._clock.monotonic())

    def finish_upload(self, silo: str, spool: Spool, sha256: bytes) -> None:
        """The vector is whole: the silo is a survivor, and its vector is added in the background.

        Raises RemoteProtocolError if it is not, or if the stage has closed meanwhile.
        """
        if spool.is_complete:
            return
        if self.session.state is not CoordinatorState.MASKED:
            raise RemoteProtocolError("upload: the stage has closed", code=Refusal.STAGE)
        spool.finish(sha256)
        self.session.on_masked(silo)
        self._out.pop(silo, None)  # an upload that had failed at the silo
        assert self._sum is not None  # made before the stage's first message left
        self._additions[silo] = asyncio.create_task(self._add(spool, self._sum))
        self._news.set()

    def give_up(self) -> None:
        """UNMASK waits no longer: nobody can do without the answers that it lacks."""
        self._is_given_up = True
        self._news.set()

    # the stages

    async def collect_adverts(self, task: pb.PhaseTask, proofs: Sequence[StateProof]) -> None:
        """Until every awaited silo adverted or refused, or the deadline passed with enough of them.

        proofs: that the task's state was computed, for silos that did not sign the newest of them.

        While fewer than needed are there it keeps waiting up to the hard cap: no attempt is used.
        """
        candidates = frozenset(self._terms.names) - self._excluded
        waiting, sits_out = PhaseState.WAITING.value, Absent.SITS_OUT.value
        self.absences += [
            Absence(silo=silo, stage=waiting, reason=sits_out) for silo in sorted(self._excluded)
        ]
        deadline, hard_cap = self._spec.train_deadline_seconds, self._spec.train_hard_cap_seconds
        floor = replace(self._floor, deadline=deadline, hard_cap=hard_cap)
        signers = {signer.name for signer in proofs[-1].signers} if proofs else set()
        bare, proven = pb.CoordinatorMessage(task=task), pb.CoordinatorMessage(task=task)
        proven.task.proofs.extend(proofs)
        tasks = {silo: bare if silo in signers else proven for silo in candidates}
        self._begin_stage(tasks, floor, downloaded_bytes=task.state_bytes)
        has_enough = False
        while True:
            self._news.clear()
            now = self._clock.monotonic()
            pending = (candidates & self.session.awaited) - self._out.keys()
            awaited = self._deadlines.awaited(pending, now=now)
            adverted = candidates - self.session.awaited
            here = [silo for silo in adverted if self._deadlines.is_present(silo, now=now)]
            is_enough = len(here) >= self._min_silos
            if is_enough and not has_enough:
                has_enough = True
                self._on_stage(PhaseEvent.ENOUGH_ADVERTS)
            if is_enough and not awaited:
                return
            self._check_hope(candidates, awaited, now=now)
            self._tell_awaited(awaited or pending, is_enough=is_enough)
            reoffer_at = min(now + REOFFER_SECONDS, self._deadlines.hard_cap_at)
            await self._news_until(min(awaited.values(), default=reoffer_at))
            if not is_enough and not awaited:
                # silos that refused for a reason that may have passed
                for silo, reason in list(self._out.items()):
                    if reason.code not in FATAL_TO_PHASE and silo in self.session.awaited:
                        del self._out[silo]
                        self._send_again(silo)

    async def share(self) -> None:
        """Fix U1, hand out the adverts, collect the sealed shares."""
        cohort = self._close(self.session.close_advertise, PhaseState.ADVERTISE, self._terms.names)
        self._lose(set(self._terms.names) - self._excluded - set(self.session.cohort), PhaseState.WAITING)
        self._on_stage(PhaseEvent.COHORT_FIXED)
        message = wire.to_silo(cohort, self.key)
        self._begin_stage(dict.fromkeys(self.session.cohort, message), self._floor)
        await self._collect()

    async def masked(self, spool: SessionSpool) -> None:
        """Relay the envelopes and take in the masked vectors."""
        envelopes = self._close(self.session.close_share, PhaseState.SHARE, self.session.cohort)
        self._lose(set(self.session.cohort) - set(self.session.sharers), PhaseState.SHARE)
        self._on_stage(PhaseEvent.SHARES_CLOSED)
        self._spool = spool
        self._sum = MaskedSum(self._terms.layout)
        # taken out one after the other: all envelopes together are not held twice
        outbox = {silo: wire.to_silo(envelopes.pop(silo), self.key) for silo in list(envelopes)}
        self._begin_stage(outbox, self._floor, uploaded_bytes=self._terms.layout.total_bytes)
        await self._collect()

    async def consistency(self) -> MaskedSum:
        """Fix U3 and collect signatures over the sets until t are there: a silo that signs later is not
        waited for and loses nothing. Gives the sum over U3, still masked."""
        survivors = self._close(self.session.close_masked, PhaseState.MASKED, self.session.sharers)
        self._lose(set(self.session.sharers) - set(self.session.survivors), PhaseState.MASKED)
        await asyncio.gather(*self._additions.values())
        self._outbox = {}
        if set(self._additions) != set(self.session.survivors):
            raise LocalProtocolError("attempt: the added vectors are not those of U3")
        self._on_stage(PhaseEvent.UPLOADS_CLOSED)
        message = wire.to_silo(survivors, self.key)
        self._begin_stage(dict.fromkeys(self.session.survivors, message), self._floor)
        await self._collect(is_done=lambda: self.session.has_signatures)
        self._close(self.session.close_consistency, PhaseState.CONSISTENCY, self.session.survivors)
        assert self._sum is not None  # made when the masked stage began
        total, self._sum = self._sum, None  # the caller stores it and drops it
        return total

    async def unmask(self) -> UnmaskPlan:
        """Ask for the shares, also of silos that come back late, until they suffice."""
        # no share can be had elsewhere, so since when a silo is away or silent does not matter
        cap = self._settings.unmask_hard_cap_seconds
        floor = replace(self._floor, deadline=math.inf, hard_cap=cap, grace=math.inf)
        message = wire.to_silo(self.session.unmask_request(), self.key)
        self._begin_stage(dict.fromkeys(self.session.survivors, message), floor)
        self._overdue_at = self._clock.monotonic() + OVERDUE_SECONDS
        await self._collect(is_done=lambda: self.session.can_unmask)
        if not self.session.can_unmask:
            self._check_given_up()
        answer = self._close(self.session.close_unmask, PhaseState.UNMASK, self.session.survivors)
        if isinstance(answer, UnmaskPlan):
            return answer
        # survivors are asked, under the same hard cap, for the seeds that they share with a lost silo whose
        # own secret is false
        self._out.clear()
        self._outbox = {silo: wire.to_silo(request, self.key) for silo, request in answer.items()}
        for silo, request in self._outbox.items():
            self._send(silo, request)
        await self._collect()
        if self._is_given_up and self.session.awaited:
            self._check_given_up()
        plan: UnmaskPlan = self._close(self.session.close_recover, PhaseState.UNMASK, self.session.survivors)
        return plan

    def stop(self) -> None:
        """Nothing is awaited any more."""
        for addition in self._additions.values():
            addition.cancel()
        self._outbox = {}

    # helpers

    def _begin_stage(
        self, outbox: Outbox, floor: StageLimits, *, uploaded_bytes: int = 0, downloaded_bytes: int = 0
    ) -> None:
        limits = following_work(
            floor,
            silos=len(outbox),
            slowest_rate=self._line_rates.slowest(outbox),
            uploaded_bytes=uploaded_bytes,
            downloaded_bytes=downloaded_bytes,
        )
        is_waiting = self.session.state is CoordinatorState.ADVERTISE  # the phase's stage, in its own words
        stage = PhaseState.WAITING.value if is_waiting else self.session.state.value
        log.info("stage begun", stage=stage, **limits.log_fields(), **self._scope)
        now = self._clock.monotonic()
        self._deadlines = StageDeadlines(limits, started=now, away_since=self._away_since)
        self._outbox = outbox
        for silo, message in outbox.items():
            self._send(silo, message)

    def _send_again(self, silo: str) -> None:
        """What the silo has not answered yet, byte-identical (docs/protocol.md 8)."""
        if silo in self._outbox and silo in self.session.awaited and silo not in self._out:
            self._send(silo, self._outbox[silo])

    async def _collect(self, *, is_done: Callable[[], bool] = lambda: False) -> None:
        """Take in answers until none is worth waiting for."""
        while not (is_done() or self._is_given_up):
            self._news.clear()
            awaited = self._deadlines.awaited(
                self.session.awaited - self._out.keys(), now=self._clock.monotonic()
            )
            if not awaited:
                return
            self._tell_awaited(awaited)
            overdue = [self._overdue_at] if self._overdue_at > self._clock.monotonic() else []
            await self._news_until(min([*awaited.values(), *overdue]))

    async def _news_until(self, moment: float) -> None:
        """Wait for anything that may change whom the stage awaits, and no longer than until then."""
        try:
            async with asyncio.timeout(max(0.0, moment - self._clock.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return

    def _check_hope(self, candidates: frozenset[str], awaited: Collection[str], *, now: float) -> None:
        """Give up at once where waiting cannot bring enough silos."""
        if len(candidates) < self._min_silos:
            raise AttemptFailed(FailureReason.TOO_FEW_SILOS)
        for codes, ends_job in ((FATAL_TO_JOB, True), (FATAL_TO_PHASE, False)):
            refused = [silo for silo, out in self._out.items() if out.code in codes and silo in candidates]
            if len(candidates) - len(refused) < self._min_silos:
                self._lose(set(candidates) & self.session.awaited, PhaseState.WAITING)
                would_do = [silo for silo in refused if self._out[silo].code == Refusal.BUDGET]
                is_budget = len(candidates) - len(refused) + len(would_do) >= self._min_silos
                reason = FailureReason.BUDGET if is_budget else FailureReason.REFUSED
                raise AttemptFailed(reason, is_final=True, ends_job=ends_job)
        if now >= self._deadlines.hard_cap_at and not awaited:  # else one still downloads
            self._lose(set(candidates) & self.session.awaited, PhaseState.WAITING)
            raise AttemptFailed(FailureReason.TRAIN_HARD_CAP, is_final=True)

    def _check_given_up(self) -> None:
        """Raises AttemptFailed where UNMASK has waited long enough; who was awaited stood in the way."""
        if self._is_given_up:
            reason = FailureReason.SKIPPED
        elif self._clock.monotonic() >= self._deadlines.hard_cap_at:
            reason = FailureReason.UNMASK_HARD_CAP
        else:
            return
        self._lose(self.session.awaited, PhaseState.UNMASK)
        raise AttemptFailed(reason, is_final=True)

    async def _add(self, spool: Spool, total: MaskedSum) -> None:
        """One vector at a time, a large one in a thread."""
        async with self._adding:
            if spool.total_bytes <= ADDED_AT_ONCE_BYTES:
                total.add(spool.data())
            else:
                await asyncio.to_thread(total.add, spool.data())
            spool.close()

    def _close(self, close: Callable[[], Any], stage: PhaseState, expected: Iterable[str]) -> Any:
        """Close a stage of the session; where it aborts, so does the attempt."""
        missing = set(expected) & (self.session.awaited | self._out.keys())
        try:
            return close()
        except SessionAborted as error:
            self._lose(missing, stage)
            is_final = error.reason is AbortReason.PROVEN_LIAR
            raise AttemptFailed(FailureReason(error.reason.value), is_final=is_final) from error

    def _lose(self, silos: Iterable[str], stage: PhaseState) -> None:
        """Note why each silo is left out, at the stage where it was lost first."""
        known = {absence.silo for absence in self.absences}
        for silo in sorted(set(silos) - known):
            silent = Absent.DISCONNECTED if silo in self._away_since else Absent.NO_ANSWER
            why = self._out.get(silo, Reason(code=silent.value))
            self.absences.append(
                Absence(silo=silo, stage=stage.value, reason=why.code, rule=why.rule, text=why.text)
            )

    def _tell_awaited(self, awaited: Iterable[str], *, is_enough: bool = True) -> None:
        """Whom the stage waits for, and who is not in it and why: what an operator can do something about.

        is_enough: without those where people have yet to act, for which it waits otherwise.
        """
        parts = [f"awaiting {', '.join(sorted(awaited))}"] if awaited else []
        for reason in sorted({why.for_operator for why in self._out.values()}):
            silos = ", ".join(sorted(silo for silo, why in self._out.items() if why.for_operator == reason))
            parts.append(f"without {silos} ({reason})")
        waits = {silo: self._awaited_of(silo) for silo in awaited}
        if not is_enough:
            waits |= {
                silo: WAITED_FOR[Refusal(why.code)].value
                for silo, why in self._out.items()
                if why.code in WAITED_FOR
            }
        self._on_progress("; ".join(parts) or "awaiting silos", waits)

    def _awaited_of(self, silo: str) -> str:
        if self._clock.monotonic() >= self._overdue_at:
            return Awaited.OVERDUE.value
        if silo in self._away_since:
            return Awaited.CONNECTION.value
        if self.session.state is not CoordinatorState.ADVERTISE:
            return Awaited.ANSWER.value
        return self._stages.get(silo, Awaited.INPUT).value
