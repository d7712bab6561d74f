"""`chorale demo`: a whole federation on this machine, each party a process of its own, on real data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chorale.evidence import sign_statement
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.promise import Promise, Spent, if_all_others_collude, promise_of
from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import open_model
from chorale.spec.state import GlobalState
from chorale.transport.tls import load_authority, load_identity
from chorale.transport.wire import MAX_SILOS
from cli.demo.plan import (
    AUTHORITY,
    COORDINATOR,
    EPSILONS,
    FEDERATION,
    LOGS,
    OWN,
    SHARED,
    Plan,
    digits_plan,
    job_plan,
)
from cli.demo.processes import CHORALE, HOLDING, Child, Processes, run_commands
from cli.demo.setup import (
    clean_folder,
    hold_ceremony,
    write_coordinator,
    write_job,
    write_operator,
    write_silo,
)
from cli.given_data import GIVEN, DataOptions, data_options
from cli.output import report
from cli.output.progress import show
from client.errors import JobNotDone, require_extra, with_hint
from client.evidence.pack import collect
from client.history import JobHistory, check_done, score_word
from client.operations import Operations, connect
from client.settings import operator_settings
from crypto.errors import ConfigError
from crypto.identity.certificates import Identity
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import load_silo_settings
from strategies.figure import Figure
from web.report.page import units_told

if TYPE_CHECKING:
    from collections.abc import Iterator

SILOS = 4  # enough for one to be lost
OF_THE_DIGITS = (
    "rounds",
    "strategy",
    "dp",
    "epsilon",
    "noise",
    "steps",
    "seed",
)  # what a job file says by itself
OF_A_JOB = (*GIVEN, "policy", "init")
START_SECONDS = 60.0  # for a party to come up on a busy machine
DROP_ROUND = 2
DROPPED = "demo-drop"  # folder of a run that loses silos
EVIDENCE = "evidence.zip"


@click.command()
@click.option(
    "--job",
    "file",
    type=click.Path(path_type=Path),
    help="Job file to run, on data as `chorale simulate` takes them.  [default: one of the demo's own]",
)
@click.option(
    "--silos",
    type=click.IntRange(SMALLEST_FEDERATION, MAX_SILOS),
    help="Number of silos.  [default: 4, or the job's]",
)
@click.option("--rounds", type=click.IntRange(1, 1000), help="Training rounds.  [default: 10]")
@click.option("--strategy", default="fedavg", show_default=True, help="Training method.")
@click.option("--drop", default=0, show_default=True, help="Kill this many silos in round 2, for good.")
@click.option(
    "--dp",
    type=click.Choice(list(EPSILONS)),
    help="Differential privacy, by record or of summed updates.",
)
@click.option(
    "--epsilon", type=float, help="Privacy budget of the whole run, with --dp.  [default: 8 records, 4 sums]"
)
@click.option(
    "--noise",
    type=click.Choice([SHARED, OWN]),
    help="With --dp records: all silos share the noise in the sum, or each adds its own.  [default: sum]",
)
@click.option(
    "--steps", type=click.IntRange(1, 1000), help="Training steps, with noise in the sum.  [default: 50]"
)
@click.option(
    "--out",
    default=Path("runs/demo"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for the report and the model.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of split and model.")
@data_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="With --job: policy of every silo, which may refuse it.  [default: one that refuses nothing]",
)
@click.option("--init", type=click.Path(path_type=Path), help="With --job: initial model, safetensors.")
def demo(
    file: Path | None,
    silos: int | None,
    rounds: int | None,
    strategy: str,
    drop: int,
    dp: str | None,
    epsilon: float | None,
    noise: str | None,
    steps: int | None,
    out: Path,
    seed: int,
    data_options: DataOptions,
    policy: Path | None,
    init: Path | None,
) -> None:
    """Train on real data with every party a process on this machine.

    Leaves report.json, report.html, model.safetensors and evidence.zip in the --out folder.
    """
    require_extra("demo", "torch", "sklearn", "opacus", "dp_accounting", what="demo")
    _check_given(file)
    if file is None:
        plan = digits_plan(
            silos=silos or SILOS,
            rounds=rounds,
            strategy=strategy,
            drop=drop,
            out=out.resolve(),
            seed=seed,
            dp=dp,
            epsilon=epsilon,
            noise=noise,
            steps=steps,
        )
    else:
        data_options.check_used()
        rules = None if policy is None else load_policy(policy)
        plan = job_plan(
            file, data_options, silos=silos, policy=rules, init=init, drop=drop, out=out.resolve()
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then ends it as Ctrl-C does
    logs = plan.parties / LOGS
    with clean_folder(plan), Processes(logs) as processes:
        logs.mkdir()
        report = _run(plan, processes)
    _conclude(plan, out, report)


def _check_given(file: Path | None) -> None:
    """Raises ConfigError for an option that was given and would change nothing."""
    context = click.get_current_context()
    given = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    for parameter in given:
        option = parameter.opts[0]
        if file is None and parameter.name in OF_A_JOB:
            raise ConfigError(f"{option}: needs --job FILE")
        if file is not None and parameter.name in OF_THE_DIGITS:
            raise ConfigError(f"{option}: cannot be combined with --job {file}")


def _run(plan: Plan, processes: Processes) -> dict[str, Any]:
    """From the first key to the report."""
    _say(f"making keys and certificates for {len(plan.silos)} silos, a coordinator and an operator")
    hold_ceremony(plan)
    address, silos = _start(plan, processes)
    config = write_operator(plan, coordinator=address)
    with connect(operator_settings(config)) as (operations, identity):
        processes.wait_until(
            lambda: sum(silo.connected for silo in operations.silos().silos) == len(plan.silos),
            what="all silos connected",
            seconds=START_SECONDS,
        )
        _say(f"submitting job {plan.job['name']}: {plan.strategy}, {plan.count}")
        signed, settings = str(plan.signed_job), str(config)
        submit = ["job", "submit", str(write_job(plan)), "--save", signed, "--config", settings]
        given = [] if plan.init is None else ["--init", str(plan.init)]
        (output,) = run_commands([[*submit, *given]])
        digest = operations.find(output.split()[0])
        promised = _promise(plan, operations, digest) if plan.is_private else None
        history = _follow(plan, operations, digest, silos)
        history.summary, data = operations.fetch(digest, also_untrained=True)
        write_atomic(plan.out / "model.safetensors", b"".join(data), mode=0o644)
        write_atomic(plan.out / EVIDENCE, _evidence(plan, operations, identity, digest), mode=0o644)
    spent = {} if promised is None else _spent(plan, promised, digest)
    promise = None if promised is None else promised.promise
    document = report.document(history, policy=plan.allowed, promise=promise, spent=spent)
    report.write_report(document, plan.out)
    try:
        check_done(history)  # a job that was stopped leaves its model and report too
    except JobNotDone as error:
        raise with_hint(error, f"each party's log says why: {plan.parties / LOGS}") from None
    return document


def _start(plan: Plan, processes: Processes) -> tuple[str, list[Child]]:
    """Start coordinator and silos; returns the coordinator's address and the silos' processes."""
    _say("starting the coordinator")
    arguments = ["coordinator", "run", "--config", str(write_coordinator(plan))]
    processes.start(COORDINATOR, arguments, module=HOLDING if plan.drop else CHORALE)
    endpoint = plan.folder(COORDINATOR) / "state" / "endpoint.json"
    processes.wait_until(endpoint.exists, what="the coordinator's endpoint", seconds=START_SECONDS)
    address = str(json.loads(endpoint.read_text())["grpc"])
    _say(f"starting {len(plan.silos)} silos; the coordinator listens on {address}")
    configs = {name: write_silo(plan, name, coordinator=address) for name in plan.names}
    started = [
        processes.start(name, ["silo", "run", "--config", str(path)]) for name, path in configs.items()
    ]
    return address, started


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promised:
    """What a private job promises, and the job and a state of it that this follows from."""

    promise: Promise
    spec: JobSpec
    state: GlobalState


def _promise(plan: Plan, operations: Operations, digest: bytes) -> _Promised:
    """What the job promises, told before its first round, with what few silos make of it."""
    spec = JobSpec.from_yaml(plan.signed_job.read_bytes(), source=str(plan.signed_job))
    _, data = operations.fetch(digest, also_untrained=True)
    state = open_model(b"".join(data))[0]
    promise = promise_of(spec, state)
    for line in promise.lines():
        _say(line)
    return _Promised(promise=promise, spec=spec, state=state)


def _evidence(plan: Plan, operations: Operations, identity: Identity, digest: bytes) -> bytes:
    """All that proves the job. Every institution is on this machine, so each hands its statement on at once,
    but for those that were killed."""
    from silo_agent.disclosure.ledger.ledger import Ledger
    from silo_agent.evidence import silo_statement

    statements = {}
    for name in sorted(set(plan.names) - set(plan.doomed)):
        settings = load_silo_settings(plan.folder(name) / "silo.yaml")
        with closing(Ledger(settings.ledger_path)) as ledger:
            statement = silo_statement(settings, ledger, digest.hex())
        statements[name] = sign_statement(statement, load_identity(settings.identity))
    authority = load_authority(plan.folder(AUTHORITY) / "authority.crt")
    return collect(operations, digest, identity=identity, authority=authority, silos=statements)


def _spent(plan: Plan, promised: _Promised, digest: bytes) -> dict[str, Spent]:
    """Epsilon of each silo's data set, from its own ledger; no silo shows it to another party."""
    from silo_agent.disclosure.ledger.ledger import Ledger

    spent: dict[str, Spent] = {}
    alone = JobReleases(promised.spec, promised.state, honest=1)
    for name in plan.names:
        settings = load_silo_settings(plan.folder(name) / "silo.yaml")
        with closing(Ledger(settings.ledger_path)) as ledger:
            account = settings.data_sets[0].account
            budget = ledger.budget(policy=load_policy(settings.policy), data_set=account)
            collude = alone.promised_epsilon(budget.spent_inputs(digest))
            spent[name] = Spent(epsilon=budget.spent()[0], if_all_others_collude=collude)
    return spent


