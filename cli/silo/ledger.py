"""`chorale silo ledger`: what each data set has spent, and what only an administrator changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.spec.privacy_spec import MAX_DELTA, MIN_DELTA
from cli.output.facts import json_option, print_json
from cli.silo.facts import ledger_facts
from cli.silo.settings import CONFIG, opened_ledger
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import SiloSettings, load_silo_settings

if TYPE_CHECKING:
    from silo_agent.disclosure.ledger.accounts import Account
    from silo_agent.disclosure.ledger.ledger import Ledger
    from silo_agent.training.data.settings import DataSettings


@click.command("ledger")
@CONFIG
@json_option
@click.option("--check", is_flag=True, help="Compare the ledger with the audit log.")
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
    "and reject it; the agent is stopped, and the data are where they were.",
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
    is_json: bool,
    check: bool,
    delta: tuple[str, float] | None,
    is_recovered: bool,
    restarts: int | None,
    ran: tuple[Path, ...],
    init: tuple[Path, ...],
) -> None:
    """Show the newest roster, every job, and what each data set has spent and may still spend."""
    _check_options(
        {
            "--check": check,
            "--delta": delta is not None,
            "--recover": is_recovered,
        },
        is_json=is_json,
        of_recovery={"--restarts": restarts is not None, "--ran": bool(ran), "--init": bool(init)},
    )
    settings = load_silo_settings(config)
    if delta is not None:
        return _change_delta(*delta, settings)
    with closing(opened_ledger(settings)) as ledger:
        if restarts is not None:
            _recover(ledger, settings, restarts=restarts, ran=ran, init=init)
        if check:
            _check_ledger(ledger, settings)
        elif is_json:
            print_json(ledger_facts(ledger, settings))
        else:
            _show(ledger, settings)


def _check_options(asked: Mapping[str, bool], *, is_json: bool, of_recovery: Mapping[str, bool]) -> None:
    """Raises ConfigError for options that do not go together."""
    named = [option for option, is_given in asked.items() if is_given]
    if is_json and named:
        raise ConfigError(f"--json: expected without {named[0]}")
    if len(named) > 1:
        raise ConfigError(f"{named[0]}: expected without {named[1]}: one at a time")
    for option, is_given in of_recovery.items():
        if is_given and not asked["--recover"]:
            raise ConfigError(f"{option}: expected --recover with it")
    if asked["--recover"] and not of_recovery["--restarts"]:
        raise ConfigError(
            "--recover: expected --restarts with it: each may have made a job's input once more"
        )


def _recover(
    ledger: Ledger, settings: SiloSettings, *, restarts: int, ran: tuple[Path, ...], init: tuple[Path, ...]
) -> None:
    from cli.silo.recovery import recover
    from silo_agent.start import alone

    with alone(settings.directory):
        recover(ledger, settings, restarts=restarts, ran=ran, init=init)


def _show(ledger: Ledger, settings: SiloSettings) -> None:
    """The newest roster, every job, and the accounts: of the silo's data sets first, then the others."""
    from silo_agent.disclosure.ledger.reveals import Decision

    click.echo(f"newest roster: version {ledger.roster_version}")
    for job in ledger.jobs():
        decision = job.decision.value
        if job.is_over:  # what nobody decided waits for nobody any more
            decision = "over" if job.decision is Decision.OFFERED else f"{decision}, over"
        click.echo(f"{job.id}  {decision:<15}  {job.count:>12}  {job.operator}  {job.name}")
    known = {each.id: each for each in ledger.accounts().all()}
    by_account: dict[str, list[DataSettings]] = {}
    for each in settings.data_sets:
        by_account.setdefault(each.account, []).append(each)
    for account, sharing in by_account.items():
        names = ", ".join(each.name for each in sharing)
        title = f"data set{'s' * (len(sharing) > 1)} {names}"
        if account != names:
            title = f"{title} (account {account})"
        _show_account(title, account, known.get(account), settings.policy_of(sharing[0]), settings, ledger)
    for account in sorted(known.keys() - by_account.keys()):
        _show_account(f"account {account}", account, known[account], settings.policy, settings, ledger)


def _check_ledger(ledger: Ledger, settings: SiloSettings) -> None:
    from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT, SPENT_EVENT

    trail = ledger.audit_trail(settings.audit_path)
    revealed, spent = (trail.check(event) for event in (REVEALED_EVENT, SPENT_EVENT))
    click.echo(f"{settings.ledger_path}: {revealed} reveals and {spent} spends agree with the audit log")
    untold = {
        "reveals": len(trail.untold(REVEALED_EVENT)),
        "spends": len(trail.untold(SPENT_EVENT)),
    }
    for what, count in untold.items():
        if count:
            click.echo(
                f"{settings.audit_path}: lacks {count} {what} of the ledger: a crash kept them out (the"
                " agent adds them when it starts), or the log was cut short"
            )


def _change_delta(name: str, delta: float, settings: SiloSettings) -> None:
    from silo_agent.start import alone

    names = [each.name for each in settings.data_sets]
    if name not in names:
        raise ConfigError(f"--delta: expected one of {', '.join(names)}, got {name}")
    if not MIN_DELTA <= delta <= MAX_DELTA:  # false for NaN too
        raise ConfigError(f"--delta: expected {MIN_DELTA:g} to {MAX_DELTA:g}, got {delta:g}")
    policy = load_policy(settings.policy_of(settings.data_set(name)))
    with alone(settings.directory), closing(opened_ledger(settings)) as ledger:
        account = settings.data_set(name).account
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
    title: str, name: str, account: Account | None, policy: Path, settings: SiloSettings, ledger: Ledger
) -> None:
    """Spent and left of one account, what it covers, then the jobs that spent it."""
    from silo_agent.account_units import account_budgets

    budgets = account_budgets(settings, name)
    balance = ledger.budget(policy=load_policy(policy), data_set=name, budgets=budgets).balance()
    parts = [f"epsilon {balance.spent:.4g} of {balance.budget:g} spent", f"{balance.left:.4g} left"]
    if balance.held > balance.spent:
        parts.insert(1, f"{balance.held:.4g} with what is reserved")
    click.echo(f"{title}: {', '.join(parts)} (delta {balance.delta:g})")
    if account is not None and not account.units_are_known:
        click.echo("  its records are not known: it is the only account of this silo")
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
