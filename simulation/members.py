"""Silos with real certificates and a signed roster, in memory: what a session of the protocol checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from crypto.identity import certificates, issuing
from crypto.identity.certificates import Anchors, Identity, MemberId, Role
from crypto.identity.roster import Member, Roster, open_roster, sign_roster

VALID_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """An authority's certificate, its silos by name, and the roster of them. Its key is gone."""

    authority: Anchors
    silos: Mapping[str, Identity]
    roster: Roster


class Authority:
    """A new authority with its key. now: when all that it signs becomes valid."""

    def __init__(self, federation: str, *, now: datetime) -> None:
        self._federation = federation
        self._now = now
        self._key, self._certificate = issuing.new_authority(
            federation, now=now - timedelta(days=1), valid_days=365
        )
        self.anchors = Anchors((self._certificate,))

    def enroll(self, role: Role, name: str, *, addresses: Sequence[str] = ()) -> Identity:
        """A key of its own and a certificate. addresses: where a coordinator is dialed."""
        key, member = certificates.new_key(), MemberId(federation=self._federation, role=role, name=name)
        certificate = issuing.sign_csr(
            issuing.new_csr(key, member, addresses),
            authority_key=self._key,
            authority_certificate=self._certificate,
            role=role,
            now=self._now,
            valid_days=VALID_DAYS,
        )
        return Identity(member=member, certificate=certificate, key=key)

    def roster(self, enrolled: Mapping[str, Identity]) -> Roster:
        """The first version, signed and opened."""
        signed = sign_roster(
            authority_key=self._key,
            federation=self._federation,
            version=1,
            issued=self._now,
            expires=self._now + timedelta(days=VALID_DAYS),
            members=[Member(each.member.role, name, each.fingerprint) for name, each in enrolled.items()],
        )
        return open_roster(signed, authority=self.anchors, federation=self._federation, now=self._now)


def enroll(names: Sequence[str], *, federation: str, now: datetime) -> Members:
    """An authority of its own and a certificate for every silo."""
    authority = Authority(federation, now=now)
    silos = {name: authority.enroll(Role.SILO, name) for name in names}
    return Members(authority=authority.anchors, silos=silos, roster=authority.roster(silos))
