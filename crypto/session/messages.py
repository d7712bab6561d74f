"""What travels in a session: small frozen values, and the terms that everything is bound to.

Signed bodies and envelopes are canonical encodings (crypto/encoding.py) of the classes below that have a
PURPOSE: their fields in the order in which the class declares them. The others are the unsigned messages
around them. Source: docs/protocol.md 2 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from crypto import encoding
from crypto.fixed_point.layout import Layout
from crypto.identity.certificates import SignedBody
from crypto.session.cohort import CohortRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """All that a session is about. names: the named set, sorted; rank in it gives the Shamir x."""

    federation: str
    job_digest: bytes
    roster_version: int
    roster_digest: bytes
    round: int
    phase: str
    attempt: int
    names: tuple[str, ...]
    rule: CohortRule
    layout: Layout
    state_digest: bytes

    def digest(self) -> bytes:
        """The session digest: every silo computes it from its own reading of job and roster.

        Source: docs/protocol.md 5.1.
        """
        return encoding.digest("session", *self.fields())

    def fields(self) -> list[encoding.Field]:
        """What the digest covers, in order; the layout stands in it by its own digest."""
        return [
            self.federation,
            self.job_digest,
            self.roster_version,
            self.roster_digest,
            self.round,
            self.phase,
            self.attempt,
            list(self.names),
            self.layout.digest,
            self.rule.members,
            self.rule.threshold,
            self.rule.min_cohort,
            self.state_digest,
        ]


class LedgerMark(NamedTuple):
    """Where a silo's ledger stands. sequence: rises with every advert. mark: tells its owner alone more."""

    sequence: int
    mark: bytes


class LedgerStatement(NamedTuple):
    """A ledger mark, signed by the silo whose ledger it is."""

    sequence: int
    mark: bytes
    signature: bytes  # over LedgerStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStanding:
    """Signed. What others keep of a silo's ledger and tell it again: whether it was put back shows then."""

    PURPOSE: ClassVar[str] = "ledger-standing"

    federation: str
    name: str
    sequence: int
    mark: bytes


# silo -> coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Advert:
    """Signed. Fresh keys of one silo for one session.

    echoes: what the silo keeps of the ledgers of its neighbors (CohortRule.neighbors), in order of name.
    """

    PURPOSE: ClassVar[str] = "advert"

    name: str
    session_digest: bytes
    certificate: bytes  # DER
    channel_key: bytes  # raw HPKE public keys
    mask_key: bytes
    self_mask_commitment: bytes  # H(b)
    sum_key_commitment: bytes  # H(k_u)
    statement: LedgerStatement
    echoes: tuple[tuple[str, LedgerStatement], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Signed. All that one silo deals in a cohort: an envelope to every other member of U1.

    self_mask_share_hash: of the share of b(u) that u keeps at its own x. envelopes_root: of the hash tree
    over the envelopes, in order of receiver.
    """

    PURPOSE: ClassVar[str] = "dealing"

    cohort_digest: bytes
    sender: str
    self_mask_share_hash: bytes
    envelopes_root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What one silo deals to another, a leaf of its dealing; pair_seed_* only where sender < receiver."""

    PURPOSE: ClassVar[str] = "envelope"

    cohort_digest: bytes
    sender: str
    receiver: str
    self_mask_share_hash: bytes
    recovery_share_hash: bytes
    sealed_shares: bytes  # under the receiver's channel key
    pair_seed_hash: bytes = b""
    sealed_pair_seed: bytes = b""  # under the receiver's mask key


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistency:
    """Signed. The sets as one silo was told them. Every receiver knows them, so the signature goes alone."""

    PURPOSE: ClassVar[str] = "consistency"

    cohort_digest: bytes
    sender: str
    sharers: tuple[str, ...]  # U2
    survivors: tuple[str, ...]  # U3


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Signed. An envelope did not open or match its hashes."""

    PURPOSE: ClassVar[str] = "complaint"

    cohort_digest: bytes
    sender: str
    accused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextState:
    """Signed. The global state that the sender computed itself from a sum that it checked.

    parent_digest: of the state before. next_digest equals it where the sum was not applied. draw_seed: what
    the state holds for the draw of `fraction`; empty where it holds none.
    """

    PURPOSE: ClassVar[str] = "next-state"

    federation: str
    session_digest: bytes
    cohort_digest: bytes
    sender: str
    survivors: tuple[str, ...]  # U3
    parent_digest: bytes
    sum_digest: bytes  # of the tagged part of the sum
    next_digest: bytes
    draw_seed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Signed. The sender has not revealed the phase, in no attempt, and never will."""

    PURPOSE: ClassVar[str] = "abandoned"

    federation: str
    job_digest: bytes
    round: int
    phase: str
    sender: str


Signable: TypeAlias = Advert | LedgerStanding | Dealing | Consistency | Complaint | NextState | Abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """envelopes: canonical bytes, one to each other member of U1, in order of name."""

    dealing: SignedBody
    envelopes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskShares:
    self_mask_shares: dict[str, bytes] = field(repr=False)  # of b(v), v in U3
    recovery_shares: dict[str, bytes] = field(repr=False)  # of r(v), v in U2 minus U3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSeeds:
    pair_seeds: dict[str, bytes] = field(repr=False)


# coordinator -> silo


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Adverts of U1."""

    adverts: tuple[SignedBody, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedEnvelope:
    """One envelope of a dealing. path: from the envelope's hash to the root that the dealer signed."""

    dealing: SignedBody
    envelope: bytes
    path: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelopes:
    """U2, and the envelopes that its other members dealt to the receiver."""

    sharers: tuple[str, ...]
    envelopes: tuple[RelayedEnvelope, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """U3: whose masked vector arrived whole."""

    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """Of CONSISTENCY bodies, DER, by name of the signer; what each signed is computed, not sent."""

    signatures: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverRequest:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealedSum:
    """What a member of U2 needs to check the sum. self_mask_seeds: b(v) of U3, where the draw is opened."""

    survivors: tuple[str, ...]  # U3
    signatures: Signatures
    sum_digest: bytes
    self_mask_seeds: dict[str, bytes] = field(repr=False)
