"""Signed bodies of a session: how each is written, and how it is verified before it is read.

The certificate that verifies a body is known beforehand, from the advert of its sender, and a body
that the receiver can predict in full is computed or compared, not parsed. The one exception is the advert
itself, which carries its certificate. Source: docs/protocol.md 2 and 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from crypto import encoding, envelope_tree
from crypto.encoding import FieldReader
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import (
    Anchors,
    Identity,
    Role,
    SignedBody,
    certificate_from_der,
    check_certificate,
    check_signature,
    fingerprint,
    verify,
)
from crypto.identity.roster import Roster
from crypto.session.cohort import neighbors
from crypto.session.envelope import OVERHEAD_BYTES, PUBLIC_BYTES, SEED_BYTES
from crypto.session.messages import (
    Abandoned,
    Advert,
    Complaint,
    Consistency,
    Dealing,
    Envelope,
    LedgerMark,
    LedgerStanding,
    LedgerStatement,
    NextState,
    RelayedEnvelope,
    SessionTerms,
    Signable,
)
from crypto.session.seeds import SUM_KEY_BYTES
from crypto.session.shamir import SHARE_BYTES

DIGEST_BYTES = 32
MAX_ADVERT_BYTES = 16 << 10  # two hybrid keys, a certificate and 32 echoes
MAX_SIGNATURE_BYTES = 72  # DER of an ECDSA P-256 signature
MARK_BYTES = 32
MAX_SEQUENCE = (1 << 63) - 1  # what a ledger's column holds
SEALED_SHARES_BYTES = OVERHEAD_BYTES + 2 * SHARE_BYTES + SUM_KEY_BYTES
SEALED_SEED_BYTES = OVERHEAD_BYTES + SEED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedAdvert:
    """An advert that passed every check, with its certificate and the bytes that were signed."""

    advert: Advert
    certificate: x509.Certificate
    signed: SignedBody


def sign(identity: Identity, message: Signable) -> SignedBody:
    """Sign the fields of a message, in the order in which its class declares them, under its purpose."""
    return identity.sign(message.PURPOSE, *_values(message))


def read_advert(signed: SignedBody) -> VerifiedAdvert:
    """Fields of an advert whose checks were made before (open_advert) and outlived a restart."""
    values = encoding.decode("advert", signed.body, max_bytes=MAX_ADVERT_BYTES)
    reader = FieldReader(values, what="advert", code=Refusal.ADVERT)
    advert = Advert(
        name=reader.text(),
        session_digest=reader.data(DIGEST_BYTES),
        certificate=reader.data(),
        channel_key=reader.data(PUBLIC_BYTES),
        mask_key=reader.data(PUBLIC_BYTES),
        self_mask_commitment=reader.data(DIGEST_BYTES),
        sum_key_commitment=reader.data(DIGEST_BYTES),
        statement=_read_statement(reader.fields()),
        echoes=tuple(_read_echo(row) for row in reader.rows()),
    )
    reader.end()
    return VerifiedAdvert(advert=advert, certificate=certificate_from_der(advert.certificate), signed=signed)


def open_advert(
    signed: SignedBody,
    *,
    terms: SessionTerms,
    session_digest: bytes,
    roster: Roster,
    authority: Anchors,
    now: datetime,
) -> VerifiedAdvert:
    """An advert of a named silo for exactly this session.

    Raises RemoteProtocolError naming the first check that fails: named set, certificate, roster,
    signature, session digest, echoes. Source: docs/protocol.md 5.2.
    """
    read = read_advert(signed)
    name, certificate = read.advert.name, read.certificate
    if name not in terms.names:
        raise RemoteProtocolError("advert: the silo is not in the named set", code=Refusal.NOT_NAMED)
    member = check_certificate(
        certificate, authority=authority, role=Role.SILO, federation=terms.federation, now=now
    )
    if member.name != name:
        raise RemoteProtocolError(
            f"advert of {name}: the certificate is of {member.name}", code=Refusal.ADVERT
        )
    if not roster.holds(Role.SILO, name, fingerprint(read.advert.certificate)):
        raise RemoteProtocolError(f"advert of {name}: certificate not on the roster", code=Refusal.ROSTER)
    _open(signed, "advert", certificate, scope=f"advert of {name}", code=Refusal.ADVERT)
    if read.advert.session_digest != session_digest:
        raise RemoteProtocolError(f"advert of {name}: made for another session", code=Refusal.ADVERT)
    echoed = [peer for peer, _ in read.advert.echoes]
    if echoed != sorted(set(echoed)) or not neighbors(name, terms.names).issuperset(echoed):
        message = f"advert of {name}: it echoes silos that are not its neighbors, or out of order"
        raise RemoteProtocolError(message, code=Refusal.ADVERT)
    return read


def sign_statement(identity: Identity, ledger: LedgerMark) -> LedgerStatement:
    """What this silo's adverts say of its own ledger. docs/protocol.md 5.11."""
    standing = _standing(identity, ledger.sequence, ledger.mark)
    return LedgerStatement(ledger.sequence, ledger.mark, sign(identity, standing).signature)


