"""`chorale job watch`, `pause`, `resume`, `skip-round`, `cancel` and `fetch`: a job that was submitted."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.runtime.files import write_atomic
from cli.job.following import end_of, follow, follow_json
from cli.job.options import check_out_file, operator_options
from client.history import check_done
from client.operations import connect
from client.settings import OperatorSettings


@click.command()
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


def _control_command(action: str, text: str) -> click.Command:
    """A command that asks the coordinator for one of its actions on a job."""

    @click.command(action, help=text)
    @click.argument("job_id", metavar="ID")
    @operator_options
    def control(settings: OperatorSettings, job_id: str) -> None:
        with connect(settings) as (operations, _):
            summary = operations.control(operations.find(job_id), action.replace("-", "_"))
        click.echo(f"{summary.job_digest.hex()[:12]}  {summary.status}")

    return control


pause = _control_command("pause", "Start no further phase until the job is resumed.")
resume = _control_command("resume", "Resume a paused job.")
skip_round = _control_command(
    "skip-round", "Give up a round that stands still for silos whose input is there."
)
cancel = _control_command("cancel", "End a job for good; the rounds that are done stay.")


@click.command()
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
