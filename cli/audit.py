"""`chorale audit`: check a hash-chained audit log, and close a file of it."""

from __future__ import annotations

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
    from chorale.runtime.audit import closed_files, read_chain

    whole = [*closed_files(files[0]), *files] if len(files) == 1 else [*files]
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
@click.argument("file", type=click.Path(path_type=Path))
def rotate(file: Path) -> None:
    """Close FILE and begin the next, whose chain continues it. The process that writes it has to be stopped.

    The closed file is named by its entries. Once it is copied, it may go: its silo's or coordinator's log
    then begins later, and `verify` says so.
    """
    from chorale.runtime.audit import rotate as close_file

    if not file.exists():
        raise ConfigError(f"{file}: no such file")
    click.echo(f"closed: {close_file(file)}")
