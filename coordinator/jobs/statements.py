"""Statements of silos on a phase that is over: asked for, opened, and collected until t are there.

Source: docs/protocol.md 5.10, 6.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from chorale.observability.logs import get_logger
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from coordinator.jobs.deadlines import StageDeadlines, StageLimits, following_work
from coordinator.phase_machine import PhaseState
from coordinator.reasons import OVERDUE_SECONDS, Absent, Awaited
from coordinator.resources import Resources
from coordinator.storage.store import Absence
from crypto.errors import RemoteProtocolError
from crypto.session.statements import Signer

KINDS = frozenset({"next_state", "abandoned", "refused"})

log = get_logger("coordinator.jobs.statements")


class Statements:
    """One collection. signers: those of the silos that signed so far. out: silos that will not, and why.

    silos: who is asked. floor: of how long they are waited for; downloaded_bytes: what each fetches before it
    signs. away_since: the connectivity of the job's silos, kept up to date by its runner.
    open_statement: the signature in a silo's message, or RemoteProtocolError.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        key: PhaseKey,
        question: pb.CoordinatorMessage,
        silos: Collection[str],
        threshold: int,
        floor: StageLimits,
        away_since: Mapping[str, float],
        open_statement: Callable[[str, pb.SiloMessage], Signer],
        on_progress: Callable[[str, Mapping[str, str]], None],
        downloaded_bytes: int = 0,
    ) -> None:
        self.key = key
        self._scope = {"job": key.job_digest.hex()[:12], "round": key.round, "phase": key.phase}
        self.signers: dict[str, Signer] = {}
        self.out: dict[str, str] = {}
        self.is_given_up = False
        self._clock = resources.clock
        self._send = resources.attendance.send
        self._question = question
        self._silos = silos
        self._threshold = threshold
        limits = following_work(
            floor,
            silos=len(silos),
            slowest_rate=resources.line_rates.slowest(silos),
            downloaded_bytes=downloaded_bytes,
        )
        log.info("statements asked for", **limits.log_fields(), **self._scope)
        self._away_since = away_since
        self._overdue_at = self._clock.monotonic() + OVERDUE_SECONDS
        self._deadlines = StageDeadlines(limits, started=self._clock.monotonic(), away_since=away_since)
        self._open_statement = open_statement
        self._on_progress = on_progress
        self._news = asyncio.Event()

    async def collect(self) -> bool:
        """Until t silos signed: True; or until too few are left that may: False."""
        for silo in self._silos:
            self._send(silo, self._question)
        while len(self.signers) < self._threshold:
            self._news.clear()
            unheard = [silo for silo in self._silos if silo not in self.signers | self.out]
            awaited = self._deadlines.awaited(unheard, now=self._clock.monotonic())
            if len(self.signers) + len(awaited) < self._threshold or self.is_given_up:
                return False
            self._tell(awaited)
            now = self._clock.monotonic()
            overdue = [self._overdue_at] if self._overdue_at > now else []
            try:
                async with asyncio.timeout(max(0.0, min([*awaited.values(), *overdue]) - now)):
                    await self._news.wait()
            except TimeoutError:
                continue
        return True

    def give_up(self) -> None:
        """Wait no longer for signatures that are missing."""
        self.is_given_up = True
        self._news.set()

    def missing(self) -> list[Absence]:
        """Who was asked and has not signed, and why."""
        absences = []
        for silo in sorted(set(self._silos) - self.signers.keys()):
            silent = Absent.DISCONNECTED if silo in self._away_since else Absent.NO_ANSWER
            reason = self.out.get(silo, silent.value)
            absences.append(Absence(silo=silo, stage=PhaseState.REVEALED.value, reason=reason))
        return absences

    def on_connected(self, silo: str) -> None:
        """The silo is asked again, if it has not signed."""
        if silo in self._silos and silo not in self.signers:
            self.out.pop(silo, None)
            self._send(silo, self._question)
            self._news.set()

    def on_lost(self) -> None:
        """It is looked at again who is worth waiting for."""
        self._news.set()

    def on_download(self, silo: str, *, sent_bytes: int) -> None:
        """The silo has taken so many more bytes of what it computes its statement from."""
        self._deadlines.on_transfer(silo, moved_bytes=sent_bytes, now=self._clock.monotonic())

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        """A statement, or a refusal to make one."""
        if silo not in self._silos or silo in self.signers:
            return
        try:
            if message.HasField("refused"):
                self.out[silo] = wire.refused_from_wire(message.refused).code.value
                log.warning("silo refused a statement", code=self.out[silo], silo=silo, **self._scope)
            else:
                self.signers[silo] = self._open_statement(silo, message)
                self.out.pop(silo, None)
        except RemoteProtocolError as error:
            self.out[silo] = error.code.value
            log.warning("statement not accepted", reason=str(error), silo=silo, **self._scope)
        self._news.set()

    def _tell(self, awaited: Collection[str]) -> None:
        parts = [f"awaiting a statement of {', '.join(sorted(awaited))}"] if awaited else []
        parts += [f"without {silo} ({why})" for silo, why in sorted(self.out.items())]
        is_overdue = self._clock.monotonic() >= self._overdue_at
        why = Awaited.OVERDUE if is_overdue else Awaited.STATEMENT
        self._on_progress("; ".join(parts), dict.fromkeys(awaited, why.value))
