"""`chorale silo`: the institution's side. Every command reads the agent's own settings file."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.runtime.files import write_atomic
from chorale.spec.privacy_spec import MAX_DELTA, MIN_DELTA
from cli.errors import require_extra, with_hint
from cli.keys import csr_command
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from silo_agent.policy.policy import Policy, load_policy
from silo_agent.settings import SiloSettings, load_silo_settings

if TYPE_CHECKING:
    from silo_agent.data.settings import DataSettings
    from silo_agent.ledger.accounts import Account, Charged
    from silo_agent.ledger.ledger import Ledger, LedgerJob
    from silo_agent.local_storage.personal_models import KeptModel

CONFIG = click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The silo's settings file."
)


@click.group()
def silo() -> None:
    """Run and inspect an institution's agent."""


silo.add_command(csr_command("silo"))


@silo.command()
@CONFIG
def run(config: Path) -> None:
    """Take part in the federation until stopped (SIGTERM or Ctrl-C)."""
    settings = load_silo_settings(config)
    if settings.objective is None:
        require_extra("silo", "torch", "dp_accounting", what="a silo with the built-in training")
    require_extra("privacy", "dp_accounting", what="a silo's account of its privacy budget")
    from silo_agent.agent import run as run_agent

    run_agent(settings)


@silo.command()
@CONFIG
@click.option(
    "--job", "job_file", type=click.Path(path_type=Path), help="Also check a job, as it would run here."
)
@click.option(
    "--init", type=click.Path(path_type=Path), help="Initial model of the job, safetensors, if one is given."
)
def check(config: Path, job_file: Path | None, init: Path | None) -> None:
    """Check settings, certificate, policy and data, and send nothing.

    With --job also whether the policy accepts it, every record against it, and one batch of each of its
    phases. Nothing is spent and nothing written. Ends with 0 only if all is well.
    """
    from cli.silo_check import check_silo

    if init is not None and job_file is None:
        raise ConfigError("--init: expected --job with it")
    check_silo(config, job_file, init)


@silo.command()
@CONFIG
def policy(config: Path) -> None:
    """Show the effective policy and what it would refuse, of each data set where there are several."""
    settings = load_silo_settings(config)
    for data_set in settings.data_sets:
        path = settings.policy_of(data_set)
        if len(settings.data_sets) > 1:
            click.echo(f"data set {data_set.name}: {path}")
        click.echo(load_policy(path).describe())


@silo.command()
@CONFIG
@click.argument("job", required=False)
@click.option(
    "--more-data-refusals",
    "more_refusals",
    type=click.IntRange(1, 1_000_000),
    help="Allow JOB so many more refusals for its data, beyond the policy's max_data_refusals.",
)
@click.option(
    "--more-cohort-changes",
    "more_changes",
    type=click.IntRange(1, 1_000_000),
    help="Allow JOB so many more sums over overlapping cohorts, beyond the policy's max_cohort_changes.",
)
def approve(config: Path, job: str | None, more_changes: int | None, more_refusals: int | None) -> None:
    """Approve JOB; without it, list the jobs that wait."""
    from silo_agent.ledger.reveals import Decision

    for option, more in (("--more-cohort-changes", more_changes), ("--more-data-refusals", more_refusals)):
        if more is not None and job is None:
            raise ConfigError(f"{option}: expected JOB with it")
    settings = load_silo_settings(config)
    notes = {Decision.OFFERED: "", Decision.SUSPENDED: "  suspended: see the log for why"}
    with closing(_ledger(settings)) as ledger:
        if job is not None:
            approved = ledger.decide(job, Decision.APPROVED)
            click.echo(f"{approved.id}: {approved.name} by {approved.operator} is approved")
            if more_changes is not None:
                data_set = _data_set_of(approved, settings).name
                account = ledger.accounts().charged(data_set).account
                ledger.grant_cohort_changes(approved.job_digest, more_changes, data_set=account)
                click.echo(f"{approved.id}: {more_changes} more cohort changes on data set {data_set}")
            if more_refusals is not None:
                data_set = _data_set_of(approved, settings).name
                account = ledger.accounts().charged(data_set).account
                ledger.grant_data_refusals(approved.job_digest, more_refusals, data_set=account)
                click.echo(f"{approved.id}: {more_refusals} more data refusals on data set {data_set}")
            for warning in _warnings(approved, settings):
                click.echo(f"{approved.id}: {warning}")
            return
        waiting = [each for each in ledger.jobs() if each.decision in notes]
        if not waiting:
            click.echo("no job waits for approval")
        for each in waiting:
            click.echo(
                f"{each.id}  {each.name}  {each.rounds} rounds  by {each.operator}  "
                f"{each.offered:%Y-%m-%d %H:%M}{notes[each.decision]}"
            )
            for warning in _warnings(each, settings):
                click.echo(f"  {warning}")


