"""Who a person is, and what they may do: by an operator's certificate, or by what a provider says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from chorale.runtime.files import file_stamp, read_limited
from chorale.transport.tls import load_authority
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Anchors, Role, certificate_from_der, check_certificate, fingerprint
from crypto.identity.roster import MAX_FILE_BYTES, Roster, open_roster, roster_from_file_bytes
from web.console.settings import Right


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A person. operator: the member whose jobs are theirs; empty: none. certificate: SHA-256 of the one that
    every request of this login comes with; empty for a login by a provider."""

    name: str
    right: Right
    operator: str = ""
    certificate: bytes = b""

    def may_steer(self, operator: str) -> bool:
        """Whether it may cancel a job of this operator."""
        is_own = self.right is Right.OPERATOR and bool(operator) and self.operator == operator
        return self.right is Right.ADMIN or is_own

    def may_fetch(self, operator: str) -> bool:
        """Whether it may have the model of a job of this operator: that one alone, as at the coordinator."""
        return bool(operator) and self.operator == operator and self.right is not Right.VIEWER


class CertificateLogins:
    """Operators by their certificates. Roster and authority are read again when their files change."""

    def __init__(
        self, *, federation: str, authority: Path, roster: Path, clock: Callable[[], datetime]
    ) -> None:
        """Raises ChoraleError where the roster does not hold now."""
        self._federation = federation
        self._authority_path = authority
        self._roster_path = roster
        self._clock = clock
        self._stamps: object = None
        self._anchors: Anchors
        self._roster: Roster
        self._read()

    def login(self, der: bytes | None) -> Login:
        """The operator whose certificate the connection showed. Raises ChoraleError that says why not."""
        if der is None:
            raise RemoteProtocolError("this browser showed no certificate")
        self._read()
        certificate, now = certificate_from_der(der), self._clock()
        _check_dates(certificate, now)
        member = check_certificate(
            certificate, authority=self._anchors, role=Role.OPERATOR, federation=self._federation, now=now
        )
        self._roster.check_trusted(self._anchors, now)
        self._roster.check_current(now)
        self._roster.check_member(certificate)
        is_admin = self._roster.is_admin(member.name)
        return Login(
            name=member.name,
            operator=member.name,
            right=Right.ADMIN if is_admin else Right.OPERATOR,
            certificate=fingerprint(certificate),
        )

    def check(self, login: Login, der: bytes | None) -> None:
        """Whether a login still holds, and this connection is its own. Raises ChoraleError."""
        if self.login(der) != login:
            raise RemoteProtocolError("this is the session of another certificate")

    def _read(self) -> None:
        stamps = file_stamp(self._authority_path), file_stamp(self._roster_path)
        if stamps == self._stamps:
            return
        anchors = load_authority(self._authority_path)
        signed = roster_from_file_bytes(read_limited(self._roster_path, MAX_FILE_BYTES))
        now = self._clock()
        self._roster = open_roster(signed, authority=anchors, federation=self._federation, now=now)
        self._anchors, self._stamps = anchors, stamps

    @property
    def trusted_pem(self) -> bytes:
        """PEM of who signs operators' certificates."""
        return self._anchors.pem


def _check_dates(certificate: x509.Certificate, now: datetime) -> None:
    expired = certificate.not_valid_after_utc
    if now > expired:
        raise RemoteProtocolError(
            f"your certificate expired on {expired:%Y-%m-%d %H:%M} UTC: ask the authority for a new one"
        )
