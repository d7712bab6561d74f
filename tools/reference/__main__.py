"""`python -m tools.reference [--check]`."""

from __future__ import annotations

import sys

import click

from tools.reference.pages import COMMAND, stale, write


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; name the stale pages and exit with 1.")
def main(check: bool) -> None:
    """Write the pages of docs/ that come from the code."""
    if not check:
        for path in write():
            click.echo(f"{path}: written")
        return
    found = list(stale())
    for path in found:
        click.echo(f"{path}: stale; `{COMMAND}` writes it", err=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
