"""`chorale audit`: check a hash-chained audit log."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def audit() -> None:
    """Check an audit log."""


@audit.command()
@click.argument("file", type=click.Path(path_type=Path))
def verify(file: Path) -> None:
    """Check that no entry of FILE was changed, removed or put in."""
    from chorale.audit import verify_file

    click.echo(f"{file}: {verify_file(file)} entries, chain intact")
