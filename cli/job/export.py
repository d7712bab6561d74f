"""`chorale job export`: a job's rounds in an experiment tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.job.options import operator_options
from client.mlflow_export import check_uri
from client.mlflow_export import export as export_to_mlflow
from client.operations import connect

if TYPE_CHECKING:
    from client.settings import OperatorSettings


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--mlflow", "uri", required=True, help="http(s)://HOST:PORT of an MLflow tracking server.")
@click.option("--experiment", help="Its name there.  [default: the federation's]")
@operator_options
def export(settings: OperatorSettings, job_id: str, uri: str, experiment: str | None) -> None:
    """Write a job's settings and the figures of its rounds to MLflow: a run a job, a step a round.

    No silo's name and no model goes there. Again for the same job, it adds to the run what is new.
    """
    check_uri(uri)
    with connect(settings) as (operations, _):
        history = operations.history(operations.find(job_id))
    run = export_to_mlflow(history, uri, experiment=experiment or settings.federation)
    click.echo(
        f"{history.summary.job_digest.hex()[:12]}  {len(history.records)} phases in MLflow's run {run}"
    )
