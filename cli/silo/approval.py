"""`chorale silo show`, `approve` and `reject`: which jobs an institution takes part in, with open eyes."""

from __future__ import annotations

import os
import pwd
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click

from chorale.privacy.remembered import remembering
from cli.errors import CommandFailed
from cli.output.facts import json_option, print_json
from cli.silo.facts import job_facts
from cli.silo.settings import CONFIG, opened_ledger
from crypto.errors import ConfigError, printable
from silo_agent.settings import SiloSettings, load_silo_settings

BY = click.option(
    "--by", metavar="NAME", help="Who decides, for ledger and audit log; default: the login of this machine."
)


@click.command()
@CONFIG
@click.argument("job", required=False)
@json_option
@click.option(
    "--job", "is_text", is_flag=True, help="Print JOB as it was signed: the SHA-256 of these bytes is its id."
)
@remembering()
def show(config: Path, job: str | None, is_json: bool, is_text: bool) -> None:
    """Show what JOB would read here, compute, sum and cost, and what of it is new.

    Without JOB it lists those that wait, as `approve` does. Everything is computed at this silo, none of the
    job's own code runs, and no data are opened.
    """
    from cli.silo.screen import as_json, fitted, screen
    from silo_agent.approval.reading import read_view, signed_bytes

    settings = load_silo_settings(config)
    if is_text and (job is None or is_json):
        raise ConfigError("--job: expected JOB with it, and no --json")
    if job is None:
        return _list_waiting(settings, is_json=is_json)
    with closing(opened_ledger(settings)) as ledger:
        if is_text:
            return _print_bytes(signed_bytes(ledger.job(job)))
        view = read_view(ledger, settings, job)
    if is_json:
        return print_json(as_json(view))
    click.echo("\n".join(fitted(screen(view))))


@click.command()
@CONFIG
@click.argument("job", required=False)
@BY
@json_option
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask: needed where there is no terminal.")
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
def approve(
    config: Path,
    job: str | None,
    by: str | None,
    is_json: bool,
    is_sure: bool,
    more_refusals: int | None,
    more_changes: int | None,
) -> None:
    """Show JOB, ask, and approve it; without JOB, list those that wait.

    A job that is over, or that this silo would refuse all the same, is not approved. Where the policy wants
    two people (required_approvals), the second approves under another name; the first approval is taken back
    if the policy file has changed since. With --json the screen goes to stderr.
    """
    from cli.silo.screen import fitted, read_told, screen, taken_back_told
    from silo_agent.approval.decisions import approve as approve_job
    from silo_agent.approval.decisions import check_would_run
    from silo_agent.approval.reading import read_view
    from silo_agent.disclosure.ledger.decisions import Grants

    settings = load_silo_settings(config)
    if job is None:
        options: dict[str, object] = {
            "--by": by,
            "--yes": is_sure or None,
            "--more-cohort-changes": more_changes,
            "--more-data-refusals": more_refusals,
        }
        for option, given in options.items():
            if given is not None:
                raise ConfigError(f"{option}: expected JOB with it")
        return _list_waiting(settings, is_json=is_json)
    grants = Grants(cohort_changes=more_changes or 0, data_refusals=more_refusals or 0)
    with closing(opened_ledger(settings)) as ledger:
        view = read_view(ledger, settings, job)
        click.echo("\n".join(fitted(screen(view))), err=is_json)
        if view.required_approvals > 1 and by is None:
            raise ConfigError(
                f"--by: expected the name of who approves: the policy wants {view.required_approvals} people"
            )
        check_would_run(ledger, view, grants)
        if not is_sure:
            if not sys.stdin.isatty():
                raise ConfigError("--yes: expected it without a terminal, where nobody can be asked")
            if not click.confirm(f"approve {view.id}, which reads {read_told(view.reads)}?", err=is_json):
                raise CommandFailed(f"{view.id}: nothing was decided")
        name = by or _login()
        missing = approve_job(ledger, view, by=name, grants=grants)
        decided = ledger.job(job)
    granted = {"cohort changes": grants.cohort_changes, "data refusals": grants.data_refusals}
    if is_json:
        return print_json(
            {
                **job_facts(decided),
                "by": name,
                "taken_back": view.taken_back,
                "missing_approvals": missing,
                **{f"more_{what.replace(' ', '_')}": count for what, count in granted.items()},
            }
        )
    if view.taken_back:
        click.echo(f"{view.id}: {taken_back_told(view.taken_back)}")
    if missing:
        return click.echo(
            f"{view.id}: {view.name} by {view.operator} has the approval of {name} and waits for another "
            "person's"
        )
    click.echo(f"{view.id}: {view.name} by {view.operator} is approved")
    for what, count in granted.items():
        if count:
            click.echo(f"{view.id}: {count} more {what} on data set {view.data_set}")


