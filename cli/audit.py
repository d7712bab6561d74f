"""`chorale audit`: check a hash-chained audit log."""

from __future__ import annotations

from pathlib import Path

import click

from cli.output.facts import json_option, print_json
from crypto.errors import ConfigError


@click.group()
def audit() -> None:
    """Check an audit log."""


@audit.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def verify(file: Path, is_json: bool) -> None:
    """Check that no entry of FILE was changed, removed or put in."""
    from chorale.runtime.audit import verify_file

    try:
        entries = verify_file(file)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(f"{file}: ") else f"{file}: {message}") from None
    if is_json:
        print_json({"file": str(file), "entries": entries, "is_intact": True})
        return
    click.echo(f"{file}: {entries} entries, chain intact")