def _data_set_of(job: LedgerJob, settings: SiloSettings) -> DataSettings:
    """What the job is about. Raises PolicyRefusal where this silo has no such data set."""
    from chorale.job import JobSpec
    from silo_agent.rounds.data_sets import name_for

    if job.spec_bytes is None:
        return settings.data_sets[0]
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    return settings.data_set(name_for(spec, [each.name for each in settings.data_sets]))


def _warnings(job: LedgerJob, settings: SiloSettings) -> list[str]:
    """What an institution should know before it approves the job."""
    from silo_agent.data.settings import unit_told

    try:
        data_set = _data_set_of(job, settings)
        policy = load_policy(settings.policy_of(data_set))
    except PolicyRefusal as error:
        return [str(error)]
    found = (_foreign_code(job), _given_weights(job, policy), _what_sums_tell(job))
    promises = _promises(job, policy)
    # whether a function's data have units, no setting says
    if promises and (data_set.unit is not None or (data_set.source is None and data_set.module is None)):
        promises.append(unit_told(data_set, has_units=data_set.unit is not None))
    return [*(warning for warning in found if warning), *promises]


def _given_weights(job: LedgerJob, policy: Policy) -> str:
    """What it means that a job's starting weights were given; nothing where this silo draws them itself."""
    from chorale.job import JobSpec, SignedJob
    from chorale.spec.state import state_digest, state_to_bytes
    from silo_agent.rounds.first_state import NOT_THAT_OF_THE_JOB, drawn_arrays

    if job.spec_bytes is None:
        return ""
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    if spec.distributions:  # to draw them runs code that nobody may have allowed
        return (
            "whether its starting weights are given is found out at its first phase: its own code makes them"
        )
    signed = SignedJob(spec_bytes=job.spec_bytes, signature=b"", operator_certificate=b"")
    try:
        max_bytes = policy.max_state_megabytes << 20
        arrays = drawn_arrays(spec, signed.base, max_bytes=max_bytes)
        if state_digest(state_to_bytes(arrays)).hex() == spec.initial_state:
            return ""
        why = NOT_THAT_OF_THE_JOB
    except ConfigError as error:
        why = str(error)
    except Exception as error:  # options of any operator, which no model has tried
        why = f"drawing them fails with {type(error).__name__}"
    warning = (
        f"its starting weights are given, SHA-256 {spec.initial_state} ({why}): an operator's own starting "
        "weights can be built to read single records out of sums"
    )
    try:
        policy.check_given_state(spec, why=why)
    except PolicyRefusal:
        return f"{warning}; this silo's policy refuses them (initial_state)"
    return warning


