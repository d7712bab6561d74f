"""`chorale authority`: found a federation, sign its members, keep its rosters. Source: docs/protocol.md 1."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from cryptography import x509

from chorale.runtime.key_files import forbid_core_dumps
from cli.authority import rotation
from cli.authority.folder import CERTIFICATE, KEY, Folder
from cli.authority.history import ROSTER, History
from cli.authority.show import as_json, as_text, expiring
from cli.keys import PRIVATE, check_new, shown_key, write_new
from client.errors import with_hint
from crypto.errors import ConfigError
from crypto.identity.certificates import (
    Role,
    certificate_to_pem,
    check_name,
    key_to_pem,
    member_of,
    public_key_of,
)
from crypto.identity.issuing import new_authority
from crypto.identity.roster import Member

ROLES = ("silo", "coordinator", "operator")
DIRECTORY = click.option(
    "--directory", required=True, type=click.Path(path_type=Path), help="The authority's own folder."
)
OUT_ROSTER = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"Also write it here, in addition to {ROSTER} in the folder.",
)
LONGEST_DAYS = 3650
AUTHORITY_DAYS = click.option(
    "--valid-days",
    default=LONGEST_DAYS,
    show_default=True,
    type=click.IntRange(1, LONGEST_DAYS),
    help="Days until the certificate expires.",
)
ROSTER_DAYS = click.option(
    "--valid-days", default=90, show_default=True, type=click.IntRange(1, 3650), help="Days until it expires."
)


def _checked_names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Where a name was forgotten, click takes the next option for it, which then has no effect."""
    for name in names:
        if name.startswith("-"):
            raise click.BadParameter(f"expected a member's name, got {name}")
    return names


@click.group()
def authority() -> None:
    """Found a federation, sign members, keep the roster. Run it on a machine that is not online."""


@authority.command()
@click.option("--federation", required=True, help="Name: lower-case letters, digits, hyphens.")
@DIRECTORY
@AUTHORITY_DAYS
def init(federation: str, directory: Path, valid_days: int) -> None:
    """Make the federation's CA key and certificate."""
    check_name("--federation", federation)
    found(federation, directory, valid_days=valid_days)


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
    key = folder.key()
    signed = {
        (out or path.parent) / f"{path.stem}.crt": folder.sign(
            path, key=key, hosts=hosts, valid_days=valid_days
        )
        for path in requests
    }
    for target in signed:
        check_new(target, what="a certificate")
    for target, certificate in signed.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_new(target, certificate_to_pem(certificate), what="a certificate")
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        key_shown = shown_key(public_key_of(certificate))
        click.echo(f"{target}: {member_of(certificate).uri}, valid until {until}, key {key_shown}")


