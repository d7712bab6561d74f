"""`chorale job submit`: sign a job and hand it in."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from chorale.job import sign_job
from chorale.privacy.remembered import remembering
from chorale.privacy.solve import Spec
from chorale.runtime.files import write_atomic
from cli.job.following import end_of, follow
from cli.job.options import operator_options
from cli.output.progress import PREPARING, said_if_slow
from client.operations import connect
from client.settings import OperatorSettings
from client.submission import Submission, absent_notes, prepared, read_spec
from crypto.errors import printable


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option(
    "--init",
    type=click.Path(path_type=Path),
    help="Initial model, safetensors: a plain state_dict or a fetched model; default: drawn from the job.",
)
@click.option("--save", type=click.Path(path_type=Path), help="File for the job as it was signed.")
@click.option("--watch", "is_watched", is_flag=True, help="Stay until the job ends.")
@operator_options
@remembering()
def submit(
    settings: OperatorSettings, file: Path, init: Path | None, save: Path | None, is_watched: bool
) -> None:
    """Sign JOB.yaml and submit it; prints the id.

    Of a private job it also prints epsilon and the noise, which it solves for where the file leaves it out.
    """
    with said_if_slow(PREPARING):
        submission = prepared(
            read_spec(file),
            source=str(file),
            federation=settings.federation,
            init=init,
            now=datetime.now(UTC),
        )
    hand_in(settings, submission, save=save, is_watched=is_watched)


def hand_in(
    settings: OperatorSettings, submission: Submission[Spec], *, save: Path | None, is_watched: bool
) -> None:
    """Sign a job of either kind, send it, and say what it waits for. As `submit`."""
    for note in submission.notes:
        click.echo(printable(note), err=True)
    spec = submission.spec
    with connect(settings) as (operations, identity):
        signed = sign_job(spec.to_yaml(), identity)
        if save is not None:  # before the job is in: what cannot be written ends the command
            write_atomic(save, signed.spec_bytes)
        digest = operations.submit(signed, submission.state)
        job_id = digest.hex()[:12]
        click.echo(f"{job_id}  {spec.name}  submitted to {settings.coordinator}")
        if save is not None:
            click.echo(f"{save}: the job as it was signed", err=True)
        for line in submission.promised:
            click.echo(line)
        connected = {silo.name: silo.connected for silo in operations.silos().silos}
        for note in absent_notes(spec, connected):
            click.echo(note, err=True)
        if is_watched:
            end_of(follow(operations, digest))
        else:
            click.echo(f"silos that approve by hand decide now: chorale silo show {job_id}", err=True)
