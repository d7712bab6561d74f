"""One session of docs/protocol.md 5 in this process: the code that silos and coordinator run.

Keys, envelopes, shares, signatures, masks and their removal are the protocol's own; sockets, deadlines and
the ledger's disk are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from crypto.errors import LocalProtocolError
from crypto.fixed_point.ring import Words
from crypto.masking.masks import Masker, UnmaskPlan, tagged_stream
from crypto.session import bodies
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import Envelopes, LedgerMark, LedgerStatement, SessionTerms
from crypto.session.reveal import RevealLedger
from crypto.session.silo_session import SiloSession
from crypto.session.sum_check import SumCheck
from simulation.members import Members

Answer = TypeVar("Answer")


class LocalSession:
    """The stages in turn. silos: those of the named that come. now: when certificates are looked at."""

    def __init__(self, members: Members, terms: SessionTerms, *, silos: Sequence[str], now: datetime) -> None:
        self.terms = terms
        self.coordinator = CoordinatorSession(
            terms=terms, roster=members.roster, authority=members.authority, now=now
        )
        self._silos: dict[str, SiloSession] = {}
        for name in silos:
            silo = partial(
                SiloSession,
                terms=terms,
                identity=members.silos[name],
                roster=members.roster,
                authority=members.authority,
                ledger=self.ledger(name),
                now=now,
            )
            self._silos[name] = self.asked(name, "terms", silo)
        self._envelopes: dict[str, Envelopes] = {}
        self._checks: dict[str, SumCheck] = {}

    def ledger(self, name: str) -> RevealLedger:
        """What a silo's reveals are checked by: here nothing, for a silo that ends with the process."""
        return _NoLedger()

    def asked(self, name: str, stage: str, act: Callable[[], Answer]) -> Answer:
        """What a silo makes of a stage; a place to watch it from."""
        return act()

    def share(self) -> None:
        """ADVERTISE and SHARE of every silo."""
        for name, silo in self._silos.items():
            self.coordinator.on_advert(name, self.asked(name, "advertise", silo.advertise))
        cohort = self.coordinator.close_advertise()
        for name in self._silos:
            self.coordinator.on_shares(name, self._answer(name, "share", cohort))
        self._envelopes = self.coordinator.close_share()

    def masker(self, name: str) -> Masker:
        """MASKED_INPUT of one silo, whose upload then counts as complete."""
        masker: Masker = self._answer(name, "masked input", self._envelopes[name])
        check = self._silos[name].sum_check
        if check is not None:
            self._checks[name] = check
        self.coordinator.on_masked(name)
        return masker

    def reveal(self, rebuild: Callable[[], AbstractContextManager[None]] = nullcontext) -> UnmaskPlan:
        """CONSISTENCY and UNMASK of all that were masked. rebuild: around each part of the coordinator's."""
        survivors = self.coordinator.close_masked()
        for name in survivors.survivors:
            self.coordinator.on_consistency(name, self._answer(name, "consistency", survivors))
        request = self.coordinator.close_consistency()
        for name in survivors.survivors:
            answer = self._answer(name, "unmask", request)
            with rebuild():
                self.coordinator.on_unmask(name, answer)
        with rebuild():
            plan = self.coordinator.close_unmask()
        if not isinstance(plan, UnmaskPlan):
            raise LocalProtocolError("session in one process: expected nothing to recover, a silo lied")
        return plan

    def check(self, sums: Mapping[int, Words]) -> None:
        """The unmasked sum, checked by every silo; nothing where nothing is tagged."""
        tagged = self.terms.layout.tagged
        if tagged is None:
            return
        stream = b"".join(tagged_stream(self.terms.layout, sums))
        survivors, seeds = self.coordinator.survivors, self.coordinator.self_mask_seeds
        for name, check in self._checks.items():
            self.asked(
                name,
                "survivors",
                partial(check.check_survivors, survivors, self.coordinator.unmask_request()),
            )
            self.asked(name, "sum", partial(check.check_sum, stream, tagged, survivors))
            self.asked(name, "seeds", partial(check.check_self_mask_seeds, seeds, survivors))

    def _answer(self, name: str, stage: str, message: Any) -> Any:
        """The answer's type follows from the message's: SiloSession.receive says how."""
        return self.asked(name, stage, lambda: self._silos[name].receive(message))


class _NoLedger:
    """Nothing to remember: its silo takes part in one session and ends with the process."""

    def _forget(self, *_arguments: object, **_named: object) -> None:
        pass

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        return LedgerMark(0, bytes(bodies.MARK_BYTES))

    def peer_statements(self, names: Collection[str]) -> Mapping[str, LedgerStatement]:
        return {}

    check_reveal = write_pending = mark_revealed = check_echoes = keep_statements = _forget
