"""A federation whose certificates, keys and session are the same in every process.

The committed corpus holds them: with others, no input of it would pass the first checks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from datetime import timedelta
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crypto import envelope_tree
from crypto.identity import roster
from crypto.identity.certificates import Anchors, Identity, MemberId, PrivateKey, Role
from crypto.identity.roster import Member, Roster
from crypto.session import bodies
from crypto.session.messages import LedgerMark, RelayedEnvelope, SessionTerms, Shares
from crypto.session.silo_session import SiloSession
from tests.support import sessions
from tests.support.sessions import NOW, Exchange, MemoryLedger
from tests.vectors.make_vectors import counter_bytes

FEDERATION = "test"
SILOS = ("silo-000", "silo-001", "silo-002")


@functools.cache
def federation() -> sessions.Federation:
    key = _key("authority")
    authority = _certificate(f"spiffe://{FEDERATION}", key, key, issuer="authority", is_authority=True)
    *silos, spare = (_identity(key, Role.SILO, name) for name in (*SILOS, "spare"))
    return sessions.Federation(
        authority_key=key,
        authority=Anchors((authority,)),
        silos=dict(zip(SILOS, silos, strict=True)),
        spare=spare,
        roster=_roster(key, authority, [*silos, spare, operator()]),
    )


@functools.cache
def operator() -> Identity:
    return _identity(_key("authority"), Role.OPERATOR, "ops")


@functools.cache
def terms() -> SessionTerms:
    return sessions.make_terms(federation())


@functools.cache
def exchange() -> Exchange:
    """A session of all silos up to the shares that unmask; seals and signatures differ in every process."""
    return _exchange(federation())


@functools.cache
def lossy_exchange() -> Exchange:
    """One more silo, which deals and delivers nothing: a record keeps seeds for it."""
    larger = {**federation().silos, "spare": federation().spare}
    return _exchange(dataclasses.replace(federation(), silos=larger), lost=("spare",))


def shares() -> Shares:
    """What the first silo dealt."""
    dealt = exchange().answers[SILOS[0]][1]
    assert isinstance(dealt, Shares)
    return dealt


def relayed() -> RelayedEnvelope:
    """Its envelope to the second silo."""
    dealt = shares()
    path, *_ = envelope_tree.paths(envelope_tree.levels([*map(envelope_tree.leaf, dealt.envelopes)]))
    return RelayedEnvelope(dealing=dealt.dealing, envelope=dealt.envelopes[0], path=path)


class _Repeating:
    """A key that signs the same bytes alike in every process: signatures of ledgers are in adverts, and what
    follows is bound to these."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key

    def sign(self, data: bytes, _: object) -> bytes:
        return self._key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


class _Ledger(MemoryLedger):
    """Of one silo, which was in a session with all others before."""

    def __init__(self, own: Identity, others: Collection[Identity]) -> None:
        super().__init__()
        self._name = own.member.name
        for each in others:
            repeating = _repeating(each)
            self.peers[each.member.name] = bodies.sign_statement(repeating, _mark(1, each.member.name))

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        super().begin_attempt(terms)
        self.marks = [_mark(1, self._name), _mark(2, self._name)]
        return self.marks[-1]


def _mark(sequence: int, name: str) -> LedgerMark:
    return LedgerMark(sequence, counter_bytes(f"fuzz mark {sequence} of {name}")(bodies.MARK_BYTES))


def _repeating(identity: Identity) -> Identity:
    return dataclasses.replace(identity, key=cast(PrivateKey, _Repeating(identity.key)))


def _exchange(of: sessions.Federation, lost: Collection[str] = ()) -> Exchange:
    members = of.silos.values()
    ledgers: dict[str, MemoryLedger] = {
        name: _Ledger(own, [each for each in members if each is not own]) for name, own in of.silos.items()
    }
    made = sessions.make_exchange(of, ledgers=ledgers)
    made.silos = {
        name: SiloSession(
            terms=made.terms,
            identity=_repeating(of.silos[name]),
            roster=of.roster,
            authority=of.authority,
            ledger=ledgers[name],
            now=NOW,
            random=counter_bytes(f"fuzz {name}"),
        )
        for name in of.names
    }
    made.run_until("unmask", {"masked": lost})
    return made


def _identity(authority_key: PrivateKey, role: Role, name: str) -> Identity:
    member, key = MemberId(federation=FEDERATION, role=role, name=name), _key(name)
    certificate = _certificate(member.uri, key, authority_key, issuer="authority", usage=role)
    return Identity(member=member, certificate=certificate, key=key)


def _key(name: str) -> PrivateKey:
    """Known to everyone: it protects nothing."""
    return ec.derive_private_key(int.from_bytes(counter_bytes(f"fuzz key {name}")(31)), ec.SECP256R1())


def _certificate(
    uri: str,
    key: PrivateKey,
    signer: PrivateKey,
    *,
    issuer: str,
    is_authority: bool = False,
    usage: Role | None = None,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name("authority" if is_authority else uri.rpartition("/")[2]))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(1 + len(uri))
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage.key_usage]), critical=False)
    return builder.sign(signer, hashes.SHA256(), ecdsa_deterministic=True)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _roster(key: PrivateKey, authority: x509.Certificate, listed: list[Identity]) -> Roster:
    signed = roster.sign_roster(
        authority_key=key,
        federation=FEDERATION,
        version=7,
        issued=NOW,
        expires=NOW + timedelta(days=30),
        members=[Member(one.member.role, one.member.name, one.fingerprint) for one in listed],
    )
    return roster.open_roster(signed, authority=Anchors((authority,)), federation=FEDERATION, now=NOW)
