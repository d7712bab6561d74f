"""`chorale job`: what an operator does. The coordinator relays; silos decide."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chorale.job import sign_job
from chorale.pinned_code import pinned
from chorale.privacy.plan import solve
from chorale.privacy.promise import promise_of
from chorale.runtime.files import read_limited, write_atomic
from chorale.spec.first_state import SEED_ALONE
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import read_model
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import GlobalState, state_digest, state_from_bytes, state_to_bytes
from cli.errors import CommandFailed, require_extra, with_hint
from cli.operations import Operations, connect
from cli.operator import OperatorSettings, operator_settings
from cli.output.progress import JobHistory, counted, kept_line, personal_figures, score_word, show
from crypto.errors import BudgetExhausted, ConfigError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session.cohort import default_colluders, draw_risk
from silo_agent.policy.policy import Policy
from strategies.base import DRAW_SEED, MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    spec = with_code(read_spec(file))
    tell_draw(spec)
    spec = spec.filled(nonce=spec.nonce or secrets.token_hex(16), initial_state=None)
    state = initial_bytes(spec, init, base=spec.base())
    complete, promised = solved(spec, state)
    if init is None and complete != spec:  # the first state follows from the noise, too
        state = initial_bytes(complete, None, base=complete.base())
    digest = state_digest(state)
    spec = complete.filled(nonce=complete.nonce, initial_state=digest)
    if init is not None:
        click.echo(
            "--init: silos refuse a given initial state unless initial_state in their policy says given or "
            f"lists {digest.hex()}",
            err=True,
        )
    spec.check_submittable(now=datetime.now(UTC))
    tell_class_statistics(spec)
    cohort_changes = spec.expected_cohort_changes
    if cohort_changes > 0:  # with fraction < 1 cohorts differ from round to round
        click.echo(
            f"fraction {spec.fraction:g}: at most {cohort_changes:.3g} overlapping cohorts are expected; "
            "each silo's policy must allow as many (max_cohort_changes)",
            err=True,
        )
    with connect(settings) as (operations, identity):
        signed = sign_job(spec.to_yaml(), identity)
        digest = operations.submit(signed, state)
        if save is not None:
            write_atomic(save, signed.spec_bytes)
        click.echo(f"{digest.hex()[:12]}  {spec.name}  submitted to {settings.coordinator}")
        for line in promised:
            click.echo(line)
        tell_absent(spec, {silo.name: silo.connected for silo in operations.silos().silos})
        if is_watched:
            end_of(follow(operations, digest))


def with_code(spec: JobSpec) -> JobSpec:
    """The job with the digests of its distributions and what their code declares, tried out once here.

    Raises ConfigError where one is not installed here, or its code does not do what the job needs.
    """
    if not spec.distributions:
        return spec
    require_extra("silo", "torch", what=f"trying the code of {spec.distributions[0]} once")
    from silo_agent.training.plug_ins import checked

    return checked(pinned(spec))


def solved(spec: JobSpec, state: bytes) -> tuple[JobSpec, list[str]]:
    """The job with all its noise, and lines that say what it promises; none of one without privacy.

    Raises ConfigError where no noise meets the target, or the given noise does not.
    """
    if spec.privacy is None:
        return spec, []
    require_extra("privacy", "dp_accounting", what="computing what noise costs")
    shapes, unsolved = state_from_bytes(state), spec.privacy.unsolved
    spec = solve(spec, shapes)
    promise = promise_of(spec, shapes)
    told = f" (solved for: {', '.join(unsolved)})" if unsolved else ""
    first, *others = promise.lines()
    return spec, [first + told, *others]


def tell_class_statistics(spec: JobSpec) -> None:
    """One line where the job's metrics are sums by class without noise, which policies refuse by default."""
    by_class = [
        word
        for word, metric in spec.method.task.asked.items()
        if any(each.is_by_class for each in metric.sums)
    ]
    if by_class and spec.privacy is None:
        click.echo(
            f"task.metrics: {', '.join(by_class)} are summed by class without noise: silos refuse the job "
            "unless class_statistics in their policy says allow",
            err=True,
        )


