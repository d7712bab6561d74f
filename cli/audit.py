"""`chorale audit`: check a hash-chained audit log, and close a file of it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cli.output.facts import json_option, print_json
from crypto.errors import ConfigError


@click.group()
def audit() -> None:
    """Check an audit log, and close a file of it."""


@audit.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@json_option
def verify(files: tuple[Path, ...], is_json: bool) -> None:
    """Check that no entry of a log was changed, removed or put in.

    FILE: the log, with which the closed files beside it are read; or all files of a log that are kept
    elsewhere, in order.
    """
    from chorale.runtime.audit import chain_of, read_chain

    whole = chain_of(files[0]) if len(files) == 1 else [*files]
    first, count = 1, 0
    try:
        for _, entry in read_chain(whole):
            first, count = (entry["entry"] if count == 0 else first), count + 1
    except ConfigError as error:
        message = str(error)
        is_named = any(message.startswith(f"{file}: ") for file in whole)
        raise ConfigError(message if is_named else f"{files[-1]}: {message}") from None
    if is_json:
        shown = {"files": [str(file) for file in whole], "first": first, "entries": count, "is_intact": True}
        print_json(shown)
        return
    others = f" in {len(whole)} files" if len(whole) > 1 else ""
    earlier = f"; entries 1 to {first - 1} stand in files that were not given" if first > 1 else ""
    click.echo(f"{files[-1]}: {count} entries{others}, chain intact{earlier}")


@audit.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings file of the silo or the coordinator.",
)
def rotate(config: Path) -> None:
    """Close the audit log's file and begin the next, whose chain continues it. The process has to be stopped.

    The closed file is named by its entries. Once they are copied, closed files may go, the oldest first: the
    log then begins later, and `verify` says so. A statement about a job needs the files that tell of it.
    """
    from cli.install import settings_in
    from silo_agent.settings import SiloSettings

    settings = settings_in(config)
    path = settings.directory / "audit.jsonl"
    check_owner(path)
    if isinstance(settings, SiloSettings):
        from silo_agent.start import close_audit_file

        closed = close_audit_file(settings)
    else:
        from coordinator.resources import close_audit_file as close_coordinators

        closed = close_coordinators(settings.directory)
    click.echo(f"closed: {closed}")


def check_owner(path: Path) -> None:
    """Raises ConfigError where the next file would not be the process's own."""
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if owner != os.geteuid():
        raise ConfigError(f"{path}: belongs to user {owner}: run the command as that user")
