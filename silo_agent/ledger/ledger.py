"""The silo's memory, on disk: jobs and what was decided on them, the newest roster, the reveals.

A ledger lives on a local disk beside one certificate; a ledger put back from a backup needs a new
one, because the old certificate may have signed what the backup does not hold.
Source: docs/protocol.md 6, 10.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any

from sqlalchemy import Connection, Row, and_, event, insert, select, update

from chorale.job import Job
from chorale.runtime import audit
from chorale.runtime.database import close_database, open_database
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.identity.roster import Roster
from crypto.session.reveal import PendingReveal
from silo_agent.ledger.budget import Budget, Spend, data_sets, spends
from silo_agent.ledger.ledger_tables import jobs, metadata, reveals, roster_mark
from silo_agent.ledger.reveals import Decision, Reveals, RevealStatus
from silo_agent.policy.policy import Policy

REVEALED_EVENT = "revealed"  # audit entry: job, round, phase and cohort, written before a share leaves
SPENT_EVENT = "spent"  # audit entry: an input and the digest of its releases, written before a byte leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerJob:
    """A job that was offered to this silo."""

    job_digest: bytes
    name: str
    operator: str
    rounds: int
    decision: Decision
    offered: datetime

    @property
    def id(self) -> str:
        return self.job_digest.hex()[:12]


def _nobody(_: object) -> None:
    return None


def utc_now() -> datetime:
    return datetime.now(UTC)


class Ledger:
    """One SQLite file, 0600, shared by the agent and the commands of this machine."""

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        _create_private(path)
        self._engine = open_database(path)
        event.listen(self._engine, "connect", _erase_for_good)
        self._engine.dispose()  # connections from now on have been told
        self._clock = clock
        metadata.create_all(self._engine)

    def close(self) -> None:
        close_database(self._engine)

    def reveals(
        self, *, policy: Policy, data_set: str, tell: Callable[[PendingReveal], None] = _nobody
    ) -> Reveals:
        """The reveal rule under this policy, for one data set.

        tell: hears of every reveal when it is durable and before a share leaves.
        """
        return Reveals(self._engine, policy=policy, data_set=data_set, clock=self._clock, tell=tell)

    def budget(self, *, policy: Policy, data_set: str, tell: Callable[[Spend], None] = _nobody) -> Budget:
        """What one data set has released and may still release under this policy.

        tell: hears of every spend when it is durable and before a byte leaves.
        """
        return Budget(self._engine, policy=policy, data_set=data_set, clock=self._clock, tell=tell)

    def data_sets(self) -> list[str]:
        """Every data set that an input was ever made of."""
        return data_sets(self._engine)

    def record_job(self, job: Job, *, is_approved: bool) -> tuple[Decision, bool]:
        """Remember an offered job; what was decided before stays.

        Returns the decision in force, and whether the job was never offered before.
        """
        decision = Decision.APPROVED if is_approved else Decision.OFFERED
        with self._engine.begin() as connection:
            found = connection.execute(select(jobs).where(jobs.c.job_digest == job.digest)).one_or_none()
            if found is None:
                connection.execute(insert(jobs), self._job_row(job, decision))
                return decision, True
            if is_approved and found.decision == Decision.OFFERED:
                _decide(connection, job.digest, decision)
                return decision, False
            return Decision(found.decision), False

    def jobs(self) -> list[LedgerJob]:
        """Every job ever offered, newest first."""
        with self._engine.begin() as connection:
            rows = connection.execute(select(jobs).order_by(jobs.c.offered_unix_seconds.desc())).all()
        return [_job(row) for row in rows]

    def decision(self, job_digest: bytes) -> Decision | None:
        """What is in force for a job; None if it was never offered."""
        with self._engine.begin() as connection:
            found = connection.execute(
                select(jobs.c.decision).where(jobs.c.job_digest == job_digest)
            ).scalar_one_or_none()
        return None if found is None else Decision(found)

    def approve(self, job_id: str) -> LedgerJob:
        """Approve the job whose digest begins with `job_id`. Raises ConfigError unless it is one job."""
        return self._set_decision(job_id, Decision.APPROVED)

    def reject(self, job_id: str) -> LedgerJob:
        """Reject it, also if it was approved before. Raises ConfigError unless it is one job."""
        return self._set_decision(job_id, Decision.REJECTED)

    def suspend(self, job_digest: bytes) -> None:
        """Serve an approved job no more until somebody approves it again; durable on return."""
        is_approved = and_(jobs.c.job_digest == job_digest, jobs.c.decision == Decision.APPROVED)
        with self._engine.begin() as connection:
            connection.execute(update(jobs).where(is_approved).values(decision=Decision.SUSPENDED))

    def accept_roster(self, roster: Roster, *, lowest_version: int) -> None:
        """Make it the newest roster seen. Raises PolicyRefusal(code=ROSTER) if an older one it is."""
        with self._engine.begin() as connection:
            mark = connection.execute(select(roster_mark)).one_or_none()
            lowest = max(lowest_version, mark.version if mark else 0)
            if roster.version < lowest:
                raise _roster_refusal(f"expected version {lowest} or newer, got {roster.version}")
            if mark and mark.version == roster.version and mark.digest != roster.digest:
                raise _roster_refusal(f"two different rosters of version {roster.version}")
            values = {"only": 1, "version": roster.version, "digest": roster.digest}
            statement = insert(roster_mark) if mark is None else update(roster_mark)
            connection.execute(statement.values(values))

    @property
    def roster_version(self) -> int:
        """The newest version seen; 0 before the first."""
        with self._engine.begin() as connection:
            return connection.execute(select(roster_mark.c.version)).scalar_one_or_none() or 0

    def check(self, audit_path: Path) -> int:
        """Compare the reveals with the audit chain; returns how many agree.

        Raises ConfigError if the chain is broken, or if it holds a reveal that the ledger does
        not: then the ledger was put back from a backup or edited.
        """
        entries = audit.read_entries(audit_path) if audit_path.exists() else []
        told = [_reveal_key(entry) for entry in entries if entry.get("event") == REVEALED_EVENT]
        held = set(self._revealed())
        missing = [key for key in told if key not in held]
        if missing:
            job_id, round_number, phase, _ = missing[0]
            raise ConfigError(
                f"ledger: the audit log holds {len(missing)} reveals that the ledger does not, the first is "
                f"job {job_id[:12]} round {round_number} {phase}: was the ledger put back from a backup?"
            )
        return len(told)

    def untold_reveals(self, audit_path: Path) -> list[dict[str, Any]]:
        """Reveals that a crash kept out of the audit log, as fields for it."""
        entries = audit.read_entries(audit_path) if audit_path.exists() else []
        told = {_reveal_key(entry) for entry in entries if entry.get("event") == REVEALED_EVENT}
        return [
            {"job": job, "round": round_number, "phase": phase, "cohort": cohort}
            for job, round_number, phase, cohort in self._revealed()
            if (job, round_number, phase, cohort) not in told
        ]

    def check_spends(self, audit_path: Path) -> int:
        """Compare what was spent with the audit chain; returns how many inputs agree.

        Raises ConfigError if the chain is broken, or if it holds a spend that the ledger does not, or
        holds otherwise: then the ledger was put back from a backup or edited.
        """
        told = _told_spends(audit_path)
        held = {fields["input"]: fields for fields in map(spend_fields, spends(self._engine))}
        missing = [key for key, entry in told.items() if held.get(key) != entry]
        if missing:
            first = told[missing[0]]
            raise ConfigError(
                f"ledger: the audit log holds {len(missing)} spends that the ledger does not, the first is "
                f"job {first['job'][:12]} round {first['round']} {first['phase']}: "
                "was the ledger put back from a backup?"
            )
        return len(told)

    def untold_spends(self, audit_path: Path) -> list[dict[str, Any]]:
        """Spends that a crash kept out of the audit log, as fields for it."""
        told = _told_spends(audit_path)
        return [fields for fields in map(spend_fields, spends(self._engine)) if fields["input"] not in told]

    def _revealed(self) -> list[tuple[str, int, str, str]]:
        revealed = select(reveals).where(reveals.c.status == RevealStatus.REVEALED)
        with self._engine.begin() as connection:
            rows = connection.execute(revealed.order_by(reveals.c.written_unix_seconds)).all()
        return [(row.job_digest.hex(), row.round, row.phase, row.cohort_digest.hex()) for row in rows]

    def _set_decision(self, job_id: str, decision: Decision) -> LedgerJob:
        found = [job for job in self.jobs() if job.job_digest.hex().startswith(job_id.lower())]
        if len(found) != 1:
            what = f"{len(found)} begin" if found else "none begins"
            raise ConfigError(f"job {job_id}: expected the id of one offered job, {what} with it")
        with self._engine.begin() as connection:
            _decide(connection, found[0].job_digest, decision)
        return found[0]

    def _job_row(self, job: Job, decision: Decision) -> dict[str, Any]:
        return {
            "job_digest": job.digest,
            "name": job.spec.name,
            "operator": job.operator,
            "rounds": job.spec.rounds,
            "max_attempts": job.spec.max_attempts,
            "decision": decision,
            "offered_unix_seconds": self._clock().timestamp(),
        }


def _create_private(path: Path) -> None:
    """The file holds shares: nobody but its owner reads it, from the first byte on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"directory: cannot open {path}: {error.strerror}") from error