@authority.command()
@click.argument("certificates", nargs=-1, type=click.Path(path_type=Path), metavar="[CERT...]")
@DIRECTORY
@click.option(
    "--admin",
    "admins",
    multiple=True,
    callback=_checked_names,
    metavar="NAME",
    help="Operator who may pause, resume and cancel the jobs of others; later rosters keep it.",
)
@click.option(
    "--no-admin",
    "former",
    multiple=True,
    callback=_checked_names,
    metavar="NAME",
    help="Operator who may no longer do so.",
)
@click.option(
    "--readmit",
    "readmitted",
    multiple=True,
    callback=_checked_names,
    metavar="NAME",
    help="Member whose CERT is listed again after it was revoked or replaced, also by a roster that is not in"
    " this folder; the roster says so.",
)
@OUT_ROSTER
@ROSTER_DAYS
def roster(
    certificates: tuple[Path, ...],
    directory: Path,
    admins: tuple[str, ...],
    former: tuple[str, ...],
    readmitted: tuple[str, ...],
    out: Path | None,
    valid_days: int,
) -> None:
    """Add members and sign the next version of the roster.

    CERT is a certificate file, or a folder of .crt files, of which authority.crt is left out. A member
    that is already on the roster gets the certificate given here. A certificate that was revoked or
    replaced is refused, unless --readmit names its member; on a terminal, a replaced one is asked about.
    To sign the list as it is, run `chorale authority renew`.
    """
    if not (certificates or admins or former):
        error = ConfigError("roster: expected a certificate, --admin or --no-admin")
        raise with_hint(error, "chorale authority renew signs the list as it is")
    folder = Folder.open(directory)
    if readmitted and folder.history.newest is None:
        raise ConfigError(f"--readmit {readmitted[0]}: there is no roster that it could have left")
    given, left = _given(folder, certificates), folder.history.left
    added = [
        _admitted(folder.history, path, member, left=left, is_readmitted=member.name in readmitted)
        for path, (member, _) in given.items()
    ]
    came_back = {member.name for member in added if member.readmitted_in == folder.history.next_version}
    if strange := sorted(set(readmitted) - came_back):
        raise ConfigError(f"--readmit {strange[0]}: expected a certificate of this member")
    members = {(entry.role, entry.name): entry for entry in (*folder.history.members, *added)}
    marked = {entry.name for entry in folder.history.members if entry.is_admin}
    for name in (*admins, *former):
        if (Role.OPERATOR, name) not in members:
            raise ConfigError(f"operator {name}: not on the roster and not among the certificates")
    marked = (marked | set(admins)) - set(former)
    _publish(
        folder,
        [
            replace(entry, is_admin=entry.role is Role.OPERATOR and entry.name in marked)
            for entry in members.values()
        ],
        listed=[certificate for _, certificate in given.values()],
        valid_days=valid_days,
        out=out,
    )


@authority.command()
@DIRECTORY
@OUT_ROSTER
@ROSTER_DAYS
@click.option(
    "--version",
    type=int,
    metavar="N",
    help="Sign version N and skip those before it, which a thief of the authority's key may have signed.",
)
def renew(directory: Path, out: Path | None, valid_days: int, version: int | None) -> None:
    """Sign the list of members as it is, as the next version of the roster.

    Silos refuse rosters that are older than their policy allows, by default than a week.
    """
    folder = Folder.open(directory)
    if folder.history.newest is None:
        error = ConfigError(f"{directory}: there is no roster to sign again")
        raise with_hint(error, "chorale authority roster CERT... --directory DIR")
    _publish(folder, folder.history.members, valid_days=valid_days, out=out, version=version)


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
    members = folder.history.members
    staying = [member for member in members if (member.role.value, member.name) != (role, name)]
    if len(staying) == len(members):
        known = ", ".join(sorted(member.name for member in members if member.role.value == role))
        raise ConfigError(f"{role} {name}: not on the roster; it names {known or 'none'}")
    _publish(folder, staying, valid_days=valid_days, out=out)


@authority.command()
@DIRECTORY
@click.option("--json", "is_json", is_flag=True, help="The same as one JSON object.")
def show(directory: Path, is_json: bool) -> None:
    """Print the newest roster, and what each version of it changed.

    The private key is not needed.
    """
    folder = Folder.open(directory)
    click.echo(as_json(folder) if is_json else as_text(folder, now=datetime.now(UTC)))


@authority.command()
@DIRECTORY
@click.option("--switch", "step", flag_value="switch", help="Second step: the new key signs from now on.")
@click.option("--finish", "step", flag_value="finish", help="Third step: members trust the new key alone.")
@AUTHORITY_DAYS
def rotate(directory: Path, step: str | None, valid_days: int) -> None:
    """Change the federation's CA key in three steps; members go on working, and restart nothing.

    Without an option it makes the new key and puts both certificates into authority.crt. Every member puts
    this file in the place of its own; until then the present key signs. Then --switch: members get new
    certificates one by one. Then --finish, and every member gets authority.crt again.
    """
    forbid_core_dumps()
    folder = Folder.open(directory)
    certificate = directory / CERTIFICATE
    if step is None:
        rotation.begin(folder, valid_days=valid_days)
        click.echo(f"{certificate}: the present and the new certificate, for every member")
        click.echo("the present key signs until `chorale authority rotate --switch`")
    elif step == "switch":
        rotation.switch(folder)
        click.echo(f"{directory / KEY}: the new key, which signs from now on")
        click.echo("next: `chorale authority renew`, then a new certificate for each member of the roster")
    else:
        rotation.finish(folder)
        click.echo(f"{certificate}: the new certificate alone, for every member")
        click.echo("the old key is deleted here; delete its copies")