def _promises(job: LedgerJob, policy: Policy) -> list[str]:
    """What a private job's plan costs a record here, against few colluders and against all other silos."""
    from chorale.job import JobSpec, SignedJob
    from cli.output.promise import promise_of
    from silo_agent.rounds.first_state import drawn_arrays

    if job.spec_bytes is None:
        return []
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    if spec.privacy is None:
        return []
    if spec.distributions or not spec.model.is_built_in:
        return ["what it costs is found out at its first phase: its model is not built in"]
    signed = SignedJob(spec_bytes=job.spec_bytes, signature=b"", operator_certificate=b"")
    try:
        shapes = drawn_arrays(spec, signed.base, max_bytes=policy.max_state_megabytes << 20)
        promise = promise_of(spec, shapes)
        policy.privacy.check_collusion(spec, promise.epsilon_if_all_others_collude)
    except PolicyRefusal as refusal:
        return [*promise.lines(), f"this silo's policy refuses it: {refusal}"]
    except ChoraleError as error:
        return [f"what it costs cannot be told: {error}"]
    except Exception as error:  # options of any operator, which no model has tried
        return [f"what it costs cannot be told: drawing its weights fails with {type(error).__name__}"]
    return promise.lines()


def _foreign_code(job: LedgerJob) -> str:
    """Whose code the job runs on this silo's data, and with which options; nothing of Chorale's own."""
    from chorale.job import JobSpec

    if job.spec_bytes is None:
        return ""
    plug_ins = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}").plug_ins
    if not plug_ins:
        return ""
    named = [f"{field} {each.name} of {each.source} {each.options}" for field, each in plug_ins.items()]
    return f"it runs code that is not Chorale's on this silo's data: {', '.join(named)}"


def _what_sums_tell(job: LedgerJob) -> str:
    """What no mask hides in the sums of a job without noise; nothing where noise covers them."""
    from chorale.job import JobSpec

    if job.spec_bytes is None:
        return ""
    if JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}").privacy is not None:
        return ""
    return (
        "it has no noise, so its sums can hold single training records and tell who was in the data "
        "(privacy.required in the policy refuses such jobs)"
    )


@silo.command("ledger")
@CONFIG
@click.option("--check", is_flag=True, help="Compare the ledger with the audit log.")
@click.option(
    "--new-generation",
    metavar="NAME",
    help="Open a new account for data set NAME, of those records alone that no account holds; the agent is "
    "stopped, and trains on them from its next start on.",
)
@click.option(
    "--delta",
    type=(str, float),
    metavar="NAME DELTA",
    help="Value all that the account of data set NAME spent, and will spend, at another delta; the agent is "
    "stopped.",
)
@click.option(
    "--recover",
    "is_recovered",
    is_flag=True,
    help="The ledger was put back from a snapshot: charge every job that may have run since its whole plan, "
    "and reject it.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0, 1_000_000),
    help="With --recover: how often the agent was started between the snapshot and now, crashes included.",
)
@click.option(
    "--ran",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --recover: the signed text of a job that ran since the snapshot and that the ledger does not "
    "show as approved. May be given several times.",
)
@click.option(
    "--init",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --recover: starting weights, safetensors, of such a job whose model is not built in.",
)
def show_ledger(
    config: Path,
    check: bool,
    new_generation: str | None,
    delta: tuple[str, float] | None,
    is_recovered: bool,
    restarts: int | None,
    ran: tuple[Path, ...],
    init: tuple[Path, ...],
) -> None:
    """Show the newest roster, every job, and what each data set has spent and may still spend."""
    from silo_agent.ledger.accounts import Charged

    asked = {
        "--check": check,
        "--new-generation": new_generation is not None,
        "--delta": delta is not None,
        "--recover": is_recovered,
    }
    named = [option for option, given in asked.items() if given]
    if len(named) > 1:
        raise ConfigError(f"{named[0]}: expected without {named[1]}: one at a time")
    for option, given in (("--restarts", restarts is not None), ("--ran", ran), ("--init", init)):
        if given and not is_recovered:
            raise ConfigError(f"{option}: expected --recover with it")
    if is_recovered and restarts is None:
        raise ConfigError(
            "--recover: expected --restarts with it: each may have made a job's input once more"
        )
    settings = load_silo_settings(config)
    if new_generation is not None:
        return _open_generation(new_generation, settings)
    if delta is not None:
        return _change_delta(*delta, settings)
    with closing(_ledger(settings)) as ledger:
        if restarts is not None:
            from cli.silo_recovery import recover

            recover(ledger, settings, restarts=restarts, ran=ran, init=init)
        if check:
            return _check_ledger(ledger, settings)
        click.echo(f"newest roster: version {ledger.roster_version}")
        for job in ledger.jobs():
            click.echo(f"{job.id}  {job.decision:<9}  {job.rounds:>5} rounds  {job.operator}  {job.name}")
        accounts = ledger.accounts()
        known, shown = {each.id: each for each in accounts.all()}, set()
        for each in settings.data_sets:
            charged = accounts.charged(each.name)
            title = f"data set {each.name}"
            if charged.account != each.name:
                title = f"{title} (account {charged.account})"
            shown.add(charged.account)
            _show_account(title, charged, known.get(charged.account), settings.policy_of(each), ledger)
        for account in sorted(known.keys() - shown):
            charged = Charged(account=account)
            _show_account(f"account {account}", charged, known[account], settings.policy, ledger)


