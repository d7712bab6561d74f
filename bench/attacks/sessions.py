"""A whole session of the secure sum among silos with certificates, and what its coordinator gets to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from bench.federation import NAME, Federation, make_federation
from crypto import masking, ring
from crypto.cohort import CohortRule
from crypto.coordinator_session import CoordinatorSession
from crypto.layout import Layout
from crypto.masking import UnmaskPlan
from crypto.messages import SessionTerms
from crypto.reveal import PendingReveal
from crypto.ring import Encoded, Words
from crypto.silo_session import SiloSession
from strategies.base import Array

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ENROLLED = 10  # silos that a session may name some of


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the coordinator holds: every silo's masked vectors, and the sum once its masks are off."""

    layout: Layout
    masked: Mapping[str, Mapping[int, Words]]
    sums: Mapping[str, Array]

    def bytes_of(self, name: str) -> bytes:
        return b"".join(self.masked[name][word].tobytes() for word in self.layout.words)

    def taken_at_face_value(self, name: str) -> dict[str, Array]:
        """A silo's masked vectors, decoded as if there were no masks."""
        return decoded(self.masked[name], self.layout)


def secure_sum(inputs: Mapping[str, Encoded], layout: Layout) -> View:
    """All stages of docs/protocol.md 5 in this process; nobody is lost."""
    federation = _federation()
    terms = _terms(federation, tuple(sorted(inputs)), layout)
    coordinator = CoordinatorSession(
        terms=terms, roster=federation.roster, authority=federation.authority, now=NOW
    )
    silos = {name: _silo(federation, name, terms) for name in terms.names}
    for name, silo in silos.items():
        coordinator.on_advert(name, silo.advertise())
    cohort = coordinator.close_advertise()
    for name, silo in silos.items():
        coordinator.on_shares(name, silo.receive(cohort))
    masked = {}
    for name, envelopes in coordinator.close_share().items():
        stream = b"".join(silos[name].receive(envelopes).stream(inputs[name]))
        masked[name] = masking.vectors_from_stream(layout, stream)
        coordinator.on_masked(name)
    survivors = coordinator.close_masked()
    for name in survivors.survivors:
        coordinator.on_consistency(name, silos[name].receive(survivors))
    request = coordinator.close_consistency()
    for name in survivors.survivors:
        coordinator.on_unmask(name, silos[name].receive(request))
    plan = coordinator.close_unmask()
    assert isinstance(plan, UnmaskPlan)  # nobody lies here, so nothing is left to recover
    total = ring.zeros(layout)
    for vectors in masked.values():
        ring.add_into(total, vectors)
    plan.unmask(total)
    return View(layout=layout, masked=masked, sums=decoded(total, layout))


def decoded(vectors: Mapping[int, Words], layout: Layout) -> dict[str, Array]:
    """As a sum is; copies, because what is decoded outlives the vectors."""
    native = {word: words.astype(ring.word_type(word)) for word, words in vectors.items()}
    return dict(ring.decode(native, layout=layout))


@cache
def _federation() -> Federation:
    return make_federation(ENROLLED, now=NOW)


def _terms(federation: Federation, names: tuple[str, ...], layout: Layout) -> SessionTerms:
    return SessionTerms(
        federation=NAME,
        job_digest=bytes(32),
        roster_version=federation.roster.version,
        roster_digest=federation.roster.digest,
        round=1,
        phase="train",
        attempt=1,
        names=names,
        rule=CohortRule.for_members(len(names)),
        layout=layout,
        state_digest=bytes(32),
    )


def _silo(federation: Federation, name: str, terms: SessionTerms) -> SiloSession:
    return SiloSession(
        terms=terms,
        identity=federation.silos[name],
        roster=federation.roster,
        authority=federation.authority,
        ledger=_SingleUseLedger(),
        now=NOW,
    )


class _SingleUseLedger:
    """Nothing to remember: its silo takes part in one session."""

    def begin_attempt(self, terms: SessionTerms) -> None:
        pass

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        pass

    def write_pending(self, pending: PendingReveal) -> None:
        pass

    def mark_revealed(self, pending: PendingReveal) -> None:
        pass
