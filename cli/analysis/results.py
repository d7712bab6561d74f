"""`chorale analysis results`: table 1 in a terminal, or in a file."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.runtime.files import write_atomic
from cli.analysis.rendering import FORMS, FORMS_AGAINST
from cli.job.options import check_out_file, operator_options
from client.analysis.results import AnalysisResults
from client.operations import connect
from client.settings import OperatorSettings
from crypto.errors import ConfigError


@click.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMS]),
    default="text",
    show_default=True,
    help="How it is written.",
)
@click.option("--out", type=click.Path(path_type=Path), help="File for it.  [default: standard output]")
@click.option(
    "--against",
    metavar="ID",
    help="How far the records are from those of another analysis with the same parts, by column: population "
    "stability index and standardized mean difference.",
)
@operator_options
def results(
    settings: OperatorSettings, job_id: str, form: str, out: Path | None, against: str | None
) -> None:
    """Show what an analysis of one's own published. ID: the first digits of the job digest.

    text and html are a table 1, html with charts. csv and json have each figure by itself, with a note of
    how it is rounded or that it is withheld.
    """
    if out is not None:
        check_out_file(out)
    if against is not None and form not in FORMS_AGAINST:
        raise ConfigError(f"--against: expected --format {' or '.join(FORMS_AGAINST)}, got {form}")
    with connect(settings) as (operations, _):
        digest = operations.find(job_id)
        found = AnalysisResults.fetched(operations, digest)
        if against is None:
            rendered = FORMS[form](found)
        else:
            other = AnalysisResults.fetched(operations, operations.find(against))
            rendered = FORMS_AGAINST[form](found.described, other.described)
    if out is None:
        click.echo(rendered, nl=False)
    else:
        write_atomic(out, rendered.encode(), mode=0o644)
        click.echo(f"{out}: what job {digest.hex()[:12]} published, as {form}")
