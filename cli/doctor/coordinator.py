"""A coordinator's settings, files, address and disk."""

from __future__ import annotations

import socket
from datetime import timedelta

from chorale.runtime.audit import is_in_use
from chorale.runtime.files import read_limited
from chorale.transport.route import split_address
from cli.doctor.audit import check_audit
from cli.doctor.credentials import Expected, check_credentials
from cli.doctor.findings import Findings
from cli.doctor.machine import Machine, check_clock, check_directory
from cli.doctor.rosters import check_roster
from coordinator.settings import CoordinatorSettings
from crypto.identity.certificates import Role
from crypto.identity.roster import MAX_FILE_BYTES, roster_from_file_bytes
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.disclosure.policy.policy import Policy


def examine(settings: CoordinatorSettings, machine: Machine, findings: Findings) -> None:
    """Dials nobody: what silos would meet is in its files, and in whether it can listen."""
    check_clock(machine, findings)
    own = check_credentials(
        Expected(
            files=settings.identity,
            authority=settings.authority,
            role=Role.COORDINATOR,
            federation=settings.federation,
            name=None,
        ),
        now=machine.now(),
        findings=findings,
    )
    if own.certificate is None:
        findings.leave_out("roster", "whether it lists this coordinator: that needs the certificate")
    if own.authority is None:
        findings.leave_out("roster", "it needs the authority.crt")
    else:
        with findings.step("roster", fix=f"put the authority's roster.json at {settings.roster}"):
            signed = roster_from_file_bytes(read_limited(settings.roster, MAX_FILE_BYTES))
            max_age = timedelta(days=Policy.model_fields["max_roster_age_days"].default)
            roster = check_roster(
                signed,
                own.certificate,
                own.authority,
                now=machine.now(),
                max_age=max_age,
                findings=findings,
            )
            if roster is not None and len(roster.silo_names) < SMALLEST_FEDERATION:
                findings.warn(
                    "members",
                    f"the roster lists {len(roster.silo_names)} silos, a job needs {SMALLEST_FEDERATION}",
                    fix="have the authority list more: chorale authority roster CERT...",
                )
    check_directory(settings.directory, machine, findings)
    audit = settings.directory / "audit.jsonl"
    check_audit(audit, findings)
    with findings.step("directory", fix=f"make {settings.directory} readable for this user"):
        if is_in_use(audit):
            findings.fine("process", "a coordinator runs on this directory")
        else:
            _check_address("listen", settings.listen, findings)


def _check_address(field: str, address: str, findings: Findings) -> None:
    """Whether this machine has the address, and nothing else listens there."""
    host, port = split_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            findings.fine(field, f"{address} is free")
    except OSError as error:
        message = f"{address}: {(error.strerror or str(error)).lower()}"
        findings.problem(field, message, fix=f"set {field} to an address of this machine and a free port")
