"""Targets: canonical documents, certificates, and what is sealed: what `crypto` reads.

A signed body is signed here, after it was changed: a member of the federation may sign any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from cryptography.hazmat.primitives import serialization

from crypto import encoding, envelope_tree
from crypto.encoding import FieldReader
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.fixed_point.layout import Layout, Projection, Quantity, quantity_fields, read_quantity
from crypto.identity import certificates, issuing, roster
from crypto.identity.certificates import Role, SignedBody
from crypto.noise.sensitivity import Noise
from crypto.session import bodies, envelope, shamir
from crypto.session.messages import Dealing, Envelope, RelayedEnvelope, Shares, Signable
from crypto.session.reveal import PendingReveal
from crypto.session.session_record import HeldDealing, SessionRecord
from crypto.session.sum_check import SumCheck
from tests.fuzz import mutate, world
from tests.fuzz.target import Target
from tests.support.sessions import NOW

DEALER, RECEIVER = world.SILOS[0], world.SILOS[1]
KEYS = envelope.KeyPair.from_seed(b"\1" * envelope.SEED_BYTES)


def _signed(data: bytes, *, by: str = DEALER) -> SignedBody:
    return SignedBody(body=data, signature=world.federation().silos[by].key.sign(data, certificates._HASH))


def _same(made: Signable, data: bytes) -> None:
    assert bodies.body_of(made) == data, "two encodings of one message"


def _advert(data: bytes) -> None:
    terms = world.terms()
    opened = bodies.open_advert(
        _signed(data),
        terms=terms,
        session_digest=terms.digest(),
        roster=world.federation().roster,
        authority=world.federation().authority,
        now=NOW,
    )
    _same(opened.advert, data)
    for key in (opened.advert.channel_key, opened.advert.mask_key):
        envelope.seal(key, b"share", info=b"fuzz")


def _envelope(data: bytes) -> None:
    """A body and a path: the dealer signs whatever root the path leads to, or that of its own tree."""
    reader = FieldReader(encoding.decode("relayed", data), what="relayed")
    body, path = reader.data(), reader.data()
    reader.end()
    root = envelope_tree.root_from(body, path, place=0, size=len(world.SILOS) - 1)
    by_path = by_coordinator = None
    with suppress(RemoteProtocolError):
        by_path = _received(RelayedEnvelope(dealing=_dealing(root), envelope=body, path=path))
    with suppress(RemoteProtocolError):
        by_coordinator = _received(_relayed(body))
    assert by_path == by_coordinator, "one reader refuses what the other takes"
    if by_path is None:
        raise RemoteProtocolError("envelope: both readers refuse it")
    assert bodies.body_of(by_path) == body, "two encodings of one envelope"


def _received(relayed: RelayedEnvelope) -> Envelope:
    return bodies.open_envelope(
        relayed,
        certificate=world.federation().silos[DEALER].certificate,
        cohort=world.SILOS,
        cohort_digest=world.exchange().coordinator.cohort_digest,
        sender=DEALER,
        receiver=RECEIVER,
    )


def _relayed(body: bytes) -> RelayedEnvelope:
    """As a coordinator takes it among the others of the dealer."""
    envelopes = (body, *world.shares().envelopes[1:])
    leaves = [*map(envelope_tree.leaf, envelopes)]
    held = HeldDealing(
        Shares(dealing=_dealing(envelope_tree.root(envelope_tree.levels(leaves))), envelopes=envelopes),
        leaves,
        message_digest=b"",
        certificate=world.federation().silos[DEALER].certificate,
        cohort_digest=world.exchange().coordinator.cohort_digest,
        dealer=DEALER,
        receivers=world.SILOS[1:],
    )
    return held.relay(world.SILOS)[RECEIVER]


def _dealing(root: bytes) -> SignedBody:
    made = Dealing(
        cohort_digest=world.exchange().coordinator.cohort_digest,
        sender=DEALER,
        self_mask_share_hash=b"h" * 32,
        envelopes_root=root,
    )
    return bodies.sign(world.federation().silos[DEALER], made)


def _from_silo(read: Callable[..., Signable]) -> Callable[[bytes], None]:
    """A body that names its cohort and its sender alone."""

    def check(data: bytes) -> None:
        certificate = world.federation().silos[DEALER].certificate
        cohort = world.exchange().coordinator.cohort_digest
        _same(read(_signed(data), certificate=certificate, cohort_digest=cohort, sender=DEALER), data)

    return check


def _roster(data: bytes) -> None:
    federation = world.federation()
    signed = SignedBody(body=data, signature=federation.authority_key.sign(data, certificates._HASH))
    opened = roster.open_roster(signed, authority=federation.authority, federation=world.FEDERATION, now=NOW)
    again = roster.sign_roster(
        authority_key=federation.authority_key,
        federation=opened.federation,
        version=opened.version,
        issued=opened.issued,
        expires=opened.expires,
        members=opened.members,
    )
    assert again.body == data, "two encodings of one roster"


def _marked_roster() -> bytes:
    given = world.federation().roster
    return roster.sign_roster(
        authority_key=world.federation().authority_key,
        federation=given.federation,
        version=given.version,
        issued=given.issued,
        expires=given.expires,
        members=[
            replace(member, is_admin=member.role is Role.OPERATOR, readmitted_in=2 + place % 3)
            for place, member in enumerate(given.members)
        ],
    ).body


def _encoding(data: bytes) -> None:
    assert encoding.encode("fuzz", *encoding.decode("fuzz", data)) == data


def _quantity(data: bytes) -> None:
    reader = FieldReader(encoding.decode("quantity", data), what="quantity")
    made = read_quantity(reader)
    reader.end()
    layout = Layout(members=3, quantities=(made,))
    assert len(layout.digest) == 32
    assert layout.total_bytes > 0


def _certificate(data: bytes) -> None:
    certificate = certificates.certificate_from_der(data)
    assert certificate.public_bytes(serialization.Encoding.DER) == data
    for role in Role:
        with suppress(RemoteProtocolError):
            certificates.check_certificate(
                certificate,
                authority=world.federation().authority,
                role=role,
                federation=world.FEDERATION,
                now=NOW,
            )
    # what is behind the authority's signature: a peer gets as far where an authority is careless
    for read in (certificates.member_of, lambda one: certificates._member_with_usage(one, Role.SILO)):
        with suppress(RemoteProtocolError):
            read(certificate)


def _request(data: bytes) -> None:
    certificate = issuing.sign_csr(
        data,
        authority_key=world.federation().authority_key,
        authority_certificate=world.federation().authority.certificates[0],
        role=Role.COORDINATOR,
        now=NOW,
        valid_days=1,
    )
    certificates.check_certificate(
        certificate,
        authority=world.federation().authority,
        role=Role.COORDINATOR,
        federation=world.FEDERATION,
        now=NOW,
    )


def _sealed(data: bytes) -> None:
    assert envelope.open_sealed(KEYS, data, info=b"fuzz") == b"shares"


def _shares(data: bytes) -> None:
    size = shamir.SHARE_BYTES
    shares = [data[:size], data[size : 2 * size], data[2 * size :]]
    assert len(shamir.Recoverer([1, 2, 3], 2).recover(shares)) == shamir.SECRET_BYTES


def _bodies(kind: str) -> Callable[[], Iterator[bytes]]:
    """Honest bodies of the first silo."""

    def seeds() -> Iterator[bytes]:
        if kind == "advert":
            yield world.exchange().coordinator.record.adverts[DEALER].signed.body
        elif kind == "envelope":
            relayed = world.relayed()
            yield encoding.encode("relayed", relayed.envelope, relayed.path)
        elif kind == "dealing":
            yield world.shares().dealing.body
        else:
            cohort = world.exchange().coordinator.cohort_digest
            yield encoding.encode("complaint", cohort, DEALER, RECEIVER)

    return seeds


def _requests() -> Iterator[bytes]:
    key = world.operator().key
    for role, hosts in ((Role.COORDINATOR, ("localhost", "127.0.0.1")), (Role.SILO, ())):
        member = certificates.MemberId(federation=world.FEDERATION, role=role, name="new")
        yield issuing.new_csr(key, member, hosts)


def _quantities() -> Iterator[bytes]:
    made = (
        Quantity(name="delta", shape=(7,), bound=8.0, ring_bits=32, is_tagged=True, sensitivity_l2=1.0),
        Quantity(name="counts", shape=(3, 2), bound=1000, is_count=True),
        Quantity(name="loss", bound=8.0, noise=Noise(variance=99.5, scale=2.0, clip_l2=1.0)),
        Quantity(name="gradient", bound=8.0, noise=Noise(variance=99.5, scale=2.0), is_whole_units=True),
        Quantity(
            name="half",
            shape=(16,),
            bound=1.0,
            ring_bits=16,
            projection=Projection(seed=b"s" * 32, size=16, block=16),
        ),
    )
    for each in made:
        yield encoding.encode("quantity", *quantity_fields(each))


def _pem_seeds() -> Iterator[bytes]:
    silo = world.federation().silos[DEALER]
    yield certificates.certificate_to_pem(silo.certificate) + certificates.key_to_pem(silo.key)


def _identity(data: bytes) -> None:
    certificates.Identity.load(data, data)


def _anchor_seeds() -> Iterator[bytes]:
    yield world.federation().authority.pem
    yield world.federation().authority.pem + certificates.certificate_to_pem(
        world.federation().silos[DEALER].certificate
    )


def _anchors(data: bytes) -> None:
    made = certificates.Anchors.load(data)
    assert certificates.Anchors.load(made.pem) == made


TARGETS = (
    Target(
        name="encoding",
        read=_encoding,
        seeds=lambda: [encoding.encode("fuzz", b"bytes", "text", 7, ["list", [b"", 1 << 63]])],
        mutate=mutate.either(mutate.raw, mutate.document),
    ),
    Target(name="advert", read=_advert, seeds=_bodies("advert"), mutate=mutate.document),
    Target(name="envelope", read=_envelope, seeds=_bodies("envelope"), mutate=mutate.document),
    Target(
        name="dealing",
        read=_from_silo(bodies.open_dealing),
        seeds=_bodies("dealing"),
        mutate=mutate.document,
    ),
    Target(
        name="complaint",
        read=_from_silo(bodies.open_complaint),
        seeds=_bodies("complaint"),
        mutate=mutate.document,
    ),
    Target(
        name="roster",
        read=_roster,
        seeds=lambda: [world.federation().roster.signed.body, _marked_roster()],
        mutate=mutate.document,
    ),
    Target(
        name="roster-file",
        read=roster.roster_from_file_bytes,
        seeds=lambda: [roster.roster_to_file_bytes(world.federation().roster.signed)],
        refuses=(ConfigError,),
        mutate=mutate.either(mutate.raw, mutate.json_values),
    ),
    Target(
        name="session-record",
        read=SessionRecord.from_bytes,
        seeds=lambda: [
            made.coordinator.record.to_bytes() for made in (world.exchange(), world.lossy_exchange())
        ],
        mutate=mutate.document,
        max_bytes=1 << 16,
    ),
    Target(
        name="pending-reveal",
        read=PendingReveal.from_bytes,
        seeds=lambda: [_pending().to_bytes()],
        mutate=mutate.document,
        max_bytes=1 << 13,
    ),
    Target(
        name="sum-check",
        read=SumCheck.from_bytes,
        seeds=lambda: [world.exchange().checks[DEALER].to_bytes()],
        mutate=mutate.document,
        max_bytes=1 << 13,
    ),
    Target(
        name="quantity",
        read=_quantity,
        seeds=_quantities,
        refuses=(ChoraleError, ValueError, OverflowError),  # as it says; its reader turns them into one
        mutate=mutate.document,
    ),
    Target(
        name="certificate",
        read=_certificate,
        seeds=lambda: [
            world.federation().silos[DEALER].certificate_der,
            world.operator().certificate_der,
            world.federation().authority.certificates[0].public_bytes(serialization.Encoding.DER),
        ],
    ),
    Target(name="anchors", read=_anchors, seeds=_anchor_seeds, refuses=(ConfigError,)),
    Target(name="identity", read=_identity, seeds=_pem_seeds, refuses=(ConfigError,)),
    Target(name="request", read=_request, seeds=_requests, refuses=(ConfigError,)),
    Target(
        name="sealed",
        read=_sealed,
        seeds=lambda: [envelope.seal(KEYS.public, b"shares", info=b"fuzz")],
    ),
    Target(
        name="shares",
        read=_shares,
        seeds=lambda: [
            b"".join(shamir.split(b"\2" * 32, threshold=2, xs=[1, 2, 3], random=lambda size: b"\3" * size))
        ],
    ),
)


def _pending() -> PendingReveal:
    (pending,) = world.exchange().ledgers[DEALER].pending.values()
    return pending
