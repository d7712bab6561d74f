"""A silo's settings, machine, files, data and way to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from chorale.runtime.audit import is_in_use
from chorale.runtime.software import check_own_digest, own_software
from cli.doctor.agent import ask_agent
from cli.doctor.audit import check_audit
from cli.doctor.credentials import Expected, check_credentials
from cli.doctor.findings import Findings
from cli.doctor.line import ask_as_silo, reaches
from cli.doctor.machine import Machine, check_clock, check_directory, check_torch
from cli.silo import check
from cli.silo.checks import findings as checked
from crypto.identity.certificates import Role
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.settings import SiloSettings

# by what `chorale silo check` looked at
FIXES = {
    "directory": "correct directory, or let this user write to the folder",
    "in force": "chorale silo reload --confirm if the change is meant, else change the file back",
    "policy": "correct the policy file; `chorale schema policy` says what each field may be",
    "data.path": "put the data there, or correct data.path: it is relative to the folder the agent starts in",
    "dialect": "if who wrote the file agrees, put that line into data of the settings",
    "data.module": "install the module for this Python, or correct data.module",
    "objective": "install the module for this Python, or correct objective",
    "job": "correct the job file; `chorale schema job` says what each field may be",
    "code": "install the distribution and version that the job names",
    "acceptance": "change the policy if such jobs are wanted here, or ask the operator for another job",
    "data": "correct this cell, file or label, or leave its record out; where it is right and the job lacks "
    "it, ask the operator to add it to the job's categories or classes; or, if it is a label or a folder, "
    "name it in data.labels or data.drop here",
    "column": "say what the file holds, in data.units, data.values or data.dialect, or correct the file",
    "model": "correct model in the job file, or give --init",
    "refusals": "raise max_data_refusals in the policy, once it is known why the data were refused",
    "budget": "wait for a job with less epsilon, or raise privacy.epsilon in the policy",
    "training": "correct the function, model or record that the sentence names",
}


@dataclass(slots=True, kw_only=True)
class _Checked(checked.Findings):
    """Lines of `silo check`, each with its fix."""

    found: Findings

    def fine(self, what: str, message: str) -> None:
        self.found.fine(what, message)

    def problem(self, what: str, message: str) -> None:
        self.problems += 1
        self.found.problem(what, message, fix=FIXES.get(what, "ask for help with this sentence"))

    def warn(self, what: str, message: str) -> None:
        self.warnings += 1
        self.found.warn(what, message, fix=FIXES[what])


def examine(
    settings: SiloSettings,
    job_file: Path | None,
    machine: Machine,
    *,
    say: Callable[[str], None],
    findings: Findings,
) -> None:
    """job_file: a job to try as well, as `chorale silo check --job` does."""
    check_clock(machine, findings)
    with findings.step("software", fix="install the release that this site approved (software_digest)"):
        check_own_digest(own_software(), expected=settings.software_digest)
    own = check_credentials(
        Expected(
            files=settings.identity,
            authority=settings.authority,
            role=Role.SILO,
            federation=settings.federation,
            name=settings.name,
        ),
        now=machine.now(),
        findings=findings,
    )
    check_directory(settings.directory, machine, findings)
    check_audit(settings.audit_path, findings)
    if settings.objective is None:
        say("loading torch")
        check_torch(settings, machine, findings)
    checked = _Checked(found=findings)
    policies = check.check_own_files(settings, checked)
    if job_file is not None:
        check.check_job(job_file, None, settings, policies, checked)
    identity, runs = own.identity, is_in_use(settings.audit_path)
    if own.missing:
        findings.leave_out("line", f"the way to the coordinator and its roster: {own.missing}")
    elif not reaches(settings, say=say, findings=findings):
        return
    if runs and ask_agent(settings.directory, findings, silo=settings.name, now=machine.now()):
        return
    if identity is None or own.authority is None:
        return
    ages = [each.max_roster_age_days for each in policies.values()]
    max_age = timedelta(days=min(ages, default=Policy.model_fields["max_roster_age_days"].default))
    ask_as_silo(settings, identity, own.authority, now=machine.now(), max_age=max_age, findings=findings)
