"""An enrolled federation, in memory and as files, as every benchmark of the protocol needs one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from crypto import identity, issuing
from crypto.identity import Identity, MemberId, PrivateKey, Role
from crypto.roster import Member, Roster, open_roster, roster_to_file_bytes, sign_roster

NAME = "bench"
HUB = "hub"  # the coordinator, on loopback
LOOPBACK = "127.0.0.1"
AUTHORITY_FILE, ROSTER_FILE = "authority.crt", "roster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    authority: x509.Certificate
    coordinator: Identity
    silos: dict[str, Identity]  # by name, sorted
    roster: Roster

    def write_files(self, folder: Path) -> None:
        """What a federation's programs read: authority, roster, each member's `<name>.crt` and `.key`."""
        (folder / AUTHORITY_FILE).write_bytes(identity.certificate_to_pem(self.authority))
        (folder / ROSTER_FILE).write_bytes(roster_to_file_bytes(self.roster.signed))
        for one in (self.coordinator, *self.silos.values()):
            (folder / f"{one.member.name}.crt").write_bytes(identity.certificate_to_pem(one.certificate))
            (folder / f"{one.member.name}.key").write_bytes(identity.key_to_pem(one.key))


def make_federation(silos: int, *, now: datetime) -> Federation:
    """An authority, a coordinator and n silos with certificates of it, and the roster of the silos."""
    key, authority = issuing.new_authority(NAME, now=now - timedelta(days=1), valid_days=365)
    names = [f"silo-{index:03}" for index in range(silos)]
    identities = {name: _enrol(Role.SILO, name, key, authority, now=now) for name in names}
    coordinator = _enrol(Role.COORDINATOR, HUB, key, authority, now=now)
    signed = sign_roster(
        authority_key=key,
        federation=NAME,
        version=1,
        issued=now,
        expires=now + timedelta(days=30),
        members=[Member(Role.SILO, name, one.fingerprint) for name, one in identities.items()],
    )
    roster = open_roster(signed, authority=authority, federation=NAME, now=now)
    return Federation(authority=authority, coordinator=coordinator, silos=identities, roster=roster)


def _enrol(
    role: Role, name: str, authority_key: PrivateKey, authority: x509.Certificate, *, now: datetime
) -> Identity:
    key = identity.new_key()
    member = MemberId(federation=NAME, role=role, name=name)
    certificate = issuing.sign_csr(
        issuing.new_csr(key, member, [LOOPBACK] if role is Role.COORDINATOR else []),
        authority_key=authority_key,
        authority_certificate=authority,
        role=role,
        now=now,
        valid_days=30,
    )
    return Identity(member=member, certificate=certificate, key=key)
