"""`chorale simulate`: a job's rounds in one process, on one machine's data."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chorale.privacy.job_releases import JobReleases
from chorale.runtime.files import read_limited
from chorale.spec.fields import MAX_SIMULATED_SILOS
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import MAX_BYTES, parse_mapping
from chorale.spec.state import GlobalState, state_from_bytes
from cli.demo.plan import OPEN_POLICY
from cli.given_data import DataOptions, data_options
from cli.simulate.analysis import is_analysis, simulate_analysis
from cli.simulate.lines import (
    RowRule,
    after,
    closing_lines,
    curve_line,
    last_line,
    round_line,
    row_rule_line,
    said_if_interrupted,
)
from cli.simulate.progress import ProgressLine
from client.errors import about, require_extra
from client.submission import (
    NEVER,
    draw_notes,
    initial_bytes,
    rate_notes,
    read_spec,
    solved,
    start_notes,
    with_code,
)
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.training.machine.settings import MemoryFormat, Precision
from simulation.engine import Progress, Simulation
from simulation.folder import SimulationFolder
from simulation.on_ray import Ray
from simulation.silos import Compute, OwnObjectives
from simulation.stored import Scratch
from strategies.phases.enrollment import CLASS_PRESENCE
from strategies.server_optimizer import steps_taken

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MAX_WORKERS = 256
PROCESSES, RAY = "processes", "ray"  # engines


class _Simulate(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name != "--workers":
                raise
            message = "no such option '--workers'; --parallel says how many workers compute"
            raise click.NoSuchOption("--workers", message, ctx=ctx) from None


@click.command(cls=_Simulate)
@click.argument("file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option(
    "--silos",
    type=click.IntRange(SMALLEST_FEDERATION, MAX_SIMULATED_SILOS),
    help="Number of silos; default: the job's.",
)
@click.option("--secure", "is_secure", is_flag=True, help="Sum under real masks, by whole sessions.")
@click.option(
    "--parallel",
    default=0,
    type=click.IntRange(0, MAX_WORKERS),
    help="Workers that compute, one thread each.  [default: this process; with ray as many as there is room "
    "for]",
)
@click.option(
    "--engine",
    default=PROCESSES,
    show_default=True,
    type=click.Choice([PROCESSES, RAY]),
    help="What workers are: processes of this machine, or actors of Ray, on many.",
)
@click.option("--address", help="ray: of a cluster that runs, HOST:PORT or auto.  [default: started here]")
@click.option(
    "--gpus",
    type=click.FloatRange(0, 64),
    help="ray: of each worker, such as 0.25 for four on one GPU.  [default: none]",
)
@data_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy of every silo, which may refuse the job.  [default: one that refuses nothing, and holds "
    "back class rows as a federation's does]",
)
@click.option(
    "--init",
    type=click.Path(path_type=Path),
    help="Initial model, safetensors: a plain state_dict or a fetched model; default: by seed.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Where silos train; auto: on a GPU if there is one, the workers in turn on several.",
)
@click.option(
    "--precision",
    default=Precision.FLOAT32.value,
    show_default=True,
    type=click.Choice([Precision.FLOAT32.value, Precision.BFLOAT16.value]),
    help="Number type of the model's layers.",
)
@click.option(
    "--memory-format",
    default=MemoryFormat.CONTIGUOUS.value,
    show_default=True,
    type=click.Choice([MemoryFormat.CONTIGUOUS.value, MemoryFormat.CHANNELS_LAST.value]),
    help="Memory order of images.",
)
@click.option(
    "--all-class-rows",
    "sends_all_rows",
    is_flag=True,
    help="Silos send the rows of every class, which no federation's silos do by default.",
)
@click.option(
    "--test",
    "has_test_set",
    is_flag=True,
    help="Test each round's model on the whole test split of the data, too; of data without one, on the "
    "share that is held out.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for lines and model; a stopped run continues from there.",
)
def simulate(
    file: Path,
    silos: int | None,
    is_secure: bool,
    parallel: int,
    engine: str,
    address: str | None,
    gpus: float | None,
    policy: Path | None,
    init: Path | None,
    device: str,
    precision: str,
    memory_format: str,
    sends_all_rows: bool,
    has_test_set: bool,
    out: Path | None,
    data_options: DataOptions,
) -> None:
    """Run the rounds of JOB.yaml on this machine or on Ray: the agents' own training, without network or
    ledger.

    Prints one JSON line a round, or writes them to rounds.jsonl in the --out folder. Of an analysis it prints
    the table of results, or writes it there in every form.
    """
    if is_analysis(file):
        return simulate_analysis(
            click.get_current_context(),
            file,
            data_options,
            silos=silos,
            policy=policy,
            is_secure=is_secure,
            out=out,
        )
    require_extra("silo", "torch", what="simulate, whose silos train in this process,")
    options = data_options
    options.check_used()
    ray = _ray(engine, address=address, gpus=gpus, workers=parallel, device=device)
    compute = Compute(
        device=device, precision=Precision(precision), memory_format=MemoryFormat(memory_format)
    )
    spec = _spec(file, options, silos)
    _check_compute(spec, compute)
    rows = _row_rule(spec, policy, sends_all_rows=sends_all_rows)
    if has_test_set and (own := spec.method.recipe.personalization).shares_nothing:
        raise ConfigError(f"--test: not allowed with personalization {own}, where no model is common to all")
    unusual = [f"unusual: passes over a rule: {rule}" for rule in spec.method.passed_over]
    for note in (*unusual, *draw_notes(spec), *rate_notes(spec), *start_notes(spec, init)):
        click.echo(note, err=True)
    rules = _policy(spec, policy, sends_all_rows=sends_all_rows)
    if rows is not None:
        click.echo(row_rule_line(rows, rules.min_class_holders), err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then ends it as Ctrl-C does
    folder = None
    if out is not None:
        folder = _folder(out, spec, options, rules, init=init, is_secure=is_secure, compute=compute)
    held: AbstractContextManager[Progress | None] = nullcontext() if folder is None else folder.held()
    with held as progress, said_if_interrupted(spec, folder):
        objectives = options.objectives()
        data = options.load(spec, Scratch(None if folder is None else folder.scratch_path))
        with about(str(file)) if init is None else nullcontext():
            drawn = initial_bytes(spec, init)
        state = state_from_bytes(drawn)
        if spec.privacy is not None and spec.privacy.unsolved:
            click.echo(f"solving for the noise of epsilon {spec.privacy.epsilon:g}", err=True)
        spec, promised = solved(spec, drawn)
        for line in promised:
            click.echo(line, err=True)
        if policy is not None:
            _check_noise(spec, state, rules)
        shown = ProgressLine(sys.stderr if sys.stderr.isatty() else None, rounds=spec.rounds)
        simulation = Simulation(
            spec,
            data,
            state=state,
            policy=rules,
            objective=OwnObjectives(objectives, compute=compute) if objectives else None,
            compute=compute,
            is_secure=is_secure,
            workers=parallel,
            ray=ray,
            scratch=None if folder is None else folder.scratch_path,
            answered=shown.answered,
            test_set=options.load_test_set(spec) if has_test_set else None,
        )
        if progress is not None:
            simulation.progress = progress
        _run(simulation, folder, shown)
        _conclude(simulation, folder, rows)


def _run(simulation: Simulation, folder: SimulationFolder | None, shown: ProgressLine) -> None:
    spec = simulation.job.training
    drawn = f"{spec.named_per_round} of {len(spec.silos)} silos"
    click.echo(f"{spec.strategy.name}, {spec.count} of {drawn}; {simulation.computed_by}", err=True)
    ended = [] if folder is None else folder.ended()
    if ended and simulation.progress.following is not None:
        click.echo(f"continuing after {after(spec, ended)}", err=True)
    printed = simulation.progress.evaluations
    for result in simulation.run():
        shown.round_ended(result.round)
        shown.clear()
        printed = _tell_curve(simulation, printed)
        if folder is None:
            click.echo(json.dumps(result.to_json()))
        else:
            folder.add(result, simulation.progress)
        title = f"round {result.round}/{spec.rounds}"
        if spec.steps is not None:
            taken = steps_taken(simulation.state)
            title = f"step {taken + bool(result.reason)} of {spec.steps}"
        click.echo(round_line(result, title=title, spec=spec), err=True)
    shown.clear()
    _tell_curve(simulation, printed)


def _tell_curve(
    simulation: Simulation, printed: Mapping[int, Mapping[str, float]]
) -> Mapping[int, Mapping[str, float]]:
    """What of the curve over all silos' hold-outs is new."""
    curve = simulation.progress.evaluations
    for round, figures in curve.items():
        if printed.get(round) is not figures:
            click.echo(curve_line(simulation, round), err=True)
    return curve