def _follow(plan: Plan, operations: Operations, digest: bytes, silos: list[Child]) -> JobHistory:
    history, notes = JobHistory(), list[str]()
    doomed = {child.name: child for child in silos if child.name in plan.doomed}
    is_over = threading.Event()
    reaper = threading.Thread(
        target=_reap, args=(plan.parties / LOGS / f"{COORDINATOR}.log", doomed, notes, is_over)
    )
    reaper.start()
    try:
        show(operations.watch(digest), history, notes=notes)
    finally:
        is_over.set()
        reaper.join()
    return history


def _reap(log: Path, doomed: dict[str, Child], notes: list[str], is_over: threading.Event) -> None:
    """Kill each doomed silo once the coordinator reports its shares of the round: before any envelope
    is relayed, so the others have to recover its masks."""
    waiting = dict(doomed)
    for record in _records(log, is_over):
        if not waiting:
            return
        is_moment = record.get("event") == "shares received" and record.get("phase") == "train"
        if not is_moment or record.get("round") != DROP_ROUND:
            continue
        child = waiting.pop(str(record.get("silo")), None)
        if child is not None:
            child.kill()
            notes.append(f"killed {child.name} in round {DROP_ROUND}, after its shares were received")
            if not sys.stderr.isatty():
                _say(notes[-1])


