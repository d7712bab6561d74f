"""`chorale analysis plan`: what an analysis would ask, before anything of it is submitted."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from cli.job.options import operator_options
from cli.job.plan import bytes_told
from cli.output.facts import json_option, print_json
from client.analysis.submission import analysis_plan, prepared_analysis, read_analysis
from client.settings import OperatorSettings
from crypto.errors import printable


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="ANALYSIS.yaml")
@json_option
@operator_options(is_optional=True)
def plan(settings: OperatorSettings | None, file: Path, is_json: bool) -> None:
    """Show what ANALYSIS.yaml asks, its cells and the bytes of a silo; nothing is submitted."""
    federation = None if settings is None else settings.federation
    now = datetime.now(UTC)
    planned = analysis_plan(
        prepared_analysis(read_analysis(file), source=str(file), federation=federation, now=now)
    )
    if is_json:
        print_json(asdict(planned))
        return
    click.echo(printable(f"{planned.name}: {planned.asks}"))  # a colleague wrote the names in it
    seen = "each with noise" if planned.has_noise else "all of which coordinator and silos can see"
    click.echo(f"{planned.silos} silos; {planned.cells:,} cells, {seen}")
    for phase in planned.phases:
        sums = ", ".join(f"{name} ({size:,})" for name, size in phase.quantities.items())
        sent, received = bytes_told(phase.sent_bytes), bytes_told(phase.received_bytes)
        click.echo(f"{phase.kind:<18} a silo sends {sent:>9} and receives {received:>9}  sums of {sums}")
    for note in planned.notes:
        click.echo(printable(note), err=True)