def _conclude(simulation: Simulation, folder: SimulationFolder | None, rows: RowRule | None) -> None:
    if folder is not None:
        folder.finish(simulation)
    for line in closing_lines(simulation):
        click.echo(line, err=True)
    model = None if folder is None else str(folder.model_path)
    click.echo(json.dumps(last_line(simulation, rows=rows, model=model)))


def _spec(file: Path, options: DataOptions, silos: int | None) -> JobSpec:
    listed = parse_mapping(read_limited(file, MAX_BYTES), source=str(file)).get("silos", ())
    names = options.names(listed if isinstance(listed, list) else (), silos)
    spec = read_spec(file, not_after=NEVER, silos=names if options.silo_files or silos else ())
    with about(str(file)):
        spec = with_code(spec)
    own = options.objectives()
    if not spec.model.is_built_in and any(name not in own for name in spec.silos):
        raise ConfigError(
            f"{file}: model.name: custom is trained by the silos' own objectives: expected a settings file "
            "that names one for each silo (--silo)"
        )
    return spec


def _ray(engine: str, *, address: str | None, gpus: float | None, workers: int, device: str) -> Ray | None:
    """Raises ConfigError for an option that has no effect beside the others."""
    if engine == PROCESSES:
        for option, value in (("--address", address), ("--gpus", gpus)):
            if value is not None:
                raise ConfigError(f"{option}: belongs to --engine {RAY}, got {PROCESSES}")
        return None
    require_extra("ray", "ray", what=f"simulate --engine {RAY}")
    if gpus is not None and gpus > 1 and gpus % 1:
        raise ConfigError(f"--gpus: expected a share of one GPU up to 1, or a whole number, got {gpus:g}")
    if device == "cuda" and not gpus:
        raise ConfigError(
            f"--device cuda with --engine {RAY}: expected --gpus of each worker, such as 1 or 0.25"
        )
    return Ray(address=address, workers=workers, gpus=gpus or 0.0)