@click.command()
@CONFIG
@click.argument("job")
@click.option(
    "--reason", required=True, metavar="TEXT", help="What the operator is told, up to 200 characters."
)
@BY
@json_option
def reject(config: Path, job: str, reason: str, by: str | None, is_json: bool) -> None:
    """Reject JOB, also one that was approved before; its operator is told the reason.

    Where the others are too few without this silo, as with three silos, the job ends. The reason and
    the word `rejected` are all that leaves this silo.
    """
    from silo_agent.approval.decisions import reject as reject_job
    from silo_agent.disclosure.ledger.decisions import checked_name, checked_reason

    settings, name, reason = load_silo_settings(config), checked_name(by or _login()), checked_reason(reason)
    with closing(opened_ledger(settings)) as ledger:
        found = ledger.job(job)
        reject_job(ledger, found, by=name, reason=reason)
        decided = ledger.job(job)
    if is_json:
        return print_json({**job_facts(decided), "by": name, "reason": reason})
    over = "; it is over already, says the coordinator" if found.is_over else ""
    click.echo(f"{found.id}: {found.name} by {found.operator} is rejected{over}")


def _print_bytes(text: bytes) -> None:
    """Exactly these; on a terminal, which some of them may steer, with escapes."""
    if not sys.stdout.isatty():
        return click.echo(text, nl=False)
    for line in text.decode().splitlines():
        click.echo(printable(line))


def _list_waiting(settings: SiloSettings, *, is_json: bool) -> None:
    from cli.silo.screen import taken_back_told
    from silo_agent.approval.reading import policy_digests
    from silo_agent.disclosure.ledger.reveals import Decision

    policies = policy_digests(settings)
    with closing(opened_ledger(settings)) as ledger:
        decisions, now = ledger.decisions(), datetime.now(UTC)
        waiting = {
            each: decisions.given(each.job_digest, policies=policies)
            for each in ledger.jobs()
            if each.waits(now)
        }
    if is_json:
        rows = [
            {**job_facts(each), "approved_by": given.counted, "taken_back": given.taken_back}
            for each, given in waiting.items()
        ]
        return print_json({"jobs": rows})
    if not waiting:
        return click.echo("no job waits for approval")
    for each, given in waiting.items():
        notes = [f"approved by {', '.join(given.counted)}"] if given.counted else []
        notes += [taken_back_told(given.taken_back)] if given.taken_back else []
        if each.decision is Decision.SUSPENDED:
            notes.append("suspended: see the log for why")
        if each.stops_data:
            notes.append("a data set takes no input until this job is approved again (max_step_ratio)")
        details = [f"{each.offered:%Y-%m-%d %H:%M}", *notes]
        click.echo(f"{each.id}  {each.name}  {each.count}  by {each.operator}  {'  '.join(details)}")
    click.echo("chorale silo show --config FILE ID says what a job would do here", err=True)


def _login() -> str:
    """Of who runs the command; a container's user may have no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
