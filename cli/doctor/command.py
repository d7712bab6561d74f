"""`chorale doctor`: what is wrong at a silo, a coordinator or an operator, and one fix for each finding."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from chorale.runtime.files import read_limited
from chorale.spec.settings_file import MAX_BYTES, parse_mapping
from chorale.transport import tls
from cli.doctor.findings import Finding, Findings, State
from cli.doctor.machine import Machine
from cli.errors import CommandFailed
from cli.schema import MODELS, model_of
from client.errors import printable
from client.settings import operator_settings
from coordinator.settings import load_coordinator_settings
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from silo_agent.settings import load_silo_settings

OF_A_CONSOLE = "url"  # a field that its settings alone have


@click.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings file of a silo, a coordinator or an operator.",
)
@click.option(
    "--job",
    "job_file",
    type=click.Path(path_type=Path),
    help="At a silo: also try this job, as `chorale silo check --job` does.",
)
@click.option("--json", "is_json", is_flag=True, help="The findings as one JSON object.")
def doctor(config: Path, job_file: Path | None, is_json: bool) -> None:
    """Look for what keeps a silo, a coordinator or an operator from taking part, and name a fix for each.

    Call it where the party runs, from the folder it is started in. It looks at clock, key, certificate,
    authority, disk, audit log, the way to the coordinator and the roster; at a silo also at torch, GPU,
    policy and data. Where no agent runs, it says hello to the coordinator as the agent would, and leaves.
    What a problem keeps it from looking at, it names. It writes nothing. It ends with 0 where there is no
    problem, else with 1; warnings do not count.
    """
    tls.restrict_to_tls13()
    shown = sys.stdout
    tell = (lambda finding: None) if is_json else partial(_print, shown)
    findings = Findings(tell)
    # what `silo check` prints beside its findings must not stand in the JSON
    with contextlib.redirect_stdout(sys.stderr):
        party = diagnose(config, job_file, Machine(), findings)
    problems = findings.count(State.PROBLEM)
    if is_json:
        found = [_plain(each) for each in findings.found]
        click.echo(json.dumps({"party": party, "problems": problems, "findings": found}, indent=2))
    if problems:
        raise CommandFailed(f"{problems} {'problem' if problems == 1 else 'problems'} found")
    if not is_json:
        click.echo("no problem was found")


def diagnose(config: Path, job_file: Path | None, machine: Machine, findings: Findings) -> str | None:
    """Look at the party whose settings these are; its role, None where no settings were recognized."""
    role: Role | None = None
    unknown = (
        "name the settings file of a silo, a coordinator or an operator; `chorale init` writes one. A "
        "console says what is wrong when it starts: `chorale console --config FILE`"
    )
    with findings.step("settings", fix=unknown):
        role = role_of(config)
    if role is None:
        return None
    if job_file is not None and role is not Role.SILO:
        raise ConfigError(f"--job: {config} is of {_named(role)}, and only a silo tries jobs")
    examine: Callable[[], None] | None = None
    with findings.step(
        "settings", fix=f"correct the file; `chorale schema {role}` says what each field may be"
    ):
        examine = _examination(role, config, job_file, machine, findings)
    if examine is not None:
        findings.fine("settings", f"{config}, of {_named(role)}")
        examine()
    return role.value


def _named(role: Role) -> str:
    return "an operator" if role is Role.OPERATOR else f"a {role}"


def _examination(
    role: Role, config: Path, job_file: Path | None, machine: Machine, findings: Findings
) -> Callable[[], None]:
    """What looks at the party, once its settings are read. Raises ConfigError for those."""
    say = partial(click.echo, err=True)
    if role is Role.COORDINATOR:
        from cli.doctor import coordinator

        return partial(coordinator.examine, load_coordinator_settings(config), machine, findings)
    if role is Role.SILO:
        from cli.doctor import silo

        settings = load_silo_settings(config)
        return partial(silo.examine, settings, job_file, machine, say=say, findings=findings)
    from cli.doctor import operator

    own = operator_settings(config)
    return partial(operator.examine, own, machine, say=say, findings=findings)


def role_of(config: Path) -> Role:
    """Whose settings have most of the file's fields: one that is mistyped or missing is told later.

    Raises ConfigError.
    """
    fields = set(parse_mapping(read_limited(config, MAX_BYTES), source=str(config)))
    known = {role: set(model_of(role.value).model_fields) for role in Role if role.value in MODELS}
    best = max(known, key=lambda role: (len(fields & known[role]), -len(known[role])))
    if OF_A_CONSOLE in fields:
        raise ConfigError(f"{config}: these are the settings of a console, which the doctor does not look at")
    if len(fields & known[best]) <= len(fields) // 2:
        raise ConfigError(f"{config}: these are no settings of a silo, a coordinator or an operator")
    return best


def _print(shown: Any, finding: Finding) -> None:
    # what the coordinator or a proxy answered stands in it
    click.echo(f"{finding.state.value:<8} {finding.check}: {printable(finding.message)}", file=shown)
    if finding.fix:
        click.echo(f"{'':<8} fix: {finding.fix}", file=shown)


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "state": finding.state.value,
        "message": finding.message,
        "fix": finding.fix,
    }
