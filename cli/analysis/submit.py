"""`chorale analysis submit`: sign an analysis and hand it in."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from cli.job.options import operator_options
from cli.job.submit import hand_in
from client.analysis.submission import prepared_analysis, read_analysis
from client.settings import OperatorSettings


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="ANALYSIS.yaml")
@click.option("--save", type=click.Path(path_type=Path), help="File for the analysis as it was signed.")
@click.option("--watch", "is_watched", is_flag=True, help="Stay until it ends.")
@operator_options
def submit(settings: OperatorSettings, file: Path, save: Path | None, is_watched: bool) -> None:
    """Sign ANALYSIS.yaml and submit it; prints the id."""
    now = datetime.now(UTC)
    ready = prepared_analysis(read_analysis(file), source=str(file), federation=settings.federation, now=now)
    hand_in(settings, ready, save=save, is_watched=is_watched)
