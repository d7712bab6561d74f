"""`chorale job evidence`: all that proves a job, in one signed archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.evidence import MAX_STATEMENT_BYTES
from chorale.runtime.files import read_limited, write_atomic
from chorale.transport.tls import load_authority
from cli.job.options import check_out_file, operator_options
from client.evidence.archive import MAX_BYTES
from client.evidence.pack import collect
from client.evidence.verify import examine
from client.operations import connect

if TYPE_CHECKING:
    from client.settings import OperatorSettings


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the archive, zip.")
@click.option(
    "--add",
    "added",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file of `silo evidence` that an institution handed on; may be repeated.",
)
@click.option(
    "--sbom",
    "bills",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A bill of materials to put beside it, such as a release's; may be repeated.",
)
@operator_options
def evidence(
    settings: OperatorSettings, job_id: str, out: Path, added: tuple[Path, ...], bills: tuple[Path, ...]
) -> None:
    """Write all that proves a job into one signed archive, and check it.

    It holds no data, no sum and no weights. `chorale evidence verify` checks it without a network.
    """
    check_out_file(out)
    silos = {str(path): read_limited(path, MAX_STATEMENT_BYTES) for path in added}
    sboms = {path.name: read_limited(path, MAX_BYTES) for path in bills}
    with connect(settings) as (operations, identity):
        digest, authority = operations.find(job_id), load_authority(settings.authority)
        data = collect(operations, digest, identity=identity, authority=authority, silos=silos, sboms=sboms)
    write_atomic(out, data, mode=0o644)
    result = examine(data, authority=authority).facts.result
    click.echo(f"{out}: {len(data)} bytes; {result}; check it with `chorale evidence verify {out}`")
