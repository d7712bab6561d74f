"""`chorale coordinator`: the party that drives rounds and sees sums alone."""

from __future__ import annotations

from pathlib import Path

import click

from cli.keys import csr_command


@click.group()
def coordinator() -> None:
    """Run the coordinator."""


coordinator.add_command(csr_command("coordinator"))


@coordinator.command()
@click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The coordinator's settings file."
)
def run(config: Path) -> None:
    """Serve silos and operators until stopped (SIGTERM or Ctrl-C)."""
    from coordinator.server import run as run_server
    from coordinator.settings import load_coordinator_settings

    run_server(load_coordinator_settings(config))
