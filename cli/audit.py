"""`chorale audit`: check a hash-chained audit log."""

from __future__ import annotations

from pathlib import Path

import click

from crypto.errors import ConfigError


@click.group()
def audit() -> None:
    """Check an audit log."""


@audit.command()
@click.argument("file", type=click.Path(path_type=Path))
def verify(file: Path) -> None:
    """Check that no entry of FILE was changed, removed or put in."""
    from chorale.runtime.audit import verify_file

    try:
        entries = verify_file(file)
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(f"{file}: ") else f"{file}: {told}") from None
    click.echo(f"{file}: {entries} entries, chain intact")
