"""A phase's sum under real masks: the two session machines, talking in this process.

Keys, envelopes, shares, signatures, masks and their removal are the protocol's own (docs/protocol.md 5);
sockets, the ledger's disk and deadlines are not there, and nobody drops inside a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from crypto import ring
from crypto.coordinator_session import CoordinatorSession
from crypto.errors import LocalProtocolError
from crypto.masking import Masker, UnmaskPlan, vectors_from_stream
from crypto.messages import SessionTerms
from crypto.reveal import PendingReveal
from crypto.ring import Encoded
from crypto.silo_session import SiloSession
from silo_agent.phase_input import Asked
from simulation.members import Members
from strategies.base import Array


class SecureSum:
    """Sessions of the members of one simulation. now: when their certificates are looked at."""

    def __init__(self, members: Members, *, now: datetime) -> None:
        self._members = members
        self._now = now

    def sums(
        self, asked: Asked, names: tuple[str, ...], encoded: Mapping[str, Encoded], state_digest: bytes
    ) -> dict[str, Array]:
        """The revealed sum, decoded. names: whom the phase names; encoded: inputs of those who came."""
        terms = self._terms(asked, names, state_digest)
        coordinator = CoordinatorSession(
            terms=terms, roster=self._members.roster, authority=self._members.authority, now=self._now
        )
        silos = {name: self._silo(terms, name) for name in encoded}
        total = ring.zeros(asked.layout)
        for name, masker in _masked(coordinator, silos).items():
            stream = b"".join(masker.stream(encoded[name]))
            ring.add_into(total, vectors_from_stream(asked.layout, stream))
            coordinator.on_masked(name)
        _revealed(coordinator, silos).unmask(total)
        return ring.decode(total, layout=asked.layout)

    def _terms(self, asked: Asked, names: tuple[str, ...], state_digest: bytes) -> SessionTerms:
        key, roster = asked.key, self._members.roster
        return SessionTerms(
            federation=roster.federation,
            job_digest=key.job_digest,
            roster_version=roster.version,
            roster_digest=roster.digest,
            round=key.round,
            phase=key.phase,
            attempt=key.attempt,
            names=names,
            rule=asked.rule,
            layout=asked.layout,
            state_digest=state_digest,
        )

    def _silo(self, terms: SessionTerms, name: str) -> SiloSession:
        return SiloSession(
            terms=terms,
            identity=self._members.silos[name],
            roster=self._members.roster,
            authority=self._members.authority,
            ledger=_NoLedger(),
            now=self._now,
        )


def _masked(coordinator: CoordinatorSession, silos: Mapping[str, SiloSession]) -> dict[str, Masker]:
    """ADVERTISE and SHARE of every silo; each ends with its masks."""
    for name, silo in silos.items():
        coordinator.on_advert(name, silo.advertise())
    cohort = coordinator.close_advertise()
    for name, silo in silos.items():
        coordinator.on_shares(name, silo.receive(cohort))
    envelopes = coordinator.close_share()
    return {name: silo.receive(envelopes[name]) for name, silo in silos.items()}


def _revealed(coordinator: CoordinatorSession, silos: Mapping[str, SiloSession]) -> UnmaskPlan:
    """CONSISTENCY and UNMASK of every silo."""
    survivors = coordinator.close_masked()
    for name, silo in silos.items():
        coordinator.on_consistency(name, silo.receive(survivors))
    request = coordinator.close_consistency()
    for name, silo in silos.items():
        coordinator.on_unmask(name, silo.receive(request))
    plan = coordinator.close_unmask()
    if not isinstance(plan, UnmaskPlan):
        raise LocalProtocolError("simulation: a session in one process has nothing to recover")
    return plan


class _NoLedger:
    """Each silo takes part in one session a phase, by the order of the simulation itself."""

    def begin_attempt(self, terms: SessionTerms) -> None:
        pass

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        pass

    def write_pending(self, pending: PendingReveal) -> None:
        pass

    def mark_revealed(self, pending: PendingReveal) -> None:
        pass
