"""The commands of `chorale job`."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.runtime.files import write_atomic
from cli.job.evidence import evidence
from cli.job.export import export
from cli.job.following import end_of, follow, follow_json
from cli.job.listing import list_jobs, list_silos
from cli.job.options import check_out_file, operator_options
from cli.job.plan import plan
from cli.job.report import report
from cli.job.submit import submit
from client.history import check_done
from client.operations import connect
from client.settings import OperatorSettings


@click.group()
def job() -> None:
    """Plan, submit, watch, steer, report and fetch jobs."""


for each in (plan, submit, list_jobs, list_silos, report, evidence, export):
    job.add_command(each)


@job.command()
@click.argument("job_id", metavar="ID")
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line: phases, and the job's state.")
@operator_options
def watch(settings: OperatorSettings, job_id: str, is_json: bool) -> None:
    """Show a job's rounds until it ends. ID: the first digits of the job digest.

    Where the coordinator goes away, it waits until it is back.
    """
    with connect(settings) as (operations, _):
        digest = operations.find(job_id)
        if is_json:
            check_done(follow_json(operations, digest))
        else:
            end_of(follow(operations, digest))


def _control_command(action: str, text: str) -> None:
    """A command that asks the coordinator for one of its actions on a job."""

    @job.command(action, help=text)
    @click.argument("job_id", metavar="ID")
    @operator_options
    def control(settings: OperatorSettings, job_id: str) -> None:
        with connect(settings) as (operations, _):
            summary = operations.control(operations.find(job_id), action.replace("-", "_"))
        click.echo(f"{summary.job_digest.hex()[:12]}  {summary.status}")


_control_command("pause", "Start no further phase until the job is resumed.")
_control_command("resume", "Resume a paused job.")
_control_command("skip-round", "Give up a round that stands still for silos whose input is there.")
_control_command("cancel", "End a job for good; the rounds that are done stay.")


@job.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="File for the model, safetensors."
)
@operator_options
def fetch(settings: OperatorSettings, job_id: str, out: Path) -> None:
    """Save a job's model: the newest, or the best where the job keeps that."""
    check_out_file(out)
    with connect(settings) as (operations, _):
        summary, data = operations.fetch(operations.find(job_id))
        write_atomic(out, data)
    kept = f" ({summary.kept})" if summary.kept else ""
    click.echo(f"{out}: {summary.name} after round {summary.model_round} of {summary.rounds}{kept}")
