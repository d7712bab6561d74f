"""One session of docs/protocol.md 5 in this process: the code that silos and coordinator run.

Keys, envelopes, shares, signatures, masks and their removal are the protocol's own; sockets, deadlines and
the ledger's disk are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import TypeVar

from crypto.errors import LocalProtocolError
from crypto.identity.certificates import SignedBody
from crypto.masking.masks import Masker, UnmaskPlan
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import (
    Cohort,
    Envelopes,
    SessionTerms,
    Shares,
    Signatures,
    Survivors,
    UnmaskShares,
)
from crypto.session.reveal import PendingReveal
from crypto.session.silo_session import SiloSession
from simulation.members import Members

Answer = TypeVar("Answer")


class LocalSession:
    """The stages in turn. silos: those of the named that come. now: when certificates are looked at."""

    def __init__(self, members: Members, terms: SessionTerms, *, silos: Sequence[str], now: datetime) -> None:
        self.terms = terms
        self.coordinator = CoordinatorSession(
            terms=terms, roster=members.roster, authority=members.authority, now=now
        )
        self._silos = {name: self._silo(members, name, now) for name in silos}
        self._envelopes: dict[str, Envelopes] = {}

    def asked(self, name: str, stage: str, act: Callable[[], Answer]) -> Answer:
        """What a silo makes of a stage; a place to watch it from."""
        return act()

    def share(self) -> None:
        """ADVERTISE and SHARE of every silo."""
        for name, silo in self._silos.items():
            self.coordinator.on_advert(name, self.asked(name, "advertise", silo.advertise))
        cohort = self.coordinator.close_advertise()
        for name in self._silos:
            self.coordinator.on_shares(name, self._shares(name, cohort))
        self._envelopes = self.coordinator.close_share()

    def masker(self, name: str) -> Masker:
        """MASKED_INPUT of one silo, whose upload then counts as complete."""
        silo, envelopes = self._silos[name], self._envelopes[name]
        masker = self.asked(name, "masked input", lambda: silo.receive(envelopes))
        self.coordinator.on_masked(name)
        return masker

    def reveal(self, rebuild: Callable[[], AbstractContextManager[None]] = nullcontext) -> UnmaskPlan:
        """CONSISTENCY and UNMASK of all that were masked. rebuild: around each part of the coordinator's."""
        survivors = self.coordinator.close_masked()
        for name in survivors.survivors:
            self.coordinator.on_consistency(name, self._signature(name, survivors))
        request = self.coordinator.close_consistency()
        for name in survivors.survivors:
            answer = self._unmask_shares(name, request)
            with rebuild():
                self.coordinator.on_unmask(name, answer)
        with rebuild():
            plan = self.coordinator.close_unmask()
        if not isinstance(plan, UnmaskPlan):
            raise LocalProtocolError("session in one process: expected nothing to recover, a silo lied")
        return plan

    def _silo(self, members: Members, name: str, now: datetime) -> SiloSession:
        made = partial(
            SiloSession,
            terms=self.terms,
            identity=members.silos[name],
            roster=members.roster,
            authority=members.authority,
            ledger=_NoLedger(),
            now=now,
        )
        return self.asked(name, "terms", made)

    def _shares(self, name: str, cohort: Cohort) -> Shares:
        return self.asked(name, "share", lambda: self._silos[name].receive(cohort))

    def _signature(self, name: str, survivors: Survivors) -> SignedBody:
        return self.asked(name, "consistency", lambda: self._silos[name].receive(survivors))

    def _unmask_shares(self, name: str, request: Signatures) -> UnmaskShares:
        return self.asked(name, "unmask", lambda: self._silos[name].receive(request))


class _NoLedger:
    """Nothing to remember: its silo takes part in one session and ends with the process."""

    def begin_attempt(self, terms: SessionTerms) -> None:
        pass

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        pass

    def write_pending(self, pending: PendingReveal) -> None:
        pass

    def mark_revealed(self, pending: PendingReveal) -> None:
        pass
