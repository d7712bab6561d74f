"""An enrolled federation in memory, as every benchmark of the protocol needs one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from crypto import identity, issuing
from crypto.identity import Identity, MemberId, PrivateKey, Role
from crypto.roster import Member, Roster, open_roster, sign_roster

NAME = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    authority: x509.Certificate
    silos: dict[str, Identity]  # by name, sorted
    roster: Roster


def make_federation(silos: int, *, now: datetime) -> Federation:
    """An authority, n silos with certificates of it, and the roster that lists them."""
    key, authority = issuing.new_authority(NAME, now=now - timedelta(days=1), valid_days=365)
    names = [f"silo-{index:03}" for index in range(silos)]
    identities = {name: _enrol(name, key, authority, now=now) for name in names}
    signed = sign_roster(
        authority_key=key,
        federation=NAME,
        version=1,
        issued=now,
        expires=now + timedelta(days=30),
        members=[Member(Role.SILO, name, one.fingerprint) for name, one in identities.items()],
    )
    roster = open_roster(signed, authority=authority, federation=NAME, now=now)
    return Federation(authority=authority, silos=identities, roster=roster)


def _enrol(name: str, authority_key: PrivateKey, authority: x509.Certificate, *, now: datetime) -> Identity:
    key = identity.new_key()
    member = MemberId(federation=NAME, role=Role.SILO, name=name)
    certificate = issuing.sign_csr(
        issuing.new_csr(key, member),
        authority_key=authority_key,
        authority_certificate=authority,
        role=Role.SILO,
        now=now,
        valid_days=30,
    )
    return Identity(member=member, certificate=certificate, key=key)
