"""The authority's signed list of members: who belongs, with which certificate, and until when.

The coordinator only relays it. Leaving the roster is revocation. Source: docs/protocol.md 1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

from cryptography import x509

from crypto import encoding
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from crypto.identity import certificates
from crypto.identity.certificates import CLOCK_SKEW, Anchors, MemberId, PrivateKey, Role, SignedBody

PURPOSE = "roster"
ADMIN, READMITTED = "admin", "readmitted"
MAX_MEMBERS = 4096
MAX_VERSION = (1 << 62) - 1  # fits SQLite's integers, and is 2**42 steps of MAX_VERSION_STEP away
MAX_VERSION_STEP = 1 << 20  # a version an hour for 119 years: no member sleeps through so many
MAX_FILE_BYTES = 2 << 20
REMEMBERED = 32  # rosters whose signature was looked at: every call and every phase asks for a few of them

_VERSION_AND_DATES = f"expected a version from 1 to {MAX_VERSION} that expires after it is issued"


@dataclass(frozen=True, slots=True, order=True)
class Member:
    role: Role
    name: str
    fingerprint: bytes  # SHA-256 of the certificate's DER
    # an operator who may also pause, resume and cancel the jobs of others; no part of who a member is
    is_admin: bool = field(default=False, compare=False)
    # the version that listed the certificate again after it had left; 0: it never left
    readmitted_in: int = field(default=0, compare=False)

    @property
    def title(self) -> str:
        """Role and name, for people."""
        return f"{self.role} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Roster:
    """A roster whose signature held; members are sorted by role and name."""

    federation: str
    version: int
    issued: datetime
    expires: datetime
    members: tuple[Member, ...]
    signed: SignedBody = field(repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the signed body."""
        return hashlib.sha256(self.signed.body).digest()

    @property
    def silo_names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.members if member.role is Role.SILO)

    @cached_property
    def _lookup(self) -> frozenset[Member]:
        return frozenset(self.members)  # every advert is looked up

    def holds(self, role: Role, name: str, fingerprint: bytes) -> bool:
        return Member(role, name, fingerprint) in self._lookup

    def is_admin(self, operator: str) -> bool:
        """Whether the operator of this name has the mark."""
        return any(member.is_admin and member.name == operator for member in self.members)

    def check_member(self, certificate: x509.Certificate) -> MemberId:
        """The member whose certificate this is.

        Raises RemoteProtocolError(code=ROSTER) if the roster does not hold this very certificate.
        """
        member = certificates.member_of(certificate)
        if member.federation != self.federation:
            raise _refused(f"expected federation {self.federation}, got {member.federation}")
        if not self.holds(member.role, member.name, certificates.fingerprint(certificate)):
            who = f"{member.role} {member.name}"
            raise _refused(f"version {self.version} does not hold {who} with this certificate")
        return member

    def check_trusted(self, authority: Anchors, now: datetime) -> None:
        """It held when it was read; members remove a certificate of the authority whose key was stolen.

        Raises RemoteProtocolError(code=ROSTER) unless one that is trusted and valid now signed it. Source:
        docs/protocol.md 1.6.
        """
        if not _is_signed_by(self.signed, authority.valid_at(now)):
            raise _refused(
                f"version {self.version} is signed with no key of the authority that is trusted now"
            )

    def check_current(self, now: datetime, *, max_age: timedelta | None = None) -> None:
        """Raises RemoteProtocolError(code=ROSTER) if it is of the future, expired or too old."""
        if now < self.issued - CLOCK_SKEW:
            raise _refused(f"issued at {self.issued.isoformat()}, after {now.isoformat()}")
        if now > self.expires:
            raise _refused(f"version {self.version} expired at {self.expires.isoformat()}")
        age = now - self.issued
        if max_age is not None and age > max_age:
            raise _refused(f"version {self.version} is {age.days} days old, at most {max_age.days} allowed")


def sign_roster(
    *,
    authority_key: PrivateKey,
    federation: str,
    version: int,
    issued: datetime,
    expires: datetime,
    members: Iterable[Member],
) -> SignedBody:
    """Sign a version of the roster. Raises ConfigError for a list that no reader would accept."""
    ordered = sorted(members)
    if not 1 <= version <= MAX_VERSION or expires <= issued:
        raise ConfigError(f"roster: {_VERSION_AND_DATES}")
    if not _has_distinct_names(ordered) or len(ordered) > MAX_MEMBERS:
        raise ConfigError(f"roster: expected at most {MAX_MEMBERS} members, each named once")
    if any(member.is_admin and member.role is not Role.OPERATOR for member in ordered):
        raise ConfigError("roster: only an operator can be an admin")
    if any(not _may_be_readmitted(member.readmitted_in, version) for member in ordered):
        raise ConfigError(f"roster: expected members readmitted in versions 2 to {version}")
    rows = [_row(member) for member in ordered]
    issued_seconds, expires_seconds = int(issued.timestamp()), int(expires.timestamp())
    return certificates.sign(
        authority_key, PURPOSE, federation, version, issued_seconds, expires_seconds, rows
    )


