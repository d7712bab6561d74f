"""The roster that a party goes by: its signature, its age, and whether it lists the party's certificate."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509

from cli.doctor.credentials import CLOCK
from cli.doctor.findings import Findings
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import CLOCK_SKEW, Anchors, SignedBody, fingerprint, member_of
from crypto.identity.roster import Roster, read_roster

SOON = timedelta(days=2)  # before silos refuse it, as the alert ChoraleCoordinatorRosterTooOld
RENEW = "have the authority run `chorale authority renew`, and put the new roster.json at the coordinator"


def check_roster(
    signed: SignedBody,
    certificate: x509.Certificate | None,
    authority: Anchors,
    *,
    now: datetime,
    max_age: timedelta,
    findings: Findings,
) -> Roster | None:
    """The roster, where its signature holds. certificate: of this party, which it has to list; None: not
    known. max_age: beyond which silos refuse it."""
    try:
        roster = read_roster(signed, authority=authority, federation=authority.federation)
    except RemoteProtocolError as error:
        findings.problem("roster", str(error), fix=RENEW)
        return None
    age = now - roster.issued
    description = f"version {roster.version}, signed on {roster.issued:%Y-%m-%d %H:%M} UTC"
    if certificate is not None:
        member = member_of(certificate)
        if not roster.holds(member.role, member.name, fingerprint(certificate)):
            findings.problem(
                "roster",
                f"{description}: it does not list this certificate of {member.role} {member.name}",
                fix=f"have the authority list it: chorale authority roster {member.name}.crt",
            )
            return roster
    if age < -CLOCK_SKEW:
        findings.problem("clock", f"roster {description}: that is after {now:%Y-%m-%d %H:%M} UTC", fix=CLOCK)
    elif now > roster.expires:
        findings.problem(
            "roster", f"{description}: it expired on {roster.expires:%Y-%m-%d %H:%M} UTC", fix=RENEW
        )
    elif age > max_age:
        message = f"{description}: {age.days} days old, silos take at most {max_age / timedelta(days=1):g}"
        findings.problem("roster", message, fix=RENEW)
    elif age > max_age - SOON or roster.expires - now < SOON:
        findings.warn("roster", f"{description}: silos refuse it within {SOON.days} days", fix=RENEW)
    else:
        findings.fine("roster", f"{description}, {len(roster.members)} members")
    return roster