@silo.command("personal")
@CONFIG
@click.argument("job", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="File for a copy of JOB's model, safetensors.")
def show_personal(config: Path, job: str | None, out: Path | None) -> None:
    """Show or copy the models that jobs fine-tuned on this silo's own data.

    Without JOB all of them. They are made without noise and belong to this institution: giving one away
    discloses something of its data.
    """
    from silo_agent.local_storage.personal_models import PersonalModels

    if out is not None and job is None:
        raise ConfigError("--out: expected JOB with it; without --out all jobs are listed")
    settings = load_silo_settings(config)
    with closing(_ledger(settings)) as ledger:
        # which answers left is the same for every data set
        reveals = ledger.reveals(policy=load_policy(settings.policy), data_set=settings.data_sets[0].name)
        models = PersonalModels(
            settings.personal_directory,
            is_revealed=lambda key: reveals.is_revealed(
                key.job_digest, key.round, key.phase, silo=settings.name
            ),
        )
        found = models.kept() if job is None else [models.find(job)]
        for kept in found:
            click.echo(_personal_line(kept, is_confirmed=models.is_confirmed(kept)))
        if not found:
            click.echo("no job has fine-tuned a model here")
        if out is not None:
            write_atomic(out, found[0].path.read_bytes())
            click.echo(f"{out}: the personal model of job {found[0].id}")


def _personal_line(kept: KeptModel, *, is_confirmed: bool) -> str:
    """Which job's, how good on this silo's hold-out, from which global model, where."""
    facts = kept.facts
    measured = "no hold-out to test it on"
    if "accuracy" in facts:
        measured = (
            f"accuracy {facts['accuracy']}, the global model {facts['accuracy_of_global_model']}, "
            f"on {facts['tested']} samples"
        )
    origin = "the one that the other silos had" if is_confirmed else "not confirmed by a sum with this silo"
    return (
        f"{kept.id}  {facts['name']}  {facts['method']}  {measured}\n"
        f"  from global model {facts['global_model'][:12]}, {origin}\n"
        f"  {kept.path}"
    )


def _check_ledger(ledger: Ledger, settings: SiloSettings) -> None:
    from silo_agent.ledger.ledger import REVEALED_EVENT, SPENT_EVENT

    revealed, spent = (ledger.check(settings.audit_path, event) for event in (REVEALED_EVENT, SPENT_EVENT))
    click.echo(f"{settings.ledger_path}: {revealed} reveals and {spent} spends agree with the audit log")
    untold = {
        "reveals": len(ledger.untold(settings.audit_path, REVEALED_EVENT)),
        "spends": len(ledger.untold(settings.audit_path, SPENT_EVENT)),
    }
    for what, count in untold.items():
        if count:
            click.echo(
                f"{settings.audit_path}: lacks {count} {what} of the ledger: a crash kept them out (the"
                " agent adds them when it starts), or the log was cut short"
            )


