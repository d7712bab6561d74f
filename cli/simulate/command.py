"""`chorale simulate`: a job's rounds in one process, on one machine's data."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chorale.privacy.plan import planned_epsilon_if_all_others_collude
from chorale.privacy.promise import promise_of
from chorale.results import RoundResult, finite
from chorale.runtime.files import read_limited
from chorale.spec.fields import MAX_SIMULATED_SILOS
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import MAX_BYTES, parse_mapping
from chorale.spec.state import GlobalState, state_from_bytes
from cli.demo.plan import OPEN_POLICY
from cli.given_data import DataOptions, data_options
from cli.simulate.progress import ProgressLine
from client.errors import require_extra
from client.history import personal_of, score_word
from client.submission import draw_notes, head_notes, initial_bytes, read_spec, solved, with_code
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.policy.policy import Policy, load_policy
from silo_agent.settings import MemoryFormat, Precision
from simulation.engine import Progress, Simulation
from simulation.folder import SimulationFolder
from simulation.on_ray import Ray
from simulation.silos import Compute, OwnObjectives
from simulation.stored import Scratch
from strategies.phases.evaluation import EVALUATE
from strategies.server_optimizer import steps_taken

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

NEVER = datetime(2100, 1, 1, tzinfo=UTC)  # not_after of a file that names none: the digest must not change
MAX_WORKERS = 256
PROCESSES, RAY = "processes", "ray"  # engines


@click.command()
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
    help="Policy of every silo, which may refuse the job.  [default: one that refuses nothing]",
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
    out: Path | None,
    data_options: DataOptions,
) -> None:
    """Run the rounds of JOB.yaml on this machine or on Ray: the agents' own training, without network or
    ledger.

    Prints one JSON line a round, or writes them to rounds.jsonl in the --out folder.
    """
    require_extra("silo", "torch", what="simulate, whose silos train in this process,")
    options = data_options
    options.check_used()
    ray = _ray(engine, address=address, gpus=gpus, workers=parallel, device=device)
    compute = Compute(
        device=device, precision=Precision(precision), memory_format=MemoryFormat(memory_format)
    )
    spec = _spec(file, options, silos)
    _check_compute(spec, compute)
    unusual = [f"unusual: passes over a rule: {rule}" for rule in spec.method.passed_over]
    for note in (*unusual, *draw_notes(spec), *head_notes(spec, init)):
        click.echo(note, err=True)
    rules = _policy(spec, policy)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then ends it as Ctrl-C does
    folder = None
    if out is not None:
        folder = _folder(out, spec, options, rules, init=init, is_secure=is_secure, compute=compute)
    held: AbstractContextManager[Progress | None] = nullcontext() if folder is None else folder.held()
    with held as progress:
        objectives = options.objectives()
        data = options.load(spec, Scratch(None if folder is None else folder.scratch_path))
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
        )
        if progress is not None:
            simulation.progress = progress
        _run(simulation, folder, shown)
        _conclude(simulation, folder)


def _run(simulation: Simulation, folder: SimulationFolder | None, shown: ProgressLine) -> None:
    spec = simulation.job.spec
    drawn = f"{spec.named_per_round} of {len(spec.silos)} silos"
    click.echo(f"{spec.strategy.name}, {spec.count} of {drawn}; {simulation.computed_by}", err=True)
    following = simulation.progress.following
    if following is not None and following[0] > 1:
        taken = steps_taken(simulation.state)
        done = f"round {following[0] - 1}" if spec.steps is None else f"step {taken}"
        click.echo(f"continuing after {done}", err=True)
    for result in simulation.run():
        shown.round_ended(result.round)
        shown.clear()
        if folder is None:
            click.echo(json.dumps(result.to_json()))
        else:
            folder.add(result, simulation.progress)
        title = f"round {result.round}/{spec.rounds}"
        if spec.steps is not None:
            taken = steps_taken(simulation.state)
            title = f"step {taken + bool(result.reason)} of {spec.steps}"
        click.echo(_line(result, title=title, main=spec.method.task.main), err=True)
    shown.clear()


def _conclude(simulation: Simulation, folder: SimulationFolder | None) -> None:
    closing = {
        kind: {name: finite(value) for name, value in figures.items()}
        for kind, figures in simulation.closing.items()
    }
    own = personal_of({name: value for figures in closing.values() for name, value in figures.items()})
    main, spec = simulation.job.strategy.task.main, simulation.job.spec
    noise = None
    if spec.privacy is not None and simulation.final_accuracy is not None:
        tested = simulation.closing[EVALUATE].get("tested", 0.0)
        deviation = promise_of(spec, simulation.state).accuracy_deviation
        noise = finite(deviation(simulation.final_accuracy, tested))
    document: dict[str, Any] = {
        "closing": closing,
        "final_accuracy": finite(simulation.final_accuracy),
        "accuracy_noise": noise,
        "final_loss": finite(simulation.final_loss),
        "main_figure": main,
        "final_figure": finite(simulation.final_figure),
        "final_personal_accuracy": None if own is None else own.accuracy,
        "model_after_round": simulation.model[0],
        "stopped": simulation.stopped,
        "state_digest": simulation.state_digest,
    }
    if simulation.progress.tables:
        document["tables"] = simulation.progress.tables
    if simulation.stopped:
        click.echo(simulation.stopped, err=True)
    if simulation.job.spec.keep is not None:
        click.echo(f"kept: the model after round {simulation.model[0]}", err=True)
    if folder is not None:
        folder.finish(simulation)
        document["model"] = str(folder.model_path)
    if noise is not None:
        told = f"final accuracy {simulation.final_accuracy:.4f}"
        click.echo(f"{told} (measured under noise of standard deviation {noise:.3f})", err=True)
    if own is not None:
        click.echo(f"final personal models: {score_word(main)} {own}", err=True)
    click.echo(json.dumps(document))


def _spec(file: Path, options: DataOptions, silos: int | None) -> JobSpec:
    listed = parse_mapping(read_limited(file, MAX_BYTES), source=str(file)).get("silos", ())
    names = options.names(listed if isinstance(listed, list) else (), silos)
    spec = with_code(read_spec(file, not_after=NEVER, silos=names if options.silo_files or silos else ()))
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


def _policy(spec: JobSpec, path: Path | None) -> Policy:
    """Raises PolicyRefusal where a given policy would refuse the job."""
    if path is None:
        code = spec.distributions
        return Policy(federation=spec.federation, count_granularity=1, distributions=code, **OPEN_POLICY)
    policy = load_policy(path)
    policy.check_job(spec, operator=policy.operators[0] if policy.operators else "")
    return policy


def _check_noise(spec: JobSpec, state: GlobalState, policy: Policy) -> None:
    """What a given policy says once all noise of a private job is known. Raises PolicyRefusal."""
    if spec.privacy is not None:
        policy.privacy.check_job(spec)
        policy.privacy.check_collusion(spec, planned_epsilon_if_all_others_collude(spec, state))


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
    told: dict[str, Any] = {
        "job": spec.to_yaml().decode(),
        "data": options.describe(),
        "policy": policy.model_dump(mode="json"),
        "init": None if init is None else hashlib.sha256(init.read_bytes()).hexdigest(),
        "secure": is_secure,
    }
    if compute != Compute(device=compute.device):  # a folder of earlier releases says nothing of it
        told["form"] = [compute.precision.value, compute.memory_format.value]
    identity = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
    return SimulationFolder(out, identity=identity)


def _line(result: RoundResult, *, title: str, main: str) -> str:
    parts = [title, f"{len(result.silos)} silos, {result.wall_seconds:.2f} s"]
    if result.reason:
        parts.append(f"used up ({result.reason})")
    figure, loss = finite(result.figures.get(main)), finite(result.loss)
    if figure is not None:
        told = "" if loss is None or main == "loss" else f", loss {loss:.3f}"
        parts.append(f"model after round {result.round - 1}: {main} {figure:.3f}{told}")
    own = personal_of(result.figures)
    if own is not None:
        parts.append(f"personal models: {score_word(main)} {own}")
    if result.left_out:
        parts.append(f"without {', '.join(result.left_out)}")
    return "  ".join(parts)
