"""What must hold before an agent serves: it is alone in its directory, and its ledger is whole."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from prometheus_client import Gauge

from chorale.runtime.audit import AuditLog
from chorale.runtime.files import make_private
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT, SPENT_EVENT
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.in_force import HeldPolicy
from silo_agent.settings import LEDGER, SiloSettings
from silo_agent.training.data.own_data import check_named
from silo_agent.training.data.settings import DataSettings


class AgentFailed(ChoraleError):
    """The agent cannot start on this machine."""


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One agent per directory: two would answer for one another from one ledger."""
    try:
        make_private(directory, known_by=LEDGER)
        lock = (directory / "agent.lock").open("w")
    except OSError as error:
        raise ConfigError(f"directory: cannot use {directory}: {(error.strerror or '').lower()}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AgentFailed(f"directory: another agent is running in {directory}") from None
        yield


def check_whole(ledger: Ledger, audit: AuditLog, audit_path: Path, lost: Gauge | None = None) -> None:
    """A ledger that lost a reveal or a spend, or was put back, must not serve; what a crash left out of the
    audit log is entered now. Raises AgentFailed, ConfigError. lost: metric of entries that are missing."""
    try:
        ledger.check_not_put_back()
    except PolicyRefusal as error:
        raise AgentFailed(str(error)) from None
    trail = ledger.audit_trail(audit_path)
    for event in (REVEALED_EVENT, SPENT_EVENT):
        trail.check(event)
    is_lost = trail.head.check(audit_path, audit, lost)
    for event in (REVEALED_EVENT, SPENT_EVENT):
        for untold in trail.untold(event, is_whole=is_lost):
            audit.append(event, **untold)
    ledger.decisions().tell(audit)


def close_audit_file(settings: SiloSettings) -> Path:
    """Close the audit log's file while no agent runs; what a crash left out of it is entered before.

    Raises AgentFailed, ConfigError, OSError.
    """
    path = settings.audit_path
    with (
        alone(settings.directory),
        closing(AuditLog(path)) as audit,
        closing(Ledger(settings.ledger_path)) as ledger,
    ):
        check_whole(ledger, audit, path)
        closed = audit.rotate()
        ledger.audit_trail(path).head.keep(audit)
    return closed


def held_policy(data: DataSettings, settings: SiloSettings) -> HeldPolicy:
    """Raises ConfigError for a policy of another federation, and for data or a function of the silo's own
    that are not there: now, not when the first job asks for them."""
    held = HeldPolicy.read(settings.policy_of(data), federation=settings.federation)
    check_named(data)
    return held
