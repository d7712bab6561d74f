"""`chorale analysis results`: table 1 in a terminal, or in a file."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.runtime.files import write_atomic
from chorale.spec.model_file import described_analysis, open_model
from cli.analysis.rendering import FORMS, render
from cli.job.options import check_out_file, operator_options
from client.operations import connect
from client.settings import OperatorSettings


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
@operator_options
def results(settings: OperatorSettings, job_id: str, form: str, out: Path | None) -> None:
    """Show what an analysis of one's own published. ID: the first digits of the job digest.

    text, md and html are a table 1, html with charts. csv and json have each figure by itself, with a note of
    how it is rounded or that it is withheld.
    """
    if out is not None:
        check_out_file(out)
    with connect(settings) as (operations, _):
        digest = operations.find(job_id)
        _, parts = operations.fetch(digest)
        state, facts = open_model(b"".join(parts))
    rendered = render(described_analysis(facts, source=f"job {digest.hex()[:12]}"), state, form)
    if out is None:
        click.echo(rendered, nl=False)
    else:
        write_atomic(out, rendered.encode(), mode=0o644)
        click.echo(f"{out}: what job {digest.hex()[:12]} published, as {form}")