def _records(log: Path, is_over: threading.Event) -> Iterator[dict[str, object]]:
    """JSON lines of a log as they are written."""
    with log.open("rb") as stream:
        while not is_over.is_set():
            start = stream.tell()
            line = stream.readline()
            if not line.endswith(b"\n"):
                stream.seek(start)
                is_over.wait(0.02)
            elif line.startswith(b"{"):
                yield json.loads(line)


def _conclude(plan: Plan, out: Path, report: dict[str, Any]) -> None:
    """Results on stdout, and where to go from here."""
    command, silo = _own_command(), out / "federation" / plan.names[0]
    figure, main = report["intervals"]["final_figure"], report["main_figure"]
    line = f"final {main} {'unknown' if figure is None else Figure.from_json(figure)}"
    has_own = report["personal_accuracy"] is not None
    if figure is not None or not has_own:  # silos that train alone have no common model to test
        click.echo(line)
    if report["search"]:
        click.echo(report["search"])
    if has_own:
        click.echo(
            f"personal {score_word(main)} {report['personal_accuracy']:.4f} +- "
            f"{report['personal_accuracy_deviation']:.4f} over {report['personal_silos']} silos, "
            "each its own model on its own hold-out"
        )
    if report["epsilon"] is not None:
        spent = (f"{silo} {epsilon:.4g}" for silo, epsilon in report["epsilon_spent_by_silo"].items())
        promised = f"epsilon {report['epsilon']:.4g} at delta {report['delta']:g}"
        click.echo(f"{promised} planned for the whole job, {units_told(report)}")
        click.echo(
            f"against the coordinator; {if_all_others_collude(report['epsilon_if_all_others_collude'])}"
        )
        click.echo(f"epsilon spent for each record, by each silo's ledger: {', '.join(spent)}")
        collude = report["epsilon_spent_by_silo_if_all_others_collude"]
        spent = (f"{silo} {'no bound' if each is None else f'{each:.4g}'}" for silo, each in collude.items())
        click.echo(f"the same if all other silos collude: {', '.join(spent)}")
    click.echo(f"{out / 'report.html'}  {out / 'report.json'}  {out / 'model.safetensors'}  {out / EVIDENCE}")
    click.echo("try next:")
    click.echo(f"  {command} evidence verify {out / EVIDENCE} --model {out / 'model.safetensors'}")
    shown = "personal" if has_own else "ledger" if plan.is_private else "policy"
    click.echo(f"  {command} silo {shown} --config {silo / 'silo.yaml'}")
    privacy = plan.job.get("privacy") or {}
    dp = "".join(f" --dp {word}" for word in EPSILONS if privacy.get(word))
    if out.name != DROPPED:
        click.echo(f"  {command} demo{dp} --silos 7 --drop 2 --out {out.parent / DROPPED}")


def _own_command() -> str:
    """How this shell would call the command again."""
    if shutil.which("chorale"):
        return "chorale"
    program = Path(sys.executable).parent / "chorale"
    return os.path.relpath(program) if program.exists() else f"{os.path.relpath(sys.executable)} -m cli.main"


def _say(text: str) -> None:
    click.echo(f"{FEDERATION}: {text}", err=True)