def found(federation: str, directory: Path, *, valid_days: int) -> None:
    """Write a new authority's key and certificate. Raises ConfigError where there is one."""
    forbid_core_dumps()
    key, certificate = new_authority(federation, now=datetime.now(UTC), valid_days=valid_days)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_new(directory / KEY, key_to_pem(key), what="a key", mode=PRIVATE)
    write_new(directory / CERTIFICATE, certificate_to_pem(certificate), what="a certificate")
    click.echo(f"{directory / KEY}: the federation's key; keep it offline")
    click.echo(f"{directory / CERTIFICATE}: the federation's certificate, for every member")


def _given(folder: Folder, paths: Iterable[Path]) -> dict[Path, tuple[Member, x509.Certificate]]:
    """The certificates in these files and folders. Raises ConfigError, also for two of one member."""
    found: dict[Path, tuple[Member, x509.Certificate]] = {}
    files: dict[str, tuple[Path, Member]] = {}
    for given in paths:
        # a member keeps the authority's certificate beside its own
        inside = [each for each in sorted(given.glob("*.crt")) if each.name != CERTIFICATE]
        if not given.is_dir():
            inside = [given]
        elif not inside:
            raise ConfigError(f"{given}: no .crt file of a member in this folder")
        for path in inside:
            found[path] = folder.member(path)
            member = found[path][0]
            first, other = files.setdefault(member.title, (path, member))
            if other != member:
                raise ConfigError(
                    f"{path}: another certificate of {member.title} than {first}; name one of them"
                )
    return found


def _admitted(
    history: History, path: Path, member: Member, *, left: Mapping[bytes, int], is_readmitted: bool
) -> Member:
    """The entry of a member whose certificate is given. Raises ConfigError if it has left, and stays out."""
    listed = next(
        (each for each in history.members if (each.role, each.name) == (member.role, member.name)), None
    )
    if listed == member and not is_readmitted:
        return listed  # with its marks
    left_in = left.get(member.fingerprint)
    if left_in is None and not is_readmitted:
        return member
    if listed is not None and not is_readmitted and os.isatty(0):
        question = f"{path}: another certificate of {member.title} has replaced this one. Go back to it?"
        is_readmitted = click.confirm(question)
    if is_readmitted:
        return replace(member, readmitted_in=history.next_version)
    if listed is not None:
        error = ConfigError(f"{path}: another certificate of {member.title} has replaced this one")
        raise with_hint(
            error, f"name the file of the newer, or go back to this one with --readmit {member.name}"
        )
    error = ConfigError(f"{path}: this certificate of {member.title} was revoked in version {left_in}")
    raise with_hint(error, f"sign a new request of it, or list this one again with --readmit {member.name}")


def _publish(
    folder: Folder,
    members: Iterable[Member],
    *,
    listed: Iterable[x509.Certificate] = (),
    valid_days: int,
    out: Path | None,
    version: int | None = None,
) -> None:
    """Sign the next version, and say what it is."""
    from silo_agent.disclosure.policy.policy import Policy

    signed = folder.publish(
        members, key=folder.key(), listed=listed, valid_days=valid_days, out=out, version=version
    )
    silo_days = Policy.model_fields["max_roster_age_days"].default
    what = f"roster version {signed.version}, {len(signed.members)} members, valid for {valid_days} days"
    if valid_days > silo_days:
        what += f"; silos take it for {silo_days:g}, or what max_roster_age_days of their policy says"
    for path in dict.fromkeys([folder.directory / ROSTER, out or folder.directory / ROSTER]):
        click.echo(f"{path}: {what}")
    for line in expiring(folder, signed):
        click.echo(line)
