"""What a coordinator knows of one session, and how it outlives the coordinator's death.

Written to disk before UNMASK is asked: terms, adverts, relayed envelopes, sets and signatures, but
no share. Source: docs/protocol.md 5.6 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crypto import encoding
from crypto.encoding import Field, FieldReader
from crypto.errors import ChoraleError, RemoteProtocolError
from crypto.fixed_point.layout import Layout, quantity_fields, read_quantity
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.bodies import VerifiedAdvert
from crypto.session.cohort import CohortRule
from crypto.session.messages import Envelope, SessionTerms, Shares

MAX_SNAPSHOT_BYTES = 1 << 30  # 2.5 kB for each pair of silos


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """What one silo dealt: the message as it came, and what its verified bodies say."""

    shares: Shares
    relayed: dict[str, SignedBody]  # signed envelope to each receiver
    envelopes: dict[str, Envelope]  # the same, read
    own_share_hash: bytes

    def self_mask_share_hash(self, receiver: str) -> bytes:
        """The hash of the share of b that the receiver holds; the dealer holds one itself."""
        made = self.envelopes.get(receiver)
        return self.own_share_hash if made is None else made.self_mask_share_hash

    def to_bytes(self) -> bytes:
        envelopes = [_signed_fields(signed) for signed in self.shares.envelopes]
        return encoding.encode("shares", envelopes, _signed_fields(self.shares.own_share))


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """Verified messages and agreed sets of one session. cohort: U1. sharers: U2. survivors: U3."""

    terms: SessionTerms
    adverts: dict[str, VerifiedAdvert] = field(default_factory=dict)
    cohort: tuple[str, ...] = ()
    cohort_digest: bytes = b""
    dealings: dict[str, Dealing] = field(default_factory=dict)
    sharers: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    signatures: dict[str, SignedBody] = field(default_factory=dict)
    complaints: list[tuple[str, str]] = field(default_factory=list)

    @property
    def lost(self) -> tuple[str, ...]:
        """U2 minus U3."""
        return tuple(name for name in self.sharers if name not in self.survivors)

    def fix_cohort(self) -> None:
        """U1 is who adverted; from here on everything is bound to its digest."""
        self.cohort = tuple(sorted(self.adverts))
        self.cohort_digest = bodies.cohort_digest(self.terms.digest(), self.adverts.values())

    def pair_envelope(self, one: str, other: str) -> Envelope:
        """The envelope that carries the pair seed of two silos: from the smaller name to the greater."""
        dealer, receiver = sorted((one, other))
        return self.dealings[dealer].envelopes[receiver]

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
            [[name, self.dealings[name].to_bytes()] for name in sorted(self.dealings)],
            list(self.sharers),
            list(self.survivors),
            [[name, *_signed_fields(self.signatures[name])] for name in sorted(self.signatures)],
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
                raise ValueError("it is not written as it would be")
            return record
        except (ChoraleError, ValueError, KeyError, OverflowError) as error:
            raise RemoteProtocolError(f"session record: damaged, {error}") from None


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
    for row in reader.rows():
        name = row.text()
        record.dealings[name] = _read_dealing(row.data())
    record.sharers, record.survivors = reader.texts(), reader.texts()
    for row in reader.rows():
        name = row.text()
        record.signatures[name] = _read_signed(row)
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


def _read_dealing(data: bytes) -> Dealing:
    values = encoding.decode("shares", data, max_bytes=MAX_SNAPSHOT_BYTES)
    reader = FieldReader(values, what="session record")
    envelopes = tuple(_read_signed(row) for row in reader.rows())
    shares = Shares(envelopes=envelopes, own_share=_read_signed(reader.fields()))
    read = [bodies.read_envelope(signed) for signed in envelopes]
    return Dealing(
        shares=shares,
        relayed={made.receiver: signed for made, signed in zip(read, envelopes, strict=True)},
        envelopes={made.receiver: made for made in read},
        own_share_hash=bodies.read_own_share(shares.own_share).self_mask_share_hash,
    )


def _signed_fields(signed: SignedBody) -> list[Field]:
    return [signed.body, signed.signature]


def _read_signed(reader: FieldReader) -> SignedBody:
    return SignedBody(body=reader.data(), signature=reader.data())
