"""`chorale job report`: a job as a page, as JSON and as a table, at any time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.privacy.promise import promise_of
from chorale.privacy.remembered import remembering
from chorale.runtime.files import check_folder
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import open_model
from cli.job.options import operator_options
from cli.output.report import document, write_report
from client.errors import require_extra
from client.operations import connect
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.privacy.promise import Promise
    from client.history import JobHistory
    from client.operations import Operations
    from client.settings import OperatorSettings


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the report's files.")
@operator_options
@remembering()
def report(settings: OperatorSettings, job_id: str, out: Path) -> None:
    """Write report.html, report.json and rounds.csv of a job, whether it has ended or not."""
    check_folder(out, field="--out")
    with connect(settings) as (operations, _):
        digest = operations.find(job_id)
        history = operations.history(digest)
        promise = _promise(operations, digest, history)
    write_report(document(history, promise=promise), out)
    click.echo(f"{out / 'report.html'}, report.json and rounds.csv of job {digest.hex()[:12]}")


def _promise(operations: Operations, digest: bytes, history: JobHistory) -> Promise | None:
    """What a private job promises: it follows from the model's sizes, so for the job's operator alone."""
    import grpc

    if history.signed is None:
        return None
    try:
        spec = JobSpec.from_yaml(history.signed.spec_bytes, source=f"job {digest.hex()[:12]}")
    except ConfigError:  # not readable by this version
        return None
    if spec.privacy is None:
        return None
    require_extra("privacy", "dp_accounting", what="computing what a private job costs")
    try:
        _, data = operations.fetch(digest, also_untrained=True)
        return promise_of(spec, open_model(b"".join(data))[0])
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND):
            raise
        return None
