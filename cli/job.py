"""`chorale job`: what an operator does. The coordinator relays; silos decide."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chorale.job import sign_job
from chorale.runtime.files import write_atomic
from cli.errors import CommandFailed
from cli.output.progress import kept_line, show
from client.history import JobHistory, counted, personal_figures, score_word
from client.operations import Operations, connect
from client.settings import OperatorSettings, operator_settings
from client.submission import absent_notes, prepared, read_spec
from crypto.errors import BudgetExhausted, PolicyRefusal, Refusal, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_LIFE = timedelta(days=30)  # not_after of a job file that names none
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


def operator_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `settings`, from --config, the environment and single options."""
    path = click.Path(path_type=Path)

    @click.option("--config", type=path, help="The operator's settings file.")
    @click.option("--coordinator", help="host:port of the coordinator.")
    @click.option("--certificate", type=path, help="The operator's certificate.")
    @click.option("--key", type=path, help="The operator's private key.")
    @click.option("--authority", type=path, help="Certificate of the federation's authority.")
    @click.option("--federation", help="Name of the federation.")
    @wraps(command)
    def with_settings(
        config: Path | None,
        coordinator: str | None,
        certificate: Path | None,
        key: Path | None,
        authority: Path | None,
        federation: str | None,
        **arguments: Any,
    ) -> None:
        identity = {"certificate": certificate, "key": key}
        given = {"coordinator": coordinator, "authority": authority, "federation": federation}
        command(settings=operator_settings(config, given=given, identity=identity), **arguments)

    return with_settings


@click.group()
def job() -> None:
    """Submit, watch, steer and fetch jobs."""


@job.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option(
    "--init",
    type=click.Path(path_type=Path),
    help="Initial model, safetensors: a plain state_dict or a fetched model; default: drawn from the job.",
)
@click.option("--save", type=click.Path(path_type=Path), help="File for the job as it was signed.")
@click.option("--watch", "is_watched", is_flag=True, help="Stay until the job ends.")
@operator_options
def submit(
    settings: OperatorSettings, file: Path, init: Path | None, save: Path | None, is_watched: bool
) -> None:
    """Sign JOB.yaml and submit it; prints the id.

    Of a private job it also prints epsilon and the noise, which it solves for where the file leaves it out.
    """
    submission = prepared(read_spec(file), init=init, now=datetime.now(UTC))
    spec = submission.spec
    for note in submission.notes:
        click.echo(note, err=True)
    with connect(settings) as (operations, identity):
        signed = sign_job(spec.to_yaml(), identity)
        digest = operations.submit(signed, submission.state)
        if save is not None:
            write_atomic(save, signed.spec_bytes)
        click.echo(f"{digest.hex()[:12]}  {spec.name}  submitted to {settings.coordinator}")
        for line in submission.promised:
            click.echo(line)
        connected = {silo.name: silo.connected for silo in operations.silos().silos}
        for note in absent_notes(spec, connected):
            click.echo(note, err=True)
        if is_watched:
            end_of(follow(operations, digest))


@job.command("list")
@operator_options
def list_jobs(settings: OperatorSettings) -> None:
    """List the coordinator's jobs."""
    with connect(settings) as (operations, _):
        for summary in operations.jobs():
            note = summary.progress or summary.reason
            told = f"{summary.status:<9}  {counted(summary)}  {summary.name}  {note}"
            click.echo(f"{summary.job_digest.hex()[:12]}  {told}")


@job.command("silos")
@click.option("--json", "is_json", is_flag=True, help="The same as one JSON object.")
@operator_options
def list_silos(settings: OperatorSettings, is_json: bool) -> None:
    """List the silos of the coordinator's roster, and which of them are connected.

    Compare version and certificates with `chorale authority show`: a coordinator could say anything. What a
    silo runs is what it says: that finds a forgotten upgrade, not a silo that lies.
    """
    with connect(settings) as (operations, _):
        reply = operations.silos()
    own = _software(reply.software_version, reply.software_digest)
    rows: list[dict[str, Any]] = [
        {
            "name": silo.name,
            "connected": silo.connected,
            "certificate": silo.certificate_sha256.hex(),
            "expires": _date(silo.certificate_expires_unix_seconds) if silo.connected else None,
            "software": _software(silo.software_version, silo.software_digest) if silo.connected else None,
        }
        for silo in reply.silos
    ]
    if is_json:
        head = {"roster_version": reply.roster_version, "software": own}
        click.echo(json.dumps({**head, "silos": rows}, indent=1))
        return
    click.echo(f"roster version {reply.roster_version}, the coordinator runs {own}")
    width = max((len(silo.name) for silo in reply.silos), default=0)
    for row in rows:
        runs = row["software"] if row["software"] == own else f"{row['software']}, not the coordinator's"
        state = f"connected, certificate until {row['expires']}, runs {runs}" if row["connected"] else "away"
        click.echo(f"{row['name']:<{width}}  {row['certificate'][:16]}  {state}")