def _erase_for_good(connection: SqliteConnection, _record: object) -> None:
    connection.execute("PRAGMA secure_delete=ON")  # erased shares are overwritten


def _decide(connection: Connection, job_digest: bytes, decision: Decision) -> None:
    connection.execute(update(jobs).where(jobs.c.job_digest == job_digest).values(decision=decision))


def _job(row: Row[Any]) -> LedgerJob:
    return LedgerJob(
        job_digest=row.job_digest,
        name=row.name,
        operator=row.operator,
        rounds=row.rounds,
        decision=Decision(row.decision),
        offered=datetime.fromtimestamp(row.offered_unix_seconds, UTC),
    )


def _reveal_key(entry: Mapping[str, Any]) -> tuple[str, int, str, str]:
    return entry["job"], entry["round"], entry["phase"], entry["cohort"]


def spend_fields(spend: Spend) -> dict[str, Any]:
    """A spend as the audit log has it."""
    return {
        "input": spend.input_id.hex(),
        "data_set": spend.data_set,
        "job": spend.job_digest.hex(),
        "round": spend.round,
        "phase": spend.phase,
        "releases": None if spend.cost_digest is None else spend.cost_digest.hex(),
    }


def _told_spends(audit_path: Path) -> dict[str, dict[str, Any]]:
    entries = audit.read_entries(audit_path) if audit_path.exists() else iter(())
    return {
        entry["input"]: {name: value for name, value in entry.items() if name not in audit.RESERVED}
        for entry in entries
        if entry.get("event") == SPENT_EVENT
    }


def _roster_refusal(message: str) -> PolicyRefusal:
    return PolicyRefusal(f"roster: {message}", code=Refusal.ROSTER)
