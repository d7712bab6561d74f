"""The last word of a silo in a session: which shares it may give away, once, and always the same.

From its CONSISTENCY signature on, a silo keeps nothing but a PendingReveal, which its ledger holds
too: what it answers does not depend on whether it was restarted. Source: docs/protocol.md 5.5 to
5.7 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from crypto import encoding
from crypto.encoding import FieldReader
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import certificate_from_der
from crypto.session import bodies
from crypto.session.messages import (
    LedgerMark,
    LedgerStatement,
    RecoveredSeeds,
    RecoverRequest,
    SessionTerms,
    Signatures,
    UnmaskShares,
)

MAX_PENDING_BYTES = 16 << 20  # a certificate and a few shares for each of 4,096 silos


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReveal:
    """One row of a silo's ledger: its whole answer to UNMASK and RECOVER in one session.

    certificates: DER, of every silo in U1. sharers: U2. survivors: U3. pair_seeds: shared with each
    silo in U2 minus U3.
    """

    job_digest: bytes
    round: int
    phase: str
    attempt: int
    state_digest: bytes
    threshold: int
    min_cohort: int
    cohort_digest: bytes
    name: str
    certificates: dict[str, bytes]
    sharers: tuple[str, ...]
    survivors: tuple[str, ...]
    answer: UnmaskShares = field(repr=False)
    pair_seeds: dict[str, bytes] = field(repr=False)

    @property
    def lost(self) -> tuple[str, ...]:
        """U2 minus U3."""
        return tuple(name for name in self.sharers if name not in self.survivors)

    def to_bytes(self) -> bytes:
        return encoding.encode(
            "pending-reveal",
            self.job_digest,
            self.round,
            self.phase,
            self.attempt,
            self.state_digest,
            self.threshold,
            self.min_cohort,
            self.cohort_digest,
            self.name,
            named_rows(self.certificates),
            list(self.sharers),
            list(self.survivors),
            named_rows(self.answer.self_mask_shares),
            named_rows(self.answer.recovery_shares),
            named_rows(self.pair_seeds),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PendingReveal:
        """Raises RemoteProtocolError for anything but what to_bytes wrote."""
        values = encoding.decode("pending-reveal", data, max_bytes=MAX_PENDING_BYTES)
        reader = FieldReader(values, what="pending reveal")
        pending = cls(
            job_digest=reader.data(),
            round=reader.number(),
            phase=reader.text(),
            attempt=reader.number(),
            state_digest=reader.data(),
            threshold=reader.number(),
            min_cohort=reader.number(),
            cohort_digest=reader.data(),
            name=reader.text(),
            certificates=read_named(reader.rows()),
            sharers=reader.texts(),
            survivors=reader.texts(),
            answer=UnmaskShares(
                self_mask_shares=read_named(reader.rows()), recovery_shares=read_named(reader.rows())
            ),
            pair_seeds=read_named(reader.rows()),
        )
        reader.end()
        if pending.to_bytes() != data:  # one row has one encoding
            raise RemoteProtocolError("pending reveal: its bytes are not in the canonical encoding")
        return pending


class RevealLedger(Protocol):
    """What a session asks of the silo's ledger: synchronous, durable on return.

    Source: docs/protocol.md 6.
    """

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        """Before ADVERTISE. PolicyRefusal if (job, round, phase) was revealed, the round goes back,
        or the roster version of (job, round) is another; else erases the pending row of that key.
        Returns where the ledger stands, the reservation of the input included."""

    def peer_statements(self, names: Collection[str]) -> Mapping[str, LedgerStatement]:
        """What is kept of these silos' ledgers."""

    def check_echoes(
        self, echoes: Collection[LedgerStatement], *, is_signed: Callable[[LedgerStatement], bool]
    ) -> None:
        """What others keep of this ledger. PolicyRefusal(code=LEDGER), from then on and for every session,
        if this ledger does not hold what it said itself."""

    def keep_statements(self, statements: Mapping[str, LedgerStatement]) -> None:
        """Of peers who have checked what this silo echoes. Before the first byte of y(u) leaves."""

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        """The reveal rule. PolicyRefusal(code=OVERLAPPING_COHORT or ALREADY_REVEALED)."""

    def write_pending(self, pending: PendingReveal) -> None:
        """Before the CONSISTENCY signature leaves."""

    def mark_revealed(self, pending: PendingReveal) -> None:
        """Before the first share leaves. PolicyRefusal if the key was revealed otherwise."""


class SignedCohort(Protocol):
    """What the signers' statements are checked with: of a PendingReveal, or of a SumCheck."""

    @property
    def threshold(self) -> int: ...
    @property
    def cohort_digest(self) -> bytes: ...
    @property
    def certificates(self) -> Mapping[str, bytes]: ...
    @property
    def sharers(self) -> tuple[str, ...]: ...


def check_signatures(
    cohort: SignedCohort, survivors: tuple[str, ...], message: Signatures, *, scope: str
) -> None:
    """At least t distinct members of U3 signed the sets of this very cohort.

    Every signature must hold, over the body that is computed here for its signer. Signers are counted by
    name, never by signature bytes. survivors: a subset of U2. scope: of the error.
    Raises RemoteProtocolError(code=SIGNATURES). Source: docs/protocol.md 5.6.
    """
    if unknown := sorted(message.signatures.keys() - set(survivors)):
        wrong = f"{scope}: a signature is of {unknown[0]}, which is not in U3"
        raise RemoteProtocolError(wrong, code=Refusal.SIGNATURES)
    if len(message.signatures) < cohort.threshold:
        wrong = f"expected signatures of {cohort.threshold} survivors, got {len(message.signatures)}"
        raise RemoteProtocolError(f"{scope}: {wrong}", code=Refusal.SIGNATURES)
    signed = bodies.consistency_bodies(
        cohort_digest=cohort.cohort_digest, sharers=cohort.sharers, survivors=survivors
    )
    for name, signature in message.signatures.items():
        certificate = certificate_from_der(cohort.certificates[name])
        bodies.check_consistency(
            signature, certificate=certificate, sender=name, body=signed[name], scope=scope
        )


def recovered_seeds(pending: PendingReveal, request: RecoverRequest) -> RecoveredSeeds:
    """The seeds shared with lost silos, for U2 minus U3 only. Source: docs/protocol.md 5.7."""
    if not request.names or len(set(request.names)) != len(request.names):
        raise RemoteProtocolError("recover: expected distinct names of lost silos")
    for name in request.names:
        if name not in pending.pair_seeds:
            raise RemoteProtocolError("recover: a name is not in U2 minus U3", code=Refusal.SIGNATURES)
    return RecoveredSeeds(pair_seeds={name: pending.pair_seeds[name] for name in request.names})


def named_rows(named: Mapping[str, bytes]) -> list[encoding.Field]:
    """Bytes by name as a field."""
    return [[name, named[name]] for name in sorted(named)]


def read_named(rows: list[FieldReader]) -> dict[str, bytes]:
    """What `named_rows` wrote."""
    named = {}
    for row in rows:
        name = row.text()
        named[name] = row.data()
        row.end()
    return named