def _date(unix_seconds: float) -> str:
    """Raises RemoteProtocolError for what is no date."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        raise RemoteProtocolError(f"coordinator: expected a date, got {unix_seconds}") from None


def _software(version: str, digest: bytes) -> str:
    """What others wrote of themselves, as a part of a line."""
    word = version[:64] if version.isascii() and version.isprintable() else "?"
    return f"{word}, sha256:{digest.hex()[:64] or 'none'}"


@job.command()
@click.argument("job_id", metavar="ID")
@operator_options
def watch(settings: OperatorSettings, job_id: str) -> None:
    """Show a job's rounds until it ends. ID: the first digits of the job digest."""
    with connect(settings) as (operations, _):
        end_of(follow(operations, operations.find(job_id)))


def _control_command(action: str, text: str) -> None:
    """A command that asks the coordinator for one of its actions on a job."""

    @job.command(action, help=text)
    @click.argument("job_id", metavar="ID")
    @operator_options
    def control(settings: OperatorSettings, job_id: str) -> None:
        with connect(settings) as (operations, _):
            summary = operations.control(operations.find(job_id), action)
        click.echo(f"{summary.job_digest.hex()[:12]}  {summary.status}")


_control_command("pause", "Start no further phase until the job is resumed.")
_control_command("resume", "Resume a paused job.")
_control_command("cancel", "End a job for good; the rounds that are done stay.")


@job.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="File for the model, safetensors."
)
@operator_options
def fetch(settings: OperatorSettings, job_id: str, out: Path) -> None:
    """Save a job's model: the newest, or the best where the job keeps that."""
    with connect(settings) as (operations, _):
        summary, data = operations.fetch(operations.find(job_id))
        write_atomic(out, data)
    kept = f" ({summary.kept})" if summary.kept else ""
    click.echo(f"{out}: {summary.name} after round {summary.model_round} of {summary.rounds}{kept}")


def follow(operations: Operations, job_digest: bytes) -> JobHistory:
    """Show the job on stderr until it ends: a live table on a terminal, else a line per phase."""
    history = JobHistory()
    show(operations.watch(job_digest), history)
    return history


def end_of(history: JobHistory) -> None:
    """Print how the job ended. Raises what the exit code is made of if it is not done."""
    summary = history.summary
    check_done(history)
    figure, personal = history.closing(history.main), personal_figures(history)
    measured = "" if figure is None else f"  final {history.main} {figure:.4f}"
    measured += "" if personal is None else f"  personal {score_word(history.main)} {personal}"
    done = f"{summary.rounds_completed} rounds" if not summary.steps else counted(summary)
    click.echo(f"{summary.job_digest.hex()[:12]}  done  {done}{measured}")
    if summary.reason:
        click.echo(summary.reason)
    if summary.kept:
        click.echo(kept_line(summary))


def check_done(history: JobHistory) -> None:
    """Raises PolicyRefusal, BudgetExhausted or CommandFailed for a job that did not reach its end."""
    summary = history.summary
    if summary.status == "done":
        return
    told = [summary.status or "unknown", summary.reason]
    message = f"job {summary.job_digest.hex()[:12]}: {': '.join(filter(None, told))}"
    last = history.records[-1:]  # the phase that ended it, unless it was applied
    codes = {left.reason for record in last if record.result != "applied" for left in record.left_out}
    if Refusal.BUDGET in codes:
        raise BudgetExhausted(message)
    if Refusal.POLICY in codes:
        raise PolicyRefusal(message)
    raise CommandFailed(message)