def open_roster(
    signed: SignedBody,
    *,
    authority: Anchors,
    federation: str,
    now: datetime,
    max_age: timedelta | None = None,
) -> Roster:
    """The roster, if the authority signed it for this federation and it is current.

    Raises RemoteProtocolError(code=ROSTER).
    """
    roster = read_roster(signed, authority=authority.valid_at(now), federation=federation)
    roster.check_current(now, max_age=max_age)
    return roster


def read_roster(signed: SignedBody, *, authority: Anchors, federation: str) -> Roster:
    """The roster, expired or not: what the authority itself builds the next version on.

    Raises RemoteProtocolError(code=ROSTER).
    """
    fields = authority.verify(signed, purpose=PURPOSE, code=Refusal.ROSTER)
    roster = _parse(fields, signed)
    if roster.federation != federation:
        raise _refused(f"expected federation {federation}, got {roster.federation}")
    return roster


def stored_roster(signed: SignedBody) -> Roster:
    """A roster whose signature was verified before it was stored; a former authority may have signed it.

    Raises RemoteProtocolError(code=ROSTER).
    """
    try:
        return _parse(encoding.decode(PURPOSE, signed.body, max_bytes=MAX_FILE_BYTES), signed)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), code=Refusal.ROSTER) from None


def roster_to_file_bytes(signed: SignedBody) -> bytes:
    """JSON with body and signature in base64."""
    document = {
        "body": base64.b64encode(signed.body).decode(),
        "signature": base64.b64encode(signed.signature).decode(),
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def roster_from_file_bytes(data: bytes) -> SignedBody:
    """The unverified content of a roster file. Raises ConfigError."""
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("too large")
        document = json.loads(data)
        if set(document) != {"body", "signature"}:
            raise ValueError("fields")
        body = base64.b64decode(document["body"], validate=True)
        signature = base64.b64decode(document["signature"], validate=True)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise ConfigError("roster file: expected JSON with body and signature in base64") from None
    return SignedBody(body=body, signature=signature)


@lru_cache(maxsize=REMEMBERED)
def _is_signed_by(signed: SignedBody, authority: Anchors) -> bool:
    try:
        authority.verify(signed, purpose=PURPOSE, code=Refusal.ROSTER)
    except RemoteProtocolError:
        return False
    return True


def _parse(fields: list[encoding.Value], signed: SignedBody) -> Roster:
    reader = encoding.FieldReader(fields, what=PURPOSE, code=Refusal.ROSTER)
    federation, version = reader.text(), reader.number()
    issued, expires = _date(reader.number()), _date(reader.number())
    members = []
    for row in reader.rows():
        role, name, fingerprint = row.text(), row.text(), row.data(32)
        mark = row.text() if row.left else None
        is_admin = mark == ADMIN and role == Role.OPERATOR
        if is_admin:
            mark = row.text() if row.left else None
        readmitted_in = row.number() if mark == READMITTED else 0
        if mark not in (None, READMITTED) or (mark and not readmitted_in):
            raise _refused("a member's mark is malformed")
        row.end()
        if not _may_be_readmitted(readmitted_in, version):
            raise _refused(f"a member is readmitted in version {readmitted_in}, expected 2 to {version}")
        if role not in set(Role) or not certificates.NAME_PATTERN.fullmatch(name):
            raise _refused("a member's role or name is malformed")
        members.append(Member(Role(role), name, fingerprint, is_admin=is_admin, readmitted_in=readmitted_in))
    reader.end()
    roster = Roster(
        federation=federation,
        version=version,
        issued=issued,
        expires=expires,
        members=tuple(members),
        signed=signed,
    )
    if not 1 <= version <= MAX_VERSION or expires <= issued:
        raise _refused(_VERSION_AND_DATES)
    if list(roster.members) != sorted(roster.members) or not _has_distinct_names(roster.members):
        raise _refused("members are not sorted or one is named twice")
    return roster


def _row(member: Member) -> list[encoding.Field]:
    row: list[encoding.Field] = [member.role.value, member.name, member.fingerprint]
    if member.is_admin:
        row.append(ADMIN)
    if member.readmitted_in:
        row += [READMITTED, member.readmitted_in]
    return row


def _may_be_readmitted(readmitted_in: int, version: int) -> bool:
    """Nothing can come back in the first version, nor in one that is still to be signed."""
    return readmitted_in == 0 or 2 <= readmitted_in <= version


def _has_distinct_names(members: Iterable[Member]) -> bool:
    names = [(member.role, member.name) for member in members]
    return len(set(names)) == len(names)


def _date(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise _refused("a date is out of range") from None


def _refused(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"roster: {message}", code=Refusal.ROSTER)
