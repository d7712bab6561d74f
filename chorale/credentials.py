"""The certificate, key and authority that a running process works with, and their files, which may change.

Kubernetes replaces the files of a mounted Secret while the process runs. Source: docs/protocol.md 8.8.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from chorale.observability.logs import get_logger
from chorale.runtime.files import file_stamp
from chorale.transport import tls
from chorale.transport.tls import IdentityFiles
from crypto.errors import ConfigError
from crypto.identity.certificates import Anchors, Identity, MemberId, Role

if TYPE_CHECKING:
    from prometheus_client import Gauge

log = get_logger("credentials")


class Credentials:
    """Who this process is, and whom it trusts, until something else is taken over."""

    def __init__(self, identity: Identity, authority: Anchors) -> None:
        self.identity = identity
        self.authority = authority

    @property
    def member(self) -> MemberId:
        return self.identity.member

    @property
    def certificate_expires(self) -> float:
        """When the certificate in use expires, in Unix seconds."""
        return self.identity.certificate.not_valid_after_utc.timestamp()

    def take_over(self, identity: Identity, authority: Anchors) -> None:
        """What the files hold now."""
        self.identity, self.authority = identity, authority


class CredentialFiles:
    """Where a process finds them. Each reading is checked as the first one is."""

    def __init__(
        self,
        files: IdentityFiles,
        authority: Path,
        *,
        role: Role,
        federation: str,
        name: str | None = None,
        clock: Callable[[], datetime],
    ) -> None:
        """name: that the certificate must have; None takes that of the first reading."""
        self._files = files
        self._authority = authority
        self._role = role
        self._federation = federation
        self._name = name
        self._clock = clock
        self._stamps = self._stamps_of_files()

    def read(self) -> tuple[Identity, Anchors]:
        """Raises ConfigError that names the file."""
        authority = tls.load_authority(self._authority)
        identity = tls.load_identity(self._files)
        self.check(identity, authority)
        self._name = self._name or identity.member.name
        if identity.member.name != self._name:
            raise ConfigError(
                f"{self._files.certificate}: expected a certificate of {self._role} {self._name}, "
                f"got {identity.member.name}"
            )
        for certificate in authority.certificates:
            if certificate.not_valid_after_utc < self._clock():
                log.warning(
                    "a certificate of the authority has expired and is not trusted: remove it",
                    file=str(self._authority),
                    expired=f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}",
                )
        return identity, authority

    def check(self, identity: Identity, authority: Anchors) -> None:
        """Whether the peer will accept it now. Raises ConfigError."""
        tls.check_own_certificate(
            identity.certificate,
            authority=authority,
            role=self._role,
            federation=self._federation,
            now=self._clock(),
            path=self._files.certificate,
        )

    def refresh(self, credentials: Credentials, refused: Gauge) -> None:
        """Where a file has changed, take over what they hold. What does not hold is refused, and what was
        read before stays in use, but for certificates of the authority that were removed. refused: 1 while
        it is so."""
        stamps = self._stamps_of_files()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            identity, authority = self.read()
        except ConfigError as error:
            refused.set(1)
            log.warning("certificate files refused, the former stay in use", reason=str(error))
            self._remove_anchors(credentials)
            return
        refused.set(0)
        if (identity.fingerprint, authority) != (credentials.identity.fingerprint, credentials.authority):
            log.info(
                "certificate files read",
                certificate=identity.fingerprint.hex()[:12],
                expires=f"{identity.certificate.not_valid_after_utc:%Y-%m-%d %H:%M}",
                authorities=len(authority.certificates),
            )
        credentials.take_over(identity, authority)

    def _remove_anchors(self, credentials: Credentials) -> None:
        """Security: the key of one that was removed may be stolen, whatever the other files hold."""
        try:
            authority = tls.load_authority(self._authority)
        except ConfigError:
            return
        if authority.federation != self._federation or authority.holds_all_of(credentials.authority):
            return
        credentials.authority = authority
        log.warning(
            "a certificate of the authority was removed and is not trusted any more, "
            "also not for this process: replace its own certificate if that is one of the removed key",
            file=str(self._authority),
            authorities=len(authority.certificates),
        )

    def _stamps_of_files(self) -> tuple[object, ...]:
        paths = (self._files.certificate, self._files.key, self._authority)
        return tuple(file_stamp(path) for path in paths)
