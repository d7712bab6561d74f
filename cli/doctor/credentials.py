"""A party's key and certificate, and the authority's: what a peer would refuse, found before it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509

from chorale.runtime.files import read_limited
from chorale.runtime.key_files import read_key
from chorale.transport.tls import MAX_PEM_BYTES, IdentityFiles, check_own_certificate, load_authority
from cli.doctor.findings import Findings
from crypto.errors import ConfigError
from crypto.identity.certificates import (
    Anchors,
    Identity,
    PrivateKey,
    Role,
    fingerprint,
    load_certificate,
    load_key,
    member_of,
)

SOON_DAYS = 21  # as the alert ChoraleCoordinatorCertificateExpiring
Part = TypeVar("Part")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What of a party's files holds; None for what does not. certificate: a peer would take it, as far as can
    be seen without `authority`. key: belongs to it."""

    authority: Anchors | None = None
    certificate: x509.Certificate | None = None
    key: PrivateKey | None = None

    @property
    def identity(self) -> Identity | None:
        """What a connection takes, together with the authority."""
        if self.certificate is None or self.key is None:
            return None
        return Identity(member=member_of(self.certificate), certificate=self.certificate, key=self.key)

    @property
    def missing(self) -> str:
        """What a connection would need, in words; empty: nothing."""
        names = {"authority.crt": self.authority, "certificate": self.certificate, "key": self.key}
        lacking = [name for name, held in names.items() if held is None]
        return f"that needs the {' and the '.join(lacking)}" if lacking else ""


def check_credentials(expected: Expected, *, now: datetime, findings: Findings) -> Own:
    """Each file is looked at by itself as far as that goes: one that is missing hides no fault of another."""
    files = expected.files
    authority = key = certificate = None
    with findings.step(
        "authority", fix=f"put the authority.crt that the authority gives out at {expected.authority}"
    ):
        authority = load_authority(expected.authority)
    with findings.step("key", fix=expected.renewal):
        key = _parsed(load_key, read_key(files.key, MAX_PEM_BYTES), files.key)
    with findings.step(
        "certificate", fix=f"put the certificate that was signed for {files.key} at {files.certificate}"
    ):
        pem = read_limited(files.certificate, MAX_PEM_BYTES)
        certificate = _parsed(load_certificate, pem, files.certificate)
        if key is not None and certificate.public_key() != key.public_key():
            certificate = None
            raise ConfigError(f"{files.certificate}, {files.key}: the key does not belong to the certificate")
    if authority is not None:
        anchors = ", ".join(fingerprint(each).hex()[:12] for each in authority.certificates)
        if authority.federation == expected.federation:
            findings.fine("authority", f"{expected.authority}: {anchors}")
        else:
            message = f"{expected.authority}: of federation {authority.federation}, not {expected.federation}"
            fix = f"put the authority.crt of {expected.federation} there"
            findings.problem("authority", message, fix=fix)
            authority = None
    if certificate is None or not _would_pass(certificate, authority, expected, now, findings):
        return Own(authority=authority, key=key)
    until = certificate.not_valid_after_utc
    message = f"{files.certificate}: {member_of(certificate).uri}, valid until {until:%Y-%m-%d}"
    if until - now < timedelta(days=SOON_DAYS):
        findings.warn("certificate", message, fix=expected.renewal)
    else:
        findings.fine("certificate", message)
    if authority is None:
        findings.leave_out("certificate", "who signed it: that needs the authority.crt")
    if key is None:
        findings.leave_out("certificate", "whether the key belongs to it: that needs the key")
    return Own(authority=authority, certificate=certificate, key=key)


def _parsed(parse: Callable[[bytes], Part], pem: bytes, path: Path) -> Part:
    """Raises ConfigError that names the file."""
    try:
        return parse(pem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _would_pass(
    certificate: x509.Certificate,
    authority: Anchors | None,
    expected: Expected,
    now: datetime,
    findings: Findings,
) -> bool:
    """Whether a peer would take the certificate, as far as can be seen; why not is a finding."""
    file = expected.files.certificate
    if now < certificate.not_valid_before_utc:
        message = f"{now:%Y-%m-%d %H:%M} UTC is before {file} begins to be valid"
        findings.problem("clock", message, fix=CLOCK)
        return False
    if now > certificate.not_valid_after_utc:
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
        message = (
            f"{file}: expired on {until} UTC, or this machine's clock is wrong: it says {now:%Y-%m-%d %H:%M}"
        )
        findings.problem(
            "certificate", message, fix=f"if the clock is right, {expected.renewal}; else {CLOCK}"
        )
        return False
    with findings.step("certificate", fix=f"put the certificate of this {expected.role} at {file}"):
        member = member_of(certificate)
        if expected.name not in (None, member.name):
            message = f"{file}: of {member.name}, expected {expected.name}"
            findings.problem("certificate", message, fix=f"set name to {member.name}, or name its own files")
            return False
        if (member.role, member.federation) != (expected.role, expected.federation):
            raise ConfigError(
                f"{file}: of {member.uri}, expected a {expected.role} of federation {expected.federation}"
            )
        if authority is None:
            return True
        fix = f"have the authority of {expected.authority} sign this key's request, and put that at {file}"
        with findings.step("certificate", fix=fix):
            check_own_certificate(
                certificate,
                authority=authority,
                role=expected.role,
                federation=expected.federation,
                now=now,
                path=file,
            )
            return True
    return False
