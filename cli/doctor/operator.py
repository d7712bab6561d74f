"""An operator's settings, files and way to the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from cli.doctor.credentials import Expected, check_credentials
from cli.doctor.findings import Findings
from cli.doctor.line import ask_as_operator, reaches
from cli.doctor.machine import Machine, check_clock
from client.settings import OperatorSettings
from crypto.identity.certificates import Role


def examine(
    settings: OperatorSettings, machine: Machine, *, say: Callable[[str], None], findings: Findings
) -> None:
    """Asks the coordinator for its silos, as `chorale job silos` does."""
    check_clock(machine, findings)
    own = check_credentials(
        Expected(
            files=settings.identity,
            authority=settings.authority,
            role=Role.OPERATOR,
            federation=settings.federation,
            name=None,
        ),
        now=machine.now(),
        findings=findings,
    )
    if own.missing:
        findings.leave_out("line", f"the way to the coordinator and its roster: {own.missing}")
    elif reaches(settings, say=say, findings=findings):
        ask_as_operator(settings, findings)
