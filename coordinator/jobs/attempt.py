"""One session at the coordinator: what is sent in each stage, who is waited for, who is lost.

The session itself (crypto.session.coordinator_session) knows neither time nor silos' connections; this
file adds both and nothing else. Messages come in through `on_message`, uploads through
`open_upload`; the stages run one after the other as coroutines. Source: docs/protocol.md 5 and 7.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.observability.logs import get_logger
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from coordinator.clock import Clock
from coordinator.jobs.aggregate import MaskedSum
from coordinator.jobs.deadlines import StageDeadlines, StageLimits
from coordinator.members.connectivity import Connectivity
from coordinator.phase_machine import PhaseEvent, PhaseState
from coordinator.reasons import FATAL_TO_JOB, FATAL_TO_PHASE, Absent, FailureReason
from coordinator.storage.spool import SessionSpool, Spool
from coordinator.storage.store import Absence
from crypto.errors import ChoraleError, LocalProtocolError, Refusal, RemoteProtocolError
from crypto.masking.masks import UnmaskPlan
from crypto.session.coordinator_session import (
    AbortReason,
    CoordinatorSession,
    CoordinatorState,
    SessionAborted,
)
from crypto.session.messages import SessionTerms

REOFFER_SECONDS = 10.0  # a silo that refused for now is asked again while too few are there

log = get_logger("coordinator.jobs.attempt")

Outbox = Mapping[str, pb.CoordinatorMessage]


class AttemptFailed(ChoraleError):
    """The session ended without a sum. is_final: another attempt at this phase cannot help."""

    def __init__(self, reason: FailureReason, *, is_final: bool = False, ends_job: bool = False) -> None:
        super().__init__(f"attempt failed: {reason.value}")
        self.reason = reason
        self.is_final = is_final
        self.ends_job = ends_job


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """How long each kind of stage waits."""

    train: StageLimits
    stage: StageLimits
    unmask_hard_cap: float
    hold_before_relay: float = 0.0


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


class Attempt:
    """Drives one CoordinatorSession. `on_stage` makes each step durable before its messages leave."""

    def __init__(
        self,
        *,
        key: PhaseKey,
        terms: SessionTerms,
        session: CoordinatorSession,
        limits: AttemptLimits,
        connectivity: Connectivity,
        clock: Clock,
        send: Callable[[str, pb.CoordinatorMessage], object],
        on_stage: Callable[[PhaseEvent], None],
        on_progress: Callable[[str], None],
        kept_out: frozenset[str] = frozenset(),
    ) -> None:
        self.key = key
        self.session = session
        self.absences: list[Absence] = []
        self.sent_bytes: dict[str, int] = dict.fromkeys(terms.names, 0)
        self._terms = terms
        self._limits = limits
        self._connectivity = connectivity
        self._clock = clock
        self._send = send
        self._on_stage = on_stage
        self._on_progress = on_progress
        self._kept_out = kept_out
        self._out: dict[str, str] = {}
        self._outbox: Outbox = {}
        self._deadlines = self._new_deadlines(limits.stage)
        self._news = asyncio.Event()
        self._spool: SessionSpool | None = None
        self._sum: MaskedSum | None = None
        self._additions: dict[str, asyncio.Task[None]] = {}
        self._adding = asyncio.Lock()

    # what the silos do

    def on_connected(self, silo: str) -> None:
        self._deadlines.on_present(silo)
        if self.session.state is CoordinatorState.ADVERTISE:
            self._out.pop(silo, None)  # it may have a new policy, or have been approved meanwhile
        self._send_again(silo)
        self._news.set()

    def on_lost(self, silo: str) -> None:
        self._deadlines.on_lost(silo, now=self._clock.monotonic())
        self._news.set()

    def on_heartbeat(self, silo: str, *, is_preparing: bool) -> None:
        """is_preparing: the heartbeat lists this phase, so the silo's input is being computed. A silo that
        neither computes nor has answered may have lost its task, and gets it again."""
        if is_preparing:
            self._deadlines.on_alive(silo, now=self._clock.monotonic())
        elif self.session.state is CoordinatorState.ADVERTISE:
            self._send_again(silo)

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        """Take in what a named silo sent for this very attempt."""
        if silo not in self._terms.names or silo in self._kept_out:
            return
        kind = str(message.WhichOneof("kind"))
        self.sent_bytes[silo] += message.ByteSize()
        try:
            if kind == "refused":
                self._on_refused(silo, wire.refused_from_wire(message.refused))
            else:
                self._on_session_message(silo, _INBOUND[kind], message)
        except RemoteProtocolError as error:
            log.warning("message not accepted", silo=silo, kind=kind, reason=str(error), **self._scope)
            self._out[silo] = error.code.value
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

    def on_upload_progress(self, silo: str, spool: Spool, *, chunk_bytes: int) -> None:
        self.sent_bytes[silo] += chunk_bytes
        now = self._clock.monotonic()
        self._deadlines.on_upload(silo, received_bytes=spool.received_bytes, now=now)

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
        self._additions[silo] = asyncio.create_task(self._add(spool.path))
        self._news.set()

    # the stages

    async def collect_adverts(self, task: pb.PhaseTask) -> None:
        """Until every awaited silo adverted or refused, or the deadline passed with enough of them.

        While fewer than needed are there it goes on waiting up to the hard cap: no attempt is used.
        """
        candidates = frozenset(self._terms.names) - self._kept_out
        for silo in sorted(self._kept_out):
            self.absences.append(_absence(silo, PhaseState.WAITING, Absent.SITS_OUT))
        message = pb.CoordinatorMessage(task=task)
        self._begin_stage(self._limits.train, dict.fromkeys(candidates, message))
        has_enough = False
        while True:
            self._news.clear()
            now = self._clock.monotonic()
            pending = (candidates & self.session.awaited) - self._out.keys()
            awaited = self._deadlines.awaited(pending, now=now)
            here = [silo for silo in candidates - self.session.awaited if self._is_present(silo, now)]
            is_enough = len(here) >= self._least
            if is_enough and not has_enough:
                has_enough = True
                self._on_stage(PhaseEvent.ENOUGH_ADVERTS)
            if is_enough and not awaited:
                return
            self._check_hope(candidates, now)
            self._tell_awaited(awaited or pending)
            reoffer_at = min(now + REOFFER_SECONDS, self._deadlines.hard_cap_at)
            await self._news_until(min(awaited.values(), default=reoffer_at))
            if not is_enough and not awaited:
                self._offer_again()

    async def share(self) -> None:
        """Fix U1, hand out the adverts, collect the sealed shares."""
        cohort = self._close(self.session.close_advertise, PhaseState.ADVERTISE, self._terms.names)
        self._lose(set(self._terms.names) - self._kept_out - set(self.session.cohort), PhaseState.WAITING)
        self._on_stage(PhaseEvent.COHORT_FIXED)
        message = wire.to_silo(cohort, self.key)
        self._begin_stage(self._limits.stage, dict.fromkeys(self.session.cohort, message))
        await self._collect()

    async def masked(self, spool: SessionSpool) -> None:
        """Relay the envelopes and take in the masked vectors."""
        envelopes = self._close(self.session.close_share, PhaseState.SHARE, self.session.cohort)
        self._lose(set(self.session.cohort) - set(self.session.sharers), PhaseState.SHARE)
        if self._limits.hold_before_relay > 0:
            self._on_progress("shares received")
            await asyncio.sleep(self._limits.hold_before_relay)
        self._on_stage(PhaseEvent.SHARES_CLOSED)
        self._spool = spool
        self._sum = MaskedSum(self._terms.layout)
        outbox = {silo: wire.to_silo(dealt, self.key) for silo, dealt in envelopes.items()}
        self._begin_stage(self._limits.stage, outbox)
        await self._collect()

    async def consistency(self) -> MaskedSum:
        """Fix U3 and collect signatures over the sets until t are there: who signs later is not waited
        for and loses nothing. Gives the sum over U3, still masked."""
        survivors = self._close(self.session.close_masked, PhaseState.MASKED, self.session.sharers)
        self._lose(set(self.session.sharers) - set(self.session.survivors), PhaseState.MASKED)
        await self._finish_sum()
        self._on_stage(PhaseEvent.UPLOADS_CLOSED)
        message = wire.to_silo(survivors, self.key)
        self._begin_stage(self._limits.stage, dict.fromkeys(self.session.survivors, message))
        await self._collect(is_done=lambda: self.session.has_signatures)
        self._close(self.session.close_consistency, PhaseState.CONSISTENCY, self.session.survivors)
        total, self._sum = self._masked_sum, None  # whoever stores it lets go of it
        return total

    async def unmask(self) -> UnmaskPlan:
        """Ask for the shares, also of silos that come back late, until they suffice."""
        cap = self._limits.unmask_hard_cap
        # no share can be had elsewhere, so since when a silo is away does not matter
        limits = StageLimits(deadline=cap, hard_cap=cap, grace=math.inf)
        message = wire.to_silo(self.session.unmask_request(), self.key)
        self._begin_stage(limits, dict.fromkeys(self.session.survivors, message))
        await self._collect(is_done=lambda: self.session.can_unmask)
        if not self.session.can_unmask and self._clock.monotonic() >= self._deadlines.hard_cap_at:
            raise AttemptFailed(FailureReason.UNMASK_HARD_CAP, is_final=True)
        answer = self._close(self.session.close_unmask, PhaseState.UNMASK, self.session.survivors)
        return answer if isinstance(answer, UnmaskPlan) else await self._recover(answer)

    async def _recover(self, requests: Mapping[str, Any]) -> UnmaskPlan:
        """Ask survivors for the seeds that they share with a lost silo whose own secret is false."""
        self._outbox = {silo: wire.to_silo(request, self.key) for silo, request in requests.items()}
        self._out.clear()
        self._send_outbox()
        await self._collect()
        plan: UnmaskPlan = self._close(self.session.close_recover, PhaseState.UNMASK, self.session.survivors)
        return plan

    def stop(self) -> None:
        """Nothing is awaited any more."""
        for addition in self._additions.values():
            addition.cancel()
        self._outbox = {}

    # helpers

    @property
    def _scope(self) -> dict[str, object]:
        job = self.key.job_digest.hex()[:12]
        return {"job": job, "round": self.key.round, "phase": self.key.phase, "attempt": self.key.attempt}

    @property
    def _least(self) -> int:
        return self._terms.rule.min_survivors

    def _new_deadlines(self, limits: StageLimits) -> StageDeadlines:
        deadlines = StageDeadlines(limits, started=self._clock.monotonic())
        for silo in self._terms.names:
            lost_at = self._connectivity.lost_at(silo)
            if lost_at is not None:
                deadlines.on_lost(silo, now=lost_at)
        return deadlines

    def _begin_stage(self, limits: StageLimits, outbox: Outbox) -> None:
        self._deadlines = self._new_deadlines(limits)
        self._outbox = outbox
        self._send_outbox()

    def _send_outbox(self) -> None:
        for silo, message in self._outbox.items():
            self._send(silo, message)

    def _send_again(self, silo: str) -> None:
        """To a silo that came back: what it has not answered yet."""
        if silo in self._outbox and silo in self.session.awaited and silo not in self._out:
            self._send(silo, self._outbox[silo])

    async def _collect(self, *, is_done: Callable[[], bool] = lambda: False) -> None:
        """Take in answers until none is worth waiting for."""
        while not is_done():
            self._news.clear()
            awaited = self._deadlines.awaited(
                self.session.awaited - self._out.keys(), now=self._clock.monotonic()
            )
            if not awaited:
                return
            self._tell_awaited(awaited)
            await self._news_until(min(awaited.values()))

    async def _news_until(self, moment: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, moment - self._clock.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return

    def _is_present(self, silo: str, now: float) -> bool:
        return self._deadlines.is_present(silo, now=now)

    def _check_hope(self, candidates: frozenset[str], now: float) -> None:
        """Give up at once where waiting cannot bring enough silos."""
        if len(candidates) < self._least:
            raise AttemptFailed(FailureReason.TOO_FEW_SILOS)
        for codes, ends_job in ((FATAL_TO_JOB, True), (FATAL_TO_PHASE, False)):
            refused = [silo for silo, code in self._out.items() if code in codes and silo in candidates]
            if len(candidates) - len(refused) < self._least:
                self._lose(set(candidates), PhaseState.WAITING)
                would_do = [silo for silo in refused if self._out[silo] == Refusal.BUDGET]
                is_budget = len(candidates) - len(refused) + len(would_do) >= self._least
                reason = FailureReason.BUDGET if is_budget else FailureReason.REFUSED
                raise AttemptFailed(reason, is_final=True, ends_job=ends_job)
        if now >= self._deadlines.hard_cap_at:
            self._lose(set(candidates) & self.session.awaited, PhaseState.WAITING)
            raise AttemptFailed(FailureReason.TRAIN_HARD_CAP, is_final=True)

    def _offer_again(self) -> None:
        for silo, code in list(self._out.items()):
            if code not in FATAL_TO_PHASE and silo in self.session.awaited:
                del self._out[silo]
                self._send_again(silo)

    def _on_refused(self, silo: str, code: Refusal) -> None:
        log.info("silo refused", silo=silo, code=code.value, **self._scope)
        if silo in self.session.awaited:
            self._out[silo] = code.value

    def _on_session_message(self, silo: str, inbound: _Inbound, message: pb.SiloMessage) -> None:
        if self.session.state is not inbound.state:
            log.info("message too late or too early", silo=silo, **self._scope)
            return
        if inbound.state is CoordinatorState.MASKED and silo in self._additions:
            raise RemoteProtocolError("complaint: the silo has masked already", code=Refusal.STAGE)
        inbound.take(self.session, silo, wire.from_silo(message))
        if inbound.state is CoordinatorState.SHARE:
            log.info("shares received", silo=silo, **self._scope)
        self._out.pop(silo, None)
        if inbound.state is CoordinatorState.MASKED:
            self._out[silo] = Absent.COMPLAINED.value

    @property
    def _masked_sum(self) -> MaskedSum:
        if self._sum is None:
            raise LocalProtocolError("attempt: no sum before the masked stage")
        return self._sum

    async def _add(self, spooled: Path) -> None:
        async with self._adding:
            await asyncio.to_thread(self._masked_sum.add, spooled)
            spooled.unlink(missing_ok=True)

    async def _finish_sum(self) -> None:
        """What was added is U3 and nothing else, or there is no sum."""
        await asyncio.gather(*self._additions.values())
        if set(self._additions) != set(self.session.survivors):
            raise LocalProtocolError("attempt: the added vectors are not those of U3")

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
        known = {absence.silo for absence in self.absences}
        for silo in sorted(set(silos) - known):
            self.absences.append(Absence(silo=silo, stage=stage.value, reason=self._why(silo)))

    def _why(self, silo: str) -> str:
        if silo in self._out:
            return self._out[silo]
        is_connected = self._connectivity.is_connected(silo)
        return (Absent.NO_ANSWER if is_connected else Absent.DISCONNECTED).value

    def _tell_awaited(self, awaited: Iterable[str]) -> None:
        """Whom the stage waits for, and who is not in it and why: what an operator can do something about."""
        told = [f"awaiting {', '.join(sorted(awaited))}"] if awaited else []
        for reason in sorted(set(self._out.values())):
            silos = ", ".join(sorted(silo for silo, why in self._out.items() if why == reason))
            told.append(f"without {silos} ({reason})")
        self._on_progress("; ".join(told) or "awaiting silos")


def _absence(silo: str, stage: PhaseState, reason: Absent) -> Absence:
    return Absence(silo=silo, stage=stage.value, reason=reason.value)