def is_signed_by(identity: Identity, statement: LedgerStatement) -> bool:
    """Whether this very certificate's key signed it: anybody may write an echo."""
    standing = _standing(identity, statement.sequence, statement.mark)
    signed = SignedBody(body=body_of(standing), signature=statement.signature)
    try:
        check_signature(signed, purpose=standing.PURPOSE, certificate=identity.certificate)
    except RemoteProtocolError:
        return False
    return True


def cohort_digest(session_digest: bytes, adverts: Iterable[VerifiedAdvert]) -> bytes:
    """What all after ADVERTISE is bound to; fresh because every advert is. docs/protocol.md 5.3."""
    ordered = sorted(adverts, key=lambda verified: verified.advert.name)
    return encoding.digest("cohort", session_digest, [verified.signed.body for verified in ordered])


def open_dealing(
    signed: SignedBody, *, certificate: x509.Certificate, cohort_digest: bytes, sender: str
) -> Dealing:
    """What `sender` signed over all its envelopes in this cohort. docs/protocol.md 5.3."""
    scope = f"dealing of {sender}"
    reader = _open(signed, "dealing", certificate, scope=scope, code=Refusal.ENVELOPE)
    dealing = Dealing(
        cohort_digest=reader.data(DIGEST_BYTES),
        sender=reader.text(),
        self_mask_share_hash=reader.data(DIGEST_BYTES),
        envelopes_root=reader.data(DIGEST_BYTES),
    )
    reader.end()
    if (dealing.cohort_digest, dealing.sender) != (cohort_digest, sender):
        raise RemoteProtocolError(f"{scope}: signed for another cohort or silo", code=Refusal.ENVELOPE)
    return dealing


def open_envelope(
    relayed: RelayedEnvelope,
    *,
    certificate: x509.Certificate,
    cohort: Sequence[str],
    cohort_digest: bytes,
    sender: str,
    receiver: str,
) -> Envelope:
    """What `sender` dealt to `receiver`, still sealed: read only after the path led to the signed root.

    cohort: U1, sorted. Place and size of the tree follow from it, and from nothing that a peer says.
    Source: docs/protocol.md 5.3 and 5.4.
    """
    signed = open_dealing(
        relayed.dealing, certificate=certificate, cohort_digest=cohort_digest, sender=sender
    )
    place = cohort.index(receiver) - (sender < receiver)  # the dealer has no envelope of its own
    root = envelope_tree.root_from(relayed.envelope, relayed.path, place=place, size=len(cohort) - 1)
    if root != signed.envelopes_root:
        message = f"envelope {sender} to {receiver}: it is not in the dealing that was signed"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    return read_envelope(relayed.envelope, cohort_digest=cohort_digest, sender=sender, receiver=receiver)


def read_envelope(data: bytes, *, cohort_digest: bytes, sender: str, receiver: str) -> Envelope:
    """An envelope whose dealing was opened (open_dealing) and has it as a leaf.

    Raises RemoteProtocolError(code=ENVELOPE).
    """
    scope = f"envelope {sender} to {receiver}"
    try:
        values = encoding.decode("envelope", data)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{scope}: {error}", code=Refusal.ENVELOPE) from None
    reader = FieldReader(values, what=scope, code=Refusal.ENVELOPE)
    envelope = Envelope(
        cohort_digest=reader.data(DIGEST_BYTES),
        sender=reader.text(),
        receiver=reader.text(),
        self_mask_share_hash=reader.data(DIGEST_BYTES),
        recovery_share_hash=reader.data(DIGEST_BYTES),
        sealed_shares=reader.data(),
        pair_seed_hash=reader.data(),
        sealed_pair_seed=reader.data(),
    )
    reader.end()
    if (envelope.cohort_digest, envelope.sender, envelope.receiver) != (cohort_digest, sender, receiver):
        message = f"{scope}: made for another cohort, sender or receiver"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    # a pair seed travels from the smaller name to the greater, and only so
    has_seed = sender < receiver
    expected = (SEALED_SHARES_BYTES, DIGEST_BYTES * has_seed, SEALED_SEED_BYTES * has_seed)
    parts = (envelope.sealed_shares, envelope.pair_seed_hash, envelope.sealed_pair_seed)
    if tuple(map(len, parts)) != expected:
        message = f"{scope}: a sealed part is missing, out of place or of another length"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    return envelope


