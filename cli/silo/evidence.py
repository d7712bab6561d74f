"""`chorale silo evidence`: what this silo says of a job, as a file that the institution itself hands on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from chorale.runtime.files import write_atomic
from cli.silo.settings import CONFIG, opened_ledger
from client.errors import require_extra
from silo_agent.settings import load_silo_settings


@click.command("evidence")
@CONFIG
@click.argument("job")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the statement, JSON.")
def write_evidence(config: Path, job: str, out: Path) -> None:
    """Write what this silo says of JOB: approvals, what left, epsilon, digest of the policy.

    It is signed with the silo's key and sent nowhere: read it, then hand it to the job's operator, who adds
    it with `chorale job evidence --add`. It tells of this job alone, and not why anything was refused.
    """
    from chorale.evidence import sign_statement
    from chorale.transport.tls import load_identity
    from silo_agent.evidence import silo_statement

    require_extra("privacy", "dp_accounting", what="computing what the job cost")
    settings = load_silo_settings(config)
    with closing(opened_ledger(settings)) as ledger:
        statement = silo_statement(settings, ledger, job)
    write_atomic(out, sign_statement(statement, load_identity(settings.identity)))
    cost = "none: inputs left without noise" if statement.epsilon is None else f"{statement.epsilon:.4g}"
    lines = len(statement.audit.lines)
    click.echo(f"{out}: job {statement.job[:12]}, {lines} audit entries, bound of epsilon: {cost}")
