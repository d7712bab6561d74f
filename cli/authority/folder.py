"""The authority's folder: its key, what it signs with it, and what it signed before.

authority.key (mode 0600); authority.crt, what members trust: its certificate and, while the key changes, the
other one behind it (see `rotation`); former/, certificates of keys before; rosters/, every roster since the
first (see `history`); roster.json, the newest one, to hand out; certificates/, those that rosters list, by
SHA-256. Source: docs/protocol.md 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from chorale.runtime.files import read_limited, write_atomic
from chorale.runtime.key_files import read_key
from cli.authority.history import CERTIFICATES, MAX_FILE_BYTES, ROSTER, History, keep, read_history
from client.errors import with_hint
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import (
    Anchors,
    PrivateKey,
    certificate_to_pem,
    check_certificate,
    fingerprint,
    load_certificate,
    load_key,
    member_of,
)
from crypto.identity.issuing import requested_member, sign_csr
from crypto.identity.roster import (
    MAX_VERSION_STEP,
    Member,
    Roster,
    read_roster,
    roster_to_file_bytes,
    sign_roster,
)

KEY, CERTIFICATE, FORMER = "authority.key", "authority.crt", "former"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The authority's folder, opened: all that is in it is as the authority signed it."""

    directory: Path
    anchors: Anchors
    federation: str
    history: History

    @classmethod
    def open(cls, directory: Path) -> Folder:
        """Raises ConfigError if it is no authority's folder, or its history is not whole."""
        if not (directory / CERTIFICATE).exists():
            error = ConfigError(f"{directory}: expected an authority's folder, it has no {CERTIFICATE}")
            raise with_hint(error, "chorale authority init --federation NAME --directory DIR")
        try:
            anchors = Anchors.load(read_limited(directory / CERTIFICATE, MAX_FILE_BYTES))
        except ConfigError as error:
            raise ConfigError(f"{directory / CERTIFICATE}: {error}") from None
        former = [load_certificate(path.read_bytes()) for path in sorted((directory / FORMER).glob("*.crt"))]
        return cls(
            directory=directory,
            anchors=anchors,
            federation=anchors.federation,
            history=read_history(
                directory, signers=[*former, *anchors.certificates], federation=anchors.federation
            ),
        )

    @property
    def certificate(self) -> x509.Certificate:
        """Of the key that signs."""
        return self.anchors.certificates[0]

    def key(self) -> PrivateKey:
        """Raises ConfigError for a key that others may read, or that is not the certificate's."""
        key = load_key(read_key(self.directory / KEY, MAX_FILE_BYTES))
        if key.public_key() != self.certificate.public_key():
            error = ConfigError(f"{self.directory / KEY}: expected the key of {CERTIFICATE}")
            raise with_hint(error, "where `authority rotate --switch` was cut short, run it again")
        return key

    def sign(
        self, path: Path, *, key: PrivateKey, hosts: tuple[str, ...], valid_days: int
    ) -> x509.Certificate:
        """The certificate for the request in a file. Raises ConfigError that names the file."""
        request = read_limited(path, MAX_FILE_BYTES)
        try:
            return sign_csr(
                request,
                authority_key=key,
                authority_certificate=self.certificate,
                role=requested_member(request).role,
                now=datetime.now(UTC),
                valid_days=valid_days,
                hosts=hosts,
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def member(self, path: Path) -> tuple[Member, x509.Certificate]:
        """Whom the certificate in a file names, if this authority signed it. Raises ConfigError."""
        content = read_limited(path, MAX_FILE_BYTES)
        try:
            certificate = load_certificate(content)
            member = member_of(certificate)
            check_certificate(
                certificate,
                authority=self.anchors,
                role=member.role,
                federation=self.federation,
                now=datetime.now(UTC),
            )
        except (ConfigError, RemoteProtocolError) as error:
            raise ConfigError(f"{path}: {error}") from None
        return Member(member.role, member.name, fingerprint(certificate)), certificate

    def expiry(self, member: Member) -> datetime | None:
        """When a member's certificate expires; None where the folder does not have it.

        Raises ConfigError for a file that is not the certificate of its name.
        """
        certificate = self.certificate_of(member)
        return None if certificate is None else certificate.not_valid_after_utc

    def certificate_of(self, member: Member) -> x509.Certificate | None:
        """As `expiry`."""
        path = self._path_of(member.fingerprint)
        if not path.exists():
            return None
        certificate = load_certificate(read_limited(path, MAX_FILE_BYTES))
        if fingerprint(certificate) != member.fingerprint:
            raise ConfigError(f"{path}: expected the certificate of {member.title} that has this SHA-256")
        return certificate

    def publish(
        self,
        members: Iterable[Member],
        *,
        key: PrivateKey,
        valid_days: int,
        out: Path | None,
        listed: Iterable[x509.Certificate] = (),
        version: int | None = None,
    ) -> Roster:
        """Sign the next version and write it: into the history, then to where it is handed out from.

        listed: certificates to keep, because a roster holds their SHA-256 alone.
        version: in place of the next one; those between are skipped.
        Raises ConfigError for a version that members would not accept.
        """
        following = self.history.next_version
        highest = following - 1 + MAX_VERSION_STEP
        if version is not None and not following <= version <= highest:
            raise ConfigError(f"roster: expected a version from {following} to {highest}, got {version}")
        now = datetime.now(UTC)
        signed = sign_roster(
            authority_key=key,
            federation=self.federation,
            version=following if version is None else version,
            issued=now,
            expires=now + timedelta(days=valid_days),
            members=members,
        )
        roster = read_roster(signed, authority=Anchors((self.certificate,)), federation=self.federation)
        keep(self.history, roster, directory=self.directory, key=key)
        for path in dict.fromkeys([self.directory / ROSTER, out or self.directory / ROSTER]):
            write_atomic(path, roster_to_file_bytes(signed), mode=0o644)
        for certificate in listed:
            path = self._path_of(fingerprint(certificate))
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, certificate_to_pem(certificate), mode=0o644)
        return roster

    def _path_of(self, fingerprint: bytes) -> Path:
        return self.directory / CERTIFICATES / f"{fingerprint.hex()}.crt"
