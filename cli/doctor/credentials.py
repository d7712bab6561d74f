"""A party's key and certificate, and the authority's: what a peer would refuse, found before it does."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from chorale.runtime.key_files import read_key
from chorale.transport.tls import (
    MAX_PEM_BYTES,
    IdentityFiles,
    check_own_certificate,
    load_authority,
    load_identity,
)
from cli.doctor.findings import Findings
from crypto.identity.certificates import Anchors, Identity, Role, fingerprint

SOON_DAYS = 21  # as the alert ChoraleCoordinatorCertificateExpiring
CLOCK = "set this machine's clock, and let a time service such as chrony keep it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Whose files these have to be. name: None takes any."""

    files: IdentityFiles
    authority: Path
    role: Role
    federation: str
    name: str | None

    @property
    def renewal(self) -> str:
        """How this party gets a new key and certificate."""
        request = f"chorale {self.role} csr --name {self.name or 'NAME'} --federation {self.federation}"
        return f"make a new key with `{request} --out FOLDER`, and have its request signed and listed"


def check_credentials(
    expected: Expected, *, now: datetime, findings: Findings
) -> tuple[Identity, Anchors] | None:
    """The certificate and the authority, where both can be read and a peer would take the certificate."""
    authority = identity = None
    with findings.step(
        "authority", fix=f"put the authority.crt that the authority gives out at {expected.authority}"
    ):
        authority = load_authority(expected.authority)
    if _has_key(expected, findings):
        files = expected.files
        with findings.step(
            "certificate", fix=f"put the certificate that was signed for {files.key} at {files.certificate}"
        ):
            identity = load_identity(files)
    if identity is None or authority is None or _is_refused(identity, authority, expected, now, findings):
        return None
    until = identity.certificate.not_valid_after_utc
    told = f"{expected.files.certificate}: {identity.member.uri}, valid until {until:%Y-%m-%d}"
    if until - now < timedelta(days=SOON_DAYS):
        findings.warn("certificate", told, fix=expected.renewal)
    else:
        findings.fine("certificate", told)
    anchors = ", ".join(fingerprint(each).hex()[:12] for each in authority.certificates)
    findings.fine("authority", f"{expected.authority}: {anchors}")
    return identity, authority


def _has_key(expected: Expected, findings: Findings) -> bool:
    key, fix = expected.files.key, expected.renewal
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        fix = f"chmod 600 {key}"
    with findings.step("key", fix=fix):
        read_key(key, MAX_PEM_BYTES)
        return True
    return False


def _is_refused(
    identity: Identity, authority: Anchors, expected: Expected, now: datetime, findings: Findings
) -> bool:
    """Whether a peer would refuse the certificate, and why."""
    certificate, file = identity.certificate, expected.files.certificate
    if now < certificate.not_valid_before_utc:
        told = f"{now:%Y-%m-%d %H:%M} UTC is before {file} begins to be valid"
        findings.problem("clock", told, fix=CLOCK)
    elif now > certificate.not_valid_after_utc:
        told = f"{file}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        findings.problem("certificate", told, fix=expected.renewal)
    elif authority.federation != expected.federation:
        told = f"{expected.authority}: of federation {authority.federation}, expected {expected.federation}"
        findings.problem("authority", told, fix=f"put the authority.crt of {expected.federation} there")
    elif expected.name not in (None, identity.member.name):
        told = f"{file}: of {identity.member.name}, expected {expected.name}"
        findings.problem(
            "certificate", told, fix=f"set name to {identity.member.name}, or name its own files"
        )
    else:
        fix = f"have the authority of {expected.authority} sign this key's request, and put that at {file}"
        with findings.step("certificate", fix=fix):
            check_own_certificate(
                identity,
                authority=authority,
                role=expected.role,
                federation=expected.federation,
                now=now,
                path=file,
            )
            return False
    return True