def tell_draw(spec: JobSpec) -> None:
    """What a draw of silos risks, and whether silos under the default policy refuse it; others may differ."""
    if not spec.draws_rounds:
        return
    silos, members = len(spec.silos), spec.named_per_round
    colluders = default_colluders(silos)
    risk = float(draw_risk(silos, members, colluders=colluders, rounds=spec.rounds))
    click.echo(
        f"fraction {spec.fraction:g}: if {colluders} of {silos} silos collude, a round names more than "
        f"{members // 3} of them with a chance of at most {risk:.2g} over the job",
        err=True,
    )
    try:
        Policy(federation=spec.federation).check_draw(spec)
    except PolicyRefusal as refusal:
        click.echo(f"silos with the default policy refuse this job: {refusal}", err=True)


def tell_absent(spec: JobSpec, connected: Mapping[str, bool]) -> None:
    """A job may wait for members to come; a misspelled one never comes."""
    unknown = [name for name in spec.silos if name not in connected]
    away = [name for name in spec.silos if not connected.get(name, True)]
    if unknown:
        click.echo(f"not on the roster, so not in the job until they are: {', '.join(unknown)}", err=True)
    if away:
        click.echo(f"not connected now, the job waits for them: {', '.join(away)}", err=True)


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


def read_spec(file: Path, *, not_after: datetime | None = None, silos: Sequence[str] = ()) -> JobSpec:
    """The job file; not_after is filled in where it is left out, by default in 30 days. silos: in place of
    the file's, if there are any. Raises ConfigError."""
    values = parse_mapping(read_limited(file, MAX_BYTES), source=str(file))
    filled = {"not_after": not_after or datetime.now(UTC).replace(microsecond=0) + DEFAULT_LIFE}
    given = {"silos": list(silos)} if silos else {}
    return check_values(JobSpec, {**filled, **values, **given}, source=str(file))


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


def initial_bytes(spec: JobSpec, init: Path | None, *, base: bytes = SEED_ALONE) -> bytes:
    """The initial global state as file bytes: the operator's file, or drawn from the job as
    silo_agent/training/models/state.py does. Raises ConfigError."""
    if init is not None:
        return state_to_bytes(_given(spec, init, base))
    if spec.rounds == 0:
        raise with_hint(ConfigError("rounds: 0 evaluates a given model"), "give it: --init FILE.safetensors")
    if not spec.model.is_built_in:
        message = f"model.name: nothing is drawn for a model that is not built in, got {spec.model.name}"
        raise with_hint(ConfigError(message), "give its starting weights: --init FILE.safetensors")
    try:
        require_extra("silo", "torch", what="building the model here")
    except ConfigError as error:
        raise with_hint(error, "give --init FILE.safetensors") from None
    from silo_agent.training.models.state import initial_state

    return state_to_bytes(initial_state(spec, base=base))


def _given(spec: JobSpec, init: Path, base: bytes) -> GlobalState:
    """A file of ours, whose arrays are named model/..., or a plain state_dict of the author's module."""
    if init.suffix in PICKLES:
        raise with_hint(
            ConfigError(f"{init}: {init.suffix} files can run code when they are read; expected safetensors"),
            f"python -c 'import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in "
            f'torch.load("{init}", weights_only=True).items()}}, "{init.with_suffix(".safetensors")}")\'',
        )
    given, _ = read_model(init)
    if any(name.startswith(MODEL) for name in given):
        _check_model(spec, given, source=init)
        given.pop(DRAW_SEED, None)  # of the job that made the file: a job draws by its own
        return given
    if not spec.model.is_built_in:
        raise ConfigError(f"{init}: the arrays of a custom model are named {MODEL}..., got {min(given)}")
    require_extra("silo", "torch", what="a plain state_dict, whose names are compared with the model's,")
    from silo_agent.training.models.plain import given_state

    return given_state(spec, given, base=base, source=str(init))


def _check_model(spec: JobSpec, given: GlobalState, *, source: Path) -> None:
    """Where torch is installed, a file of another model is refused here and not by every silo."""
    if not spec.model.is_built_in:
        return
    try:
        from silo_agent.training.models.state import model_shapes
    except ModuleNotFoundError:
        return
    expected = model_shapes(spec)
    got = {name: array.shape for name, array in given.items() if name.startswith("model/")}
    odd = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
    if odd:
        name = odd[0]
        raise ConfigError(
            f"{source}: {name}: model {spec.model.name} of this job expects "
            f"{expected.get(name, 'no such array')}, got {got.get(name, 'none')}"
        )
