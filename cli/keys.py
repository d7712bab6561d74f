"""Keys and signing requests of members: a key is made where it lives, only the request travels.

Source: docs/protocol.md 1.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from cryptography.hazmat.primitives.asymmetric import ec

from chorale.runtime.key_files import forbid_core_dumps
from client.errors import with_hint
from crypto.errors import ConfigError
from crypto.identity.certificates import MemberId, Role, check_name, key_digest, key_to_pem, new_key
from crypto.identity.issuing import new_csr

PRIVATE = 0o600  # of a key: only its owner reads it


def csr_command(role_name: str) -> click.Command:
    """The `csr` command of a role: writes NAME.key (mode 0600) and NAME.csr."""

    is_dialed = role_name == "coordinator"
    host_help = "Host name or IP address that silos dial; repeatable."

    @click.command("csr", help=f"Make the {role_name}'s key and the request that the authority signs.")
    @click.option("--name", required=True, help="Name: lower-case letters, digits, hyphens.")
    @click.option("--federation", required=True, help="Name of the federation.")
    @click.option(
        "--host",
        "hosts",
        multiple=True,
        help=host_help if is_dialed else "Not used: this role is not dialed.",
    )
    @click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the two files.")
    def csr(name: str, federation: str, hosts: tuple[str, ...], out: Path) -> None:
        if hosts and not is_dialed:
            raise ConfigError(f"--host: expected none for a {role_name}: only a coordinator is dialed")
        check_name("--name", name)
        check_name("--federation", federation)
        make_request(MemberId(federation=federation, role=Role(role_name), name=name), hosts, out)

    return csr


def make_request(member: MemberId, hosts: tuple[str, ...], out: Path) -> None:
    """Write NAME.key (mode 0600) and NAME.csr into a folder. Raises ConfigError where there is a key."""
    key_path, csr_path = out / f"{member.name}.key", out / f"{member.name}.csr"
    forbid_core_dumps()
    key = new_key()
    request = new_csr(key, member, hosts)
    out.mkdir(parents=True, exist_ok=True)
    write_new(key_path, key_to_pem(key), what="a key", mode=PRIVATE)
    csr_path.write_bytes(request)
    click.echo(f"{key_path}: private key, stays here")
    click.echo(f"{csr_path}: request, for `chorale authority sign`, which shows its key as well:")
    click.echo(f"{csr_path}: key {shown_key(key.public_key())}")


def shown_key(key: ec.EllipticCurvePublicKey) -> str:
    """What two people compare on the phone before a certificate is used: 128 bits, in hex."""
    return key_digest(key).hex()[:32]


def write_new(path: Path, data: bytes, *, what: str, mode: int = 0o644) -> None:
    """Create a file with its final mode. Raises ConfigError if it is already there."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        check_new(path, what=what)
        raise
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_new(path: Path, *, what: str) -> None:
    """Raises ConfigError if the file is already there: before anything else is written."""
    if os.path.lexists(path):
        error = ConfigError(f"{path}: {what} is already there and is not overwritten")
        raise with_hint(error, "choose another folder, or move the old file away first")