def _open_generation(name: str, settings: SiloSettings) -> None:
    from silo_agent.agent import alone

    names = [each.name for each in settings.data_sets]
    if name not in names:
        raise ConfigError(f"--new-generation: expected one of {', '.join(names)}, got {name}")
    data = settings.data_set(name)
    if data.source is not None:
        raise ConfigError(
            f"--new-generation: the records of data set {name} cannot be read without a job, so none is "
            "provably outside an account"
        )
    delta = load_policy(settings.policy_of(data)).privacy.delta
    with alone(settings.directory), closing(_ledger(settings)) as ledger:
        account = ledger.accounts().open_generation(name, delta=delta)
    click.echo(
        f"data set {name}: account {account} is open; from the agent's next start on, jobs train on the "
        "records that no other account holds, and on no other"
    )


def _change_delta(name: str, delta: float, settings: SiloSettings) -> None:
    from silo_agent.agent import alone

    names = [each.name for each in settings.data_sets]
    if name not in names:
        raise ConfigError(f"--delta: expected one of {', '.join(names)}, got {name}")
    if not MIN_DELTA <= delta <= MAX_DELTA:  # false for NaN too
        raise ConfigError(f"--delta: expected {MIN_DELTA:g} to {MAX_DELTA:g}, got {delta:g}")
    policy = load_policy(settings.policy_of(settings.data_set(name)))
    with alone(settings.directory), closing(_ledger(settings)) as ledger:
        account = ledger.accounts().charged(name).account
        before = ledger.budget(policy=policy, data_set=account).balance()
        ledger.accounts().change_delta(account, delta, unix_seconds=time.time())
        after = ledger.budget(policy=policy, data_set=account).balance()
    click.echo(
        f"data set {name}: what account {account} spent is epsilon {after.spent:.4g} at delta {delta:g}; it "
        f"was {before.spent:.4g} at {before.delta:g}"
    )
    if policy.privacy.delta != delta:
        click.echo(f"the agent starts once the policy says so too: privacy.delta: {delta:g}")


def _show_account(
    title: str, charged: Charged, account: Account | None, policy: Path, ledger: Ledger
) -> None:
    """Spent and left of one account, what it covers, then the jobs that spent it."""
    balance = ledger.budget(policy=load_policy(policy), data_set=charged.account).balance()
    told = [f"epsilon {balance.spent:.4g} of {balance.budget:g} spent", f"{balance.left:.4g} left"]
    if balance.held > balance.spent:
        told.insert(1, f"{balance.held:.4g} with what is reserved")
    click.echo(f"{title}: {', '.join(told)} (delta {balance.delta:g})")
    for other in charged.also:
        click.echo(f"  also charged to account {other}, which holds or may hold records of it")
    if account is not None and not account.units_are_known:
        click.echo("  its records are not known: every data set of this silo is charged to it")
    if account is not None and account.is_generation:
        click.echo("  a new generation: records that other accounts hold are left out")
    names = {job.job_digest: job.name for job in ledger.jobs()}
    for job in balance.jobs:
        cost = "not private" if job.unnoised else f"{job.epsilon:.4g}"
        name = names.get(job.job_digest, "")
        click.echo(f"  {job.job_digest.hex()[:12]}  {cost:>11}  {job.inputs:>6} inputs  {name}".rstrip())
    if balance.unnoised:
        click.echo(
            f"  {balance.unnoised} inputs left without noise: the data set as a whole has no finite epsilon "
            "(privacy.required in the policy refuses such jobs)"
        )


def _ledger(settings: SiloSettings) -> Ledger:
    """The ledger that the agent made. Raises ConfigError rather than make an empty one elsewhere."""
    from silo_agent.ledger.ledger import Ledger

    if not settings.ledger_path.exists():
        missing = ConfigError(
            f"{settings.ledger_path}: no such ledger; the agent makes it when it first runs"
        )
        raise with_hint(
            missing, "paths are relative to the folder the agent is started in; call it from there"
        )
    return Ledger(settings.ledger_path)
