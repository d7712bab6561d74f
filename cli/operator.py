"""`chorale operator`: an operator's key."""

from __future__ import annotations

import click

from cli.keys import csr_command


@click.group()
def operator() -> None:
    """Make an operator's key."""


operator.add_command(csr_command("operator"))