def _check_compute(spec: JobSpec, compute: Compute) -> None:
    """Raises ConfigError for what a private job does not take."""
    if spec.privacy is not None and compute != Compute(device=compute.device):
        raise ConfigError(
            "--precision, --memory-format: a private job is computed in float32 and contiguous memory, which "
            "its privacy is proved of"
        )


def _policy(spec: JobSpec, path: Path | None, *, sends_all_rows: bool) -> Policy:
    """Class rows are held back as by the default policy, unless all are sent. Raises PolicyRefusal where a
    given policy would refuse the job."""
    if path is None:
        code = spec.distributions
        open_policy = {**OPEN_POLICY, "min_class_holders": 1 if sends_all_rows else None}
        return Policy(federation=spec.federation, count_granularity=1, distributions=code, **open_policy)
    policy = load_policy(path)
    policy.check_job(spec, operator=policy.operators[0] if policy.operators else "")
    return policy


def _row_rule(spec: JobSpec, policy: Path | None, *, sends_all_rows: bool) -> RowRule | None:
    """None for a method that holds back no rows. Raises ConfigError where --all-class-rows has no effect, and
    where it and a policy both decide."""
    if policy is not None and sends_all_rows:
        raise ConfigError("--all-class-rows: --policy says which class rows are sent (min_class_holders)")
    if CLASS_PRESENCE not in spec.method.opening:
        if sends_all_rows:
            method = spec.strategy.name
            raise ConfigError(f"--all-class-rows: not allowed with {method}, which holds back no class rows")
        return None
    if sends_all_rows:
        return RowRule.ALL
    return RowRule.DEFAULT if policy is None else RowRule.POLICY


def _check_noise(spec: JobSpec, state: GlobalState, policy: Policy) -> None:
    """What a given policy says once all noise of a private job is known. Raises PolicyRefusal."""
    if spec.privacy is not None:
        policy.privacy.check_job(spec)
        policy.privacy.check_collusion(spec, JobReleases(spec, state, honest=1).promised_epsilon())


def _folder(
    out: Path,
    spec: JobSpec,
    options: DataOptions,
    policy: Policy,
    *,
    init: Path | None,
    is_secure: bool,
    compute: Compute,
) -> SimulationFolder:
    """How many workers there are, and which engine's, is no part of what it is: they change no number."""
    inputs: dict[str, Any] = {
        "job": spec.to_yaml().decode(),
        "data": options.describe(),
        "policy": policy.model_dump(mode="json"),
        "init": None if init is None else hashlib.sha256(init.read_bytes()).hexdigest(),
        "secure": is_secure,
        "form": [compute.precision.value, compute.memory_format.value],
    }
    identity = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
    return SimulationFolder(out, identity=identity)
