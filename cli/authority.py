"""`chorale authority`: the offline party that says who is in the federation.

Its folder holds authority.key (mode 0600), authority.crt, roster.json, the newest roster, and revoked.txt:
a line for every certificate that a newer roster does not list, because its member was revoked or got another
one. Each line is the certificate's SHA-256 in hex, the role and the name. None of them is listed again.
Source: docs/protocol.md 1.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography import x509

from chorale.runtime.files import read_limited, write_atomic
from chorale.runtime.key_files import forbid_core_dumps, read_key
from cli.errors import with_hint
from cli.keys import PRIVATE, check_new, write_new
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import (
    Anchors,
    PrivateKey,
    Role,
    certificate_to_pem,
    check_certificate,
    federation_of,
    fingerprint,
    key_to_pem,
    load_certificate,
    load_key,
    member_of,
)
from crypto.identity.issuing import new_authority, requested_member, sign_csr
from crypto.identity.roster import (
    Member,
    Roster,
    read_roster,
    roster_from_file_bytes,
    roster_to_file_bytes,
    sign_roster,
)

KEY, CERTIFICATE, ROSTER, REVOKED = "authority.key", "authority.crt", "roster.json", "revoked.txt"
ROLES = ("silo", "coordinator", "operator")
MAX_FILE_BYTES = 2 << 20  # a roster of the largest federation
MAX_REVOKED_BYTES = 64 << 20  # 400,000 certificates
DIRECTORY = click.option(
    "--directory", required=True, type=click.Path(path_type=Path), help="The authority's own folder."
)
OUT_ROSTER = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"Also write it here, in addition to {ROSTER} in the folder.",
)
ROSTER_DAYS = click.option(
    "--valid-days", default=90, show_default=True, type=click.IntRange(1, 3650), help="Days until it expires."
)


@click.group()
def authority() -> None:
    """Found a federation, sign members, keep the roster. Run it on a machine that is not online."""


@authority.command()
@click.option("--federation", required=True, help="Name: lower-case letters, digits, hyphens.")
@DIRECTORY
@click.option(
    "--valid-days",
    default=3650,
    show_default=True,
    type=click.IntRange(1, 3650),
    help="Days until it expires.",
)
def init(federation: str, directory: Path, valid_days: int) -> None:
    """Make the federation's CA key and certificate."""
    forbid_core_dumps()
    key, certificate = new_authority(federation, now=datetime.now(UTC), valid_days=valid_days)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_new(directory / KEY, key_to_pem(key), what="a key", mode=PRIVATE)
    write_new(directory / CERTIFICATE, certificate_to_pem(certificate), what="a certificate")
    click.echo(f"{directory / KEY}: the federation's key; keep it offline")
    click.echo(f"{directory / CERTIFICATE}: the federation's certificate, for every member")


