"""What a coordinator knows of one session, and how it outlives the coordinator's death.

Envelopes are nearly all of it, n^2 of them: each is held once, as the bytes that came, and no longer than
until it is relayed. Written to disk before UNMASK is asked: terms, adverts, sets, signatures, and of each
pair of silos the hashes that answers are checked with; but no share. Source: docs/protocol.md 5.3, 5.6, 10.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cryptography import x509

from crypto import encoding, envelope_tree
from crypto.encoding import Field, FieldReader
from crypto.errors import ChoraleError, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout, quantity_fields, read_quantity
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.bodies import DIGEST_BYTES, SEALED_SEED_BYTES, VerifiedAdvert
from crypto.session.cohort import CohortRule
from crypto.session.messages import RelayedEnvelope, SessionTerms, Shares

MAX_SNAPSHOT_BYTES = 64 << 20  # 200 silos of which a third is lost: 16 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDealing:
    """What UNMASK and RECOVER need of one silo's dealing, by receiver.

    message_digest: of the message that brought it, by which a repeat is known. share_hashes: for every
    survivor, of its share of the dealer's b, or of r where the dealer is lost. pair_seed_hashes: of the seeds
    that the dealer chose for pairs of a survivor and a lost silo. sealed_pair_seeds: those that a survivor
    sealed to lost silos.
    """

    message_digest: bytes
    share_hashes: dict[str, bytes]
    pair_seed_hashes: dict[str, bytes]
    sealed_pair_seeds: dict[str, bytes]


class HeldDealing:
    """A dealing that passed every check, until U3 is known. receivers: U1 without the dealer."""

    def __init__(
        self,
        shares: Shares,
        leaves: Sequence[bytes],
        *,
        message_digest: bytes,
        certificate: x509.Certificate,
        cohort_digest: bytes,
        dealer: str,
        receivers: Sequence[str],
    ) -> None:
        """Raises RemoteProtocolError unless one signature covers one envelope to each receiver."""
        if len(shares.envelopes) != len(receivers):
            got = f"expected {len(receivers)} envelopes, got {len(shares.envelopes)}"
            raise RemoteProtocolError(f"shares of {dealer}: {got}", code=Refusal.ENVELOPE)
        dealing = bodies.open_dealing(
            shares.dealing, certificate=certificate, cohort_digest=cohort_digest, sender=dealer
        )
        self._levels = envelope_tree.levels(leaves)
        if envelope_tree.root(self._levels) != dealing.envelopes_root:
            message = f"shares of {dealer}: the dealing is not over these envelopes"
            raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
        self._dealer = dealer
        self._signed = shares.dealing
        self._message_digest = message_digest
        self._envelopes = dict(zip(receivers, shares.envelopes, strict=True))
        self._self_mask_share_hashes = {dealer: dealing.self_mask_share_hash}
        self._recovery_share_hashes: dict[str, bytes] = {}
        self._pair_seed_hashes: dict[str, bytes] = {}
        self._sealed_pair_seeds: dict[str, bytes] = {}
        for receiver, data in self._envelopes.items():
            made = bodies.read_envelope(data, cohort_digest=cohort_digest, sender=dealer, receiver=receiver)
            self._self_mask_share_hashes[receiver] = made.self_mask_share_hash
            self._recovery_share_hashes[receiver] = made.recovery_share_hash
            if made.pair_seed_hash:
                self._pair_seed_hashes[receiver] = made.pair_seed_hash

    def relay(self, sharers: Collection[str]) -> dict[str, RelayedEnvelope]:
        """The envelopes to the others in U2. From here on only the sealed pair seeds of them are held."""
        relayed = {}
        paths = envelope_tree.paths(self._levels)
        for (receiver, data), path in zip(self._envelopes.items(), paths, strict=True):
            if receiver not in sharers:
                continue
            relayed[receiver] = RelayedEnvelope(dealing=self._signed, envelope=data, path=path)
            if receiver in self._pair_seed_hashes:
                self._sealed_pair_seeds[receiver] = data[-SEALED_SEED_BYTES:]  # an envelope's last field
        self._envelopes, self._levels = {}, []
        return relayed

    def kept(self, survivors: Sequence[str], lost: Sequence[str]) -> KeptDealing:
        """What is left of it once U3 is known."""
        is_lost = self._dealer in lost
        hashes = self._recovery_share_hashes if is_lost else self._self_mask_share_hashes
        others = [name for name in (survivors if is_lost else lost) if name in self._pair_seed_hashes]
        return KeptDealing(
            message_digest=self._message_digest,
            share_hashes={name: hashes[name] for name in survivors},
            pair_seed_hashes={name: self._pair_seed_hashes[name] for name in others},
            sealed_pair_seeds={} if is_lost else {name: self._sealed_pair_seeds[name] for name in others},
        )


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """Verified messages and agreed sets of one session.

    cohort: U1. sharers: U2. survivors: U3. dealings: of U2, once U3 is known.
    """

    terms: SessionTerms
    adverts: dict[str, VerifiedAdvert] = field(default_factory=dict)
    cohort: tuple[str, ...] = ()
    cohort_digest: bytes = b""
    sharers: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    dealings: dict[str, KeptDealing] = field(default_factory=dict)
    signatures: dict[str, bytes] = field(default_factory=dict)  # CONSISTENCY of U3
    complaints: list[tuple[str, str]] = field(default_factory=list)

    @property
    def lost(self) -> tuple[str, ...]:
        """U2 minus U3."""
        survivors = set(self.survivors)
        return tuple(name for name in self.sharers if name not in survivors)

    def fix_cohort(self) -> None:
        """U1 is who adverted; from here on everything is bound to its digest."""
        self.cohort = tuple(sorted(self.adverts))
        self.cohort_digest = bodies.cohort_digest(self.terms.digest(), self.adverts.values())

    def statements(self) -> dict[str, bytes]:
        """What each survivor signs in CONSISTENCY."""
        return bodies.consistency_bodies(
            cohort_digest=self.cohort_digest, sharers=self.sharers, survivors=self.survivors
        )

    def to_bytes(self) -> bytes:
        terms, rule, layout = self.terms, self.terms.rule, self.terms.layout
        terms_fields: list[Field] = [
            terms.federation,
            terms.job_digest,
            terms.roster_version,
            terms.roster_digest,
            terms.round,
            terms.phase,
            terms.attempt,
            list(terms.names),
            [rule.members, rule.threshold, rule.min_cohort],
            [layout.members, [quantity_fields(quantity) for quantity in layout.quantities]],
            terms.state_digest,
        ]
        return encoding.encode(
            "session-record",
            terms.digest(),
            terms_fields,
            [_signed_fields(self.adverts[name].signed) for name in self.cohort],
            list(self.sharers),
            list(self.survivors),
            [_dealing_fields(self.dealings[name]) for name in self.sharers],
            [[name, self.signatures[name]] for name in sorted(self.signatures)],
            [list(complaint) for complaint in self.complaints],
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> SessionRecord:
        """The record as it was; its signatures were verified before it was written.

        Raises RemoteProtocolError if the bytes are damaged.
        """
        try:
            record = _read_record(data)
            if record.to_bytes() != data:  # one record has one encoding
                raise ValueError("its bytes are not in the canonical encoding")
            return record
        except (ChoraleError, ValueError, KeyError, OverflowError) as error:
            raise RemoteProtocolError(f"session record: damaged, {error}") from None


def message_digest(shares: Shares, leaves: Sequence[bytes]) -> bytes:
    """By which a byte-identical repeat is known. leaves: the hashes of the envelopes."""
    return encoding.digest("shares", shares.dealing.body, shares.dealing.signature, leaves)


def _read_record(data: bytes) -> SessionRecord:
    values = encoding.decode("session-record", data, max_bytes=MAX_SNAPSHOT_BYTES)
    reader = FieldReader(values, what="session record")
    terms_digest = reader.data(bodies.DIGEST_BYTES)
    record = SessionRecord(terms=_read_terms(reader.fields()))
    if record.terms.digest() != terms_digest:
        raise RemoteProtocolError("the terms do not give their digest")
    for row in reader.rows():
        advert = bodies.read_advert(_read_signed(row))
        record.adverts[advert.advert.name] = advert
    record.fix_cohort()
    record.sharers, record.survivors = reader.texts(), reader.texts()
    lost = record.lost
    for name, row in zip(record.sharers, reader.rows(), strict=True):
        record.dealings[name] = _read_dealing(row, name, record.survivors, lost)
    record.signatures = {row.text(): row.data() for row in reader.rows()}
    if not record.signatures.keys() <= set(record.survivors):
        raise RemoteProtocolError("a signature is not a survivor's")
    record.complaints += [(row.text(), row.text()) for row in reader.rows()]
    reader.end()
    return record


def _read_terms(reader: FieldReader) -> SessionTerms:
    federation, job_digest = reader.text(), reader.data()
    roster_version, roster_digest = reader.number(), reader.data()
    round, phase, attempt, names = reader.number(), reader.text(), reader.number(), reader.texts()
    rule, layout = reader.fields(), reader.fields()
    return SessionTerms(
        federation=federation,
        job_digest=job_digest,
        roster_version=roster_version,
        roster_digest=roster_digest,
        round=round,
        phase=phase,
        attempt=attempt,
        names=names,
        rule=CohortRule(members=rule.number(), threshold=rule.number(), min_cohort=rule.number()),
        layout=Layout(members=layout.number(), quantities=tuple(read_quantity(row) for row in layout.rows())),
        state_digest=reader.data(),
    )


def _dealing_fields(dealing: KeptDealing) -> list[Field]:
    """Without names: whose hashes and seeds they are follows from the sets."""
    by_receiver = (dealing.share_hashes, dealing.pair_seed_hashes, dealing.sealed_pair_seeds)
    return [
        dealing.message_digest,
        *(b"".join(named[name] for name in sorted(named)) for named in by_receiver),
    ]


def _read_dealing(
    reader: FieldReader, dealer: str, survivors: Sequence[str], lost: Sequence[str]
) -> KeptDealing:
    is_lost = dealer in lost
    others = [name for name in (survivors if is_lost else lost) if dealer < name]
    return KeptDealing(
        message_digest=reader.data(DIGEST_BYTES),
        share_hashes=_read_parts(reader, survivors, DIGEST_BYTES),
        pair_seed_hashes=_read_parts(reader, others, DIGEST_BYTES),
        sealed_pair_seeds=_read_parts(reader, [] if is_lost else others, SEALED_SEED_BYTES),
    )


def _read_parts(reader: FieldReader, names: Sequence[str], size: int) -> dict[str, bytes]:
    """One part of that size for each name."""
    data = reader.data(size * len(names))
    return {name: data[size * place : size * (place + 1)] for place, name in enumerate(names)}


def _signed_fields(signed: SignedBody) -> list[Field]:
    return [signed.body, signed.signature]


def _read_signed(reader: FieldReader) -> SignedBody:
    return SignedBody(body=reader.data(), signature=reader.data())