def body_of(message: Signable | Envelope) -> bytes:
    """Its canonical bytes: an envelope, or what is signed of a message that the receiver knows in full."""
    return encoding.encode(message.PURPOSE, *_values(message))


def consistency_bodies(
    *, cohort_digest: bytes, sharers: Sequence[str], survivors: Sequence[str]
) -> dict[str, bytes]:
    """What each survivor signs of the sets. They are encoded once: they are nearly all of it."""
    sets = encoding.Encoded.of(sharers), encoding.Encoded.of(survivors)
    return {name: encoding.encode(Consistency.PURPOSE, cohort_digest, name, *sets) for name in survivors}


def check_consistency(
    signature: bytes, *, certificate: x509.Certificate, sender: str, body: bytes, scope: str
) -> None:
    """body: what the receiver computed for this sender (consistency_bodies). docs/protocol.md 5.5."""
    scope = f"{scope}: signature of {sender} over this cohort, U2 and U3"
    signed = SignedBody(body=body, signature=signature)
    _check_signed(signed, Consistency.PURPOSE, certificate, scope)


def check_statement(
    signed: SignedBody, *, certificate: x509.Certificate, expected: NextState | Abandoned
) -> None:
    """What a silo signed of a phase that is over; compared and not parsed. docs/protocol.md 5.10, 6.10."""
    scope = f"{expected.PURPOSE} of {expected.sender}"
    if signed.body != body_of(expected):
        raise RemoteProtocolError(f"{scope}: signed of another phase or outcome", code=Refusal.STATE)
    _check_signed(signed, expected.PURPOSE, certificate, scope)


def open_complaint(
    signed: SignedBody, *, certificate: x509.Certificate, cohort_digest: bytes, sender: str
) -> Complaint:
    """A complaint that `sender` signed in this cohort. docs/protocol.md 5.8."""
    scope = f"complaint of {sender}"
    reader = _open(signed, "complaint", certificate, scope=scope, code=Refusal.MALFORMED)
    complaint = Complaint(
        cohort_digest=reader.data(DIGEST_BYTES), sender=reader.text(), accused=reader.text()
    )
    reader.end()
    if (complaint.cohort_digest, complaint.sender) != (cohort_digest, sender):
        raise RemoteProtocolError(f"{scope}: signed for another cohort or silo")
    return complaint


def _check_signed(signed: SignedBody, purpose: str, certificate: x509.Certificate, scope: str) -> None:
    try:
        check_signature(signed, purpose=purpose, certificate=certificate)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{scope}: {error}", code=Refusal.SIGNATURES) from None


def _standing(identity: Identity, sequence: int, mark: bytes) -> LedgerStanding:
    member = identity.member
    return LedgerStanding(federation=member.federation, name=member.name, sequence=sequence, mark=mark)


def _read_echo(reader: FieldReader) -> tuple[str, LedgerStatement]:
    echo = reader.text(), _read_statement(reader.fields())
    reader.end()
    return echo


def _read_statement(reader: FieldReader) -> LedgerStatement:
    statement = LedgerStatement(reader.number(), reader.data(MARK_BYTES), reader.data())
    reader.end()
    if statement.sequence > MAX_SEQUENCE or not 0 < len(statement.signature) <= MAX_SIGNATURE_BYTES:
        message = "advert: a ledger statement has too large a sequence or no signature of a silo"
        raise RemoteProtocolError(message, code=Refusal.ADVERT)
    return statement


def _values(message: Signable | Envelope) -> list[encoding.Field]:
    return [getattr(message, field.name) for field in dataclasses.fields(message)]


def _open(
    signed: SignedBody, purpose: str, certificate: x509.Certificate, *, scope: str, code: Refusal
) -> FieldReader:
    try:
        values = verify(signed, purpose=purpose, certificate=certificate)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{scope}: {error}", code=code) from None
    return FieldReader(values, what=scope, code=code)