@authority.command()
@click.argument("requests", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CSR...")
@DIRECTORY
@click.option("--host", "hosts", multiple=True, help="Further host or address of a coordinator.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default: that of each CSR.")
@click.option(
    "--valid-days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 3650),
    help="Days until they expire.",
)
def sign(
    requests: tuple[Path, ...], directory: Path, hosts: tuple[str, ...], out: Path | None, valid_days: int
) -> None:
    """Sign the requests in the files CSR; the role in each decides what its certificate may do.

    All of them or, where one is refused, none.
    """
    folder = Folder.open(directory)
    signed = {
        (out or path.parent) / f"{path.stem}.crt": folder.sign(path, hosts=hosts, valid_days=valid_days)
        for path in requests
    }
    for target in signed:
        check_new(target, what="a certificate")
    for target, certificate in signed.items():
        write_new(target, certificate_to_pem(certificate), what="a certificate")
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        click.echo(f"{target}: {member_of(certificate).uri}, valid until {until}")


@authority.command()
@click.argument("certificates", nargs=-1, type=click.Path(path_type=Path), metavar="[CERT...]")
@DIRECTORY
@click.option(
    "--admin",
    "admins",
    multiple=True,
    metavar="NAME",
    help="Operator who may pause, resume and cancel the jobs of others; later rosters keep it.",
)
@click.option("--no-admin", "former", multiple=True, metavar="NAME", help="Operator who may no longer do so.")
@OUT_ROSTER
@ROSTER_DAYS
def roster(
    certificates: tuple[Path, ...],
    directory: Path,
    admins: tuple[str, ...],
    former: tuple[str, ...],
    out: Path | None,
    valid_days: int,
) -> None:
    """Add members and sign the next version of the roster.

    CERT is a certificate file or a folder of .crt files. A member that is already on the roster
    gets the certificate given here. A certificate that was revoked or replaced is refused.
    """
    if not (certificates or admins or former):
        raise ConfigError("roster: expected a certificate, --admin or --no-admin")
    folder = Folder.open(directory)
    revoked = folder.revoked()
    found: list[Path] = []
    for path in certificates:
        inside = sorted(path.glob("*.crt")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"{path}: no .crt file in this folder")
        found += inside
    added = [folder.member(path, revoked=revoked) for path in found]
    members = {(entry.role, entry.name): entry for entry in (*folder.members(), *added)}
    marked = {entry.name for entry in folder.members() if entry.is_admin}
    for name in (*admins, *former):
        if (Role.OPERATOR, name) not in members:
            raise ConfigError(f"operator {name}: not on the roster and not among the certificates")
    marked = (marked | set(admins)) - set(former)
    folder.publish(
        [
            replace(entry, is_admin=entry.role is Role.OPERATOR and entry.name in marked)
            for entry in members.values()
        ],
        valid_days=valid_days,
        out=out,
    )


@authority.command()
@click.argument("name")
@DIRECTORY
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="silo",
    show_default=True,
    help="Of the member.",
)
@OUT_ROSTER
@ROSTER_DAYS
def revoke(name: str, directory: Path, role: str, out: Path | None, valid_days: int) -> None:
    """Sign the next version of the roster without NAME: it is out with the next heartbeat."""
    folder = Folder.open(directory)
    members = folder.members()
    staying = [member for member in members if (member.role.value, member.name) != (role, name)]
    if len(staying) == len(members):
        known = ", ".join(sorted(member.name for member in members if member.role.value == role))
        raise ConfigError(f"{role} {name}: not on the roster; it names {known or 'none'}")
    folder.publish(staying, valid_days=valid_days, out=out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The authority's folder, opened."""

    directory: Path
    key: PrivateKey
    certificate: x509.Certificate
    federation: str

    @classmethod
    def open(cls, directory: Path) -> Folder:
        """Raises ConfigError if it is no authority's folder."""
        if not (directory / CERTIFICATE).exists():
            error = ConfigError(f"{directory}: expected an authority's folder, it has no {CERTIFICATE}")
            raise with_hint(error, "chorale authority init --federation NAME --directory DIR")
        certificate = load_certificate(read_limited(directory / CERTIFICATE, MAX_FILE_BYTES))
        key = load_key(read_key(directory / KEY, MAX_FILE_BYTES))
        return cls(
            directory=directory, key=key, certificate=certificate, federation=federation_of(certificate)
        )

    def newest(self) -> Roster | None:
        """The newest roster, expired or not; None before the first."""
        path = self.directory / ROSTER
        if not path.exists():
            return None
        signed = roster_from_file_bytes(read_limited(path, MAX_FILE_BYTES))
        return read_roster(signed, authority=Anchors((self.certificate,)), federation=self.federation)

    def members(self) -> tuple[Member, ...]:
        newest = self.newest()
        return () if newest is None else newest.members

    def revoked(self) -> dict[bytes, str]:
        """The role and name of every certificate that has left the roster, by its fingerprint.

        Raises ConfigError for a line of another kind.
        """
        path = self.directory / REVOKED
        if not path.exists():
            return {}
        found = {}
        for number, line in enumerate(
            read_limited(path, MAX_REVOKED_BYTES).decode(errors="replace").splitlines(), 1
        ):
            fingerprint, _, who = line.partition(" ")
            if not re.fullmatch("[0-9a-f]{64}", fingerprint) or not who:
                raise ConfigError(f"{path}: line {number}: expected a SHA-256 in hex, a role and a name")
            found[bytes.fromhex(fingerprint)] = who
        return found

    def sign(self, path: Path, *, hosts: tuple[str, ...], valid_days: int) -> x509.Certificate:
        """The certificate for the request in a file. Raises ConfigError that names the file."""
        request = read_limited(path, MAX_FILE_BYTES)
        try:
            return sign_csr(
                request,
                authority_key=self.key,
                authority_certificate=self.certificate,
                role=requested_member(request).role,
                now=datetime.now(UTC),
                valid_days=valid_days,
                hosts=hosts,
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def member(self, path: Path, *, revoked: Container[bytes]) -> Member:
        """The roster entry for a certificate that this authority signed and has not revoked.

        Raises ConfigError.
        """
        content = read_limited(path, MAX_FILE_BYTES)
        try:
            certificate = load_certificate(content)
            member = member_of(certificate)
            check_certificate(
                certificate,
                authority=Anchors((self.certificate,)),
                role=member.role,
                federation=self.federation,
                now=datetime.now(UTC),
            )
        except (ConfigError, RemoteProtocolError) as error:
            raise ConfigError(f"{path}: {error}") from None
        entry = Member(member.role, member.name, fingerprint(certificate))
        if entry.fingerprint not in revoked:
            return entry
        who = f"{entry.role} {entry.name}"
        others = [member for member in self.members() if member != entry]
        if any((other.role, other.name) == (entry.role, entry.name) for other in others):
            raise ConfigError(
                f"{path}: another certificate of {who} has replaced this one; name the file of the newer"
            )
        raise ConfigError(f"{path}: this certificate of {who} was revoked; sign a new request for it")

    def publish(self, members: Iterable[Member], *, valid_days: int, out: Path | None) -> None:
        """Sign and write the next version. What it no longer lists is revoked first, for good."""
        newest, now = self.newest(), datetime.now(UTC)
        asked = set(members)
        left = [member for member in self.members() if member not in asked]
        revoked = self.revoked() | {member.fingerprint: f"{member.role} {member.name}" for member in left}
        # a crash between the two writes leaves a revoked member in the newest roster, and it ends there
        listed = tuple(member for member in asked if member.fingerprint not in revoked)
        version = 1 if newest is None else newest.version + 1
        signed = sign_roster(
            authority_key=self.key,
            federation=self.federation,
            version=version,
            issued=now,
            expires=now + timedelta(days=valid_days),
            members=listed,
        )
        if left:
            lines = [f"{fingerprint.hex()} {who}\n" for fingerprint, who in revoked.items()]
            write_atomic(self.directory / REVOKED, "".join(lines).encode(), mode=0o644)
        for path in dict.fromkeys([self.directory / ROSTER, out or self.directory / ROSTER]):
            write_atomic(path, roster_to_file_bytes(signed), mode=0o644)
            click.echo(f"{path}: roster version {version}, {len(listed)} members")
