"""An authority in a test's folder: certificates and rosters as files, made by the product's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from chorale.runtime.files import write_atomic
from crypto.identity import certificates, issuing, roster
from crypto.identity.certificates import Anchors, Identity, MemberId, PrivateKey, Role
from crypto.identity.roster import Member


@dataclass(kw_only=True)
class Ceremony:
    """Founds a federation under `folder`; members are files `<role>-<name>.crt` and `.key`."""

    folder: Path
    federation: str = "test"
    authority_days: int = 10
    version: int = 0
    members: dict[tuple[Role, str], x509.Certificate] = field(default_factory=dict)
    readmitted_in: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.key, self.certificate = issuing.new_authority(
            self.federation, now=_now(), valid_days=self.authority_days
        )
        self.certificate_path.write_bytes(certificates.certificate_to_pem(self.certificate))

    @property
    def anchors(self) -> Anchors:
        return Anchors((self.certificate,))

    @property
    def certificate_path(self) -> Path:
        return self.folder / "authority.crt"

    @property
    def roster_path(self) -> Path:
        return self.folder / "roster.json"

    def enroll(self, role: Role, name: str, *, days: int = 5, now: datetime | None = None) -> Identity:
        """A member with files; it stands on the next roster."""
        hosts = ["127.0.0.1", "localhost"] if role is Role.COORDINATOR else []
        member = MemberId(federation=self.federation, role=role, name=name)
        made = issue(self.key, self.certificate, member, now=now or _now(), days=days, hosts=hosts)
        return self.adopt(made.key, made.certificate)

    def adopt(self, key: PrivateKey, certificate: x509.Certificate) -> Identity:
        """Write a member's files, whichever authority issued its certificate."""
        member = certificates.member_of(certificate)
        self.path_of(member.role, member.name, "crt").write_bytes(
            certificates.certificate_to_pem(certificate)
        )
        write_atomic(self.path_of(member.role, member.name, "key"), certificates.key_to_pem(key))
        self.members[member.role, member.name] = certificate
        return Identity(member=member, certificate=certificate, key=key)

    def path_of(self, role: Role, name: str, ending: str) -> Path:
        return self.folder / f"{role.value}-{name}.{ending}"

    def publish(
        self,
        *,
        without: tuple[str, ...] = (),
        admins: tuple[str, ...] = (),
        readmitted: tuple[str, ...] = (),
        issued: datetime | None = None,
    ) -> None:
        """Write the next version of the roster, without the named members; these operators are admins, and
        these members are readmitted."""
        self.version += 1
        self.readmitted_in |= dict.fromkeys(readmitted, self.version)
        begin = issued or _now()
        signed = roster.sign_roster(
            federation=self.federation,
            version=self.version,
            issued=begin,
            expires=begin + timedelta(days=5),
            members=[
                Member(
                    role,
                    name,
                    certificates.fingerprint(certificate),
                    is_admin=role is Role.OPERATOR and name in admins,
                    readmitted_in=self.readmitted_in.get(name, 0),
                )
                for (role, name), certificate in self.members.items()
                if name not in without
            ],
            authority_key=self.key,
        )
        written = roster.roster_to_file_bytes(signed)
        kept = self.folder / "rosters" / f"{self.version}.json"  # as the authority's own commands keep each
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(written)
        temporary = self.roster_path.with_suffix(".new")
        temporary.write_bytes(written)
        temporary.replace(self.roster_path)


def issue(
    authority_key: PrivateKey,
    authority: x509.Certificate,
    member: MemberId,
    *,
    now: datetime,
    days: int = 30,
    hosts: Sequence[str] = (),
) -> Identity:
    """A member with a key of its own and that authority's certificate."""
    own = certificates.new_key()
    certificate = issuing.sign_csr(
        issuing.new_csr(own, member, hosts),
        authority_key=authority_key,
        authority_certificate=authority,
        role=member.role,
        now=now,
        valid_days=days,
    )
    return Identity(member=member, certificate=certificate, key=own)


def stranger(role: Role, name: str, *, now: datetime) -> Identity:
    """A member of another authority, whose federation has the same name."""
    key, authority = issuing.new_authority("test", now=now, valid_days=30)
    return issue(key, authority, MemberId(federation="test", role=role, name=name), now=now, days=7)


def _now() -> datetime:
    return datetime.now(UTC)
