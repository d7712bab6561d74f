"""Silos with real certificates and a signed roster, in memory: what a session of the protocol checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from crypto import identity, issuing
from crypto.identity import Identity, MemberId, Role
from crypto.roster import Member, Roster, open_roster, sign_roster

VALID_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """An authority's certificate, its silos by name, and the roster of them. Its key is gone."""

    authority: x509.Certificate
    silos: Mapping[str, Identity]
    roster: Roster


def enrol(names: Sequence[str], *, federation: str, now: datetime) -> Members:
    """An authority of its own and a certificate for every silo."""
    key, authority = issuing.new_authority(federation, now=now - timedelta(days=1), valid_days=365)
    silos = {}
    for name in names:
        own_key, member = identity.new_key(), MemberId(federation=federation, role=Role.SILO, name=name)
        certificate = issuing.sign_csr(
            issuing.new_csr(own_key, member, []),
            authority_key=key,
            authority_certificate=authority,
            role=Role.SILO,
            now=now,
            valid_days=VALID_DAYS,
        )
        silos[name] = Identity(member=member, certificate=certificate, key=own_key)
    signed = sign_roster(
        authority_key=key,
        federation=federation,
        version=1,
        issued=now,
        expires=now + timedelta(days=VALID_DAYS),
        members=[Member(Role.SILO, name, silo.fingerprint) for name, silo in silos.items()],
    )
    roster = open_roster(signed, authority=authority, federation=federation, now=now)
    return Members(authority=authority, silos=silos, roster=roster)
