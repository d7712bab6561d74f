"""What the audit log says of the ledger's reveals and spends, and lacks. Source: docs/protocol.md 10."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from chorale.observability.audit_head import AuditHead
from chorale.runtime import audit
from chorale.runtime.database import Database
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.budget import ReleaseStatus, Spend, spend_of
from silo_agent.disclosure.ledger.reveals import RevealStatus

REVEALED_EVENT = "revealed"  # audit entry: job, round, phase, cohort and survivors, before a share leaves
REVEALED_FIELDS = ("job", "round", "phase", "cohort")  # what has to agree
SPENT_EVENT = "spent"  # audit entry: an input and the digest of its releases, written before a byte leaves
SPENT_FIELDS = ("input", "data_set", "job", "round", "phase", "releases")


class AuditTrail:
    """A ledger and the audit log at a path beside it. Every method raises ConfigError for a broken chain."""

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._path = path

    @property
    def head(self) -> AuditHead:
        """What the ledger knows of the log's end."""
        return AuditHead(self._database)

    def check(self, event: str) -> int:
        """Compare the reveals (REVEALED_EVENT) or spends (SPENT_EVENT) with the audit chain; returns how many
        agree.

        Raises ConfigError if the chain is broken, or if it holds one that the ledger does not, or holds
        otherwise: then the ledger was put back from a backup or edited.
        """
        logged, held = self._logged_and_held(event)
        missing = [entry for key, entry in logged.items() if key not in held]
        if missing:
            first, what = missing[0], "reveals" if event == REVEALED_EVENT else "spends"
            raise ConfigError(
                f"ledger: the audit log holds {len(missing)} {what} that the ledger does not, the first is "
                f"job {first['job'][:12]} round {first['round']} {first['phase']}: "
                "was the ledger put back from a backup?"
            )
        return len(logged)

    def lacks(self, job_digest: bytes) -> bool:
        """Whether the log as it lies there does not tell of all that the job was given."""
        job = job_digest.hex()
        for event in (REVEALED_EVENT, SPENT_EVENT):
            logged, held = self._logged_and_held(event)
            if any(fields["job"] == job and key not in logged for key, fields in held.items()):
                return True
        return False

    def untold(self, event: str, *, is_whole: bool = False) -> list[dict[str, Any]]:
        """Reveals or spends that a crash or power loss left out of the audit log, as fields for it. is_whole:
        all that are in none of its files; else none from before the log's first entry."""
        logged, held = self._logged_and_held(event, since=0.0 if is_whole else _begins(self._path))
        return [fields for key, fields in held.items() if key not in logged]

    def _revealed(self, since: float) -> list[dict[str, Any]]:
        """Every reveal as the audit log has it, oldest first. since: Unix seconds."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT job_digest, round, phase, cohort_digest, survivors FROM reveals WHERE status = ?"
                " AND written_unix_seconds >= ? ORDER BY written_unix_seconds",
                (RevealStatus.REVEALED, since),
            ).fetchall()
        return [
            {
                "job": row["job_digest"].hex(),
                "round": row["round"],
                "phase": row["phase"],
                "cohort": row["cohort_digest"].hex(),
                "survivors": row["survivors"].split("\n"),
            }
            for row in rows
        ]

    def _spent(self, since: float) -> list[dict[str, Any]]:
        """Every spend as the audit log has it, oldest first. since: Unix seconds."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT * FROM releases WHERE status = ? AND written_unix_seconds >= ?"
                " ORDER BY written_unix_seconds",
                (ReleaseStatus.SPENT, since),
            ).fetchall()
        return [spend_fields(spend_of(row)) for row in rows]

    def _logged_and_held(
        self, event: str, since: float = 0.0
    ) -> tuple[dict[tuple[Any, ...], dict[str, Any]], dict[tuple[Any, ...], dict[str, Any]]]:
        """Every such entry of the audit log, and every one that the ledger holds, by what has to agree.

        since: of the ledger's, in Unix seconds.

        Raises ConfigError if the chain is broken.
        """
        is_reveal = event == REVEALED_EVENT
        names = REVEALED_FIELDS if is_reveal else SPENT_FIELDS
        written = audit.read_entries(self._path) if self._path.exists() else iter(())
        logged = [each for each in written if each.get("event") == event]
        held = self._revealed(since) if is_reveal else self._spent(since)
        logged_by, held_by = (
            {tuple(each.get(name) for name in names): each for each in entries} for entries in (logged, held)
        )
        return logged_by, held_by


def _begins(audit_path: Path) -> float:
    """From when on the audit log says what the ledger does, in Unix seconds: entries before may stand in a
    closed file that is kept elsewhere. Raises ConfigError."""
    first = next(audit.read_entries(audit_path), None) if audit_path.exists() else None
    if first is None or first["entry"] == 1:
        return 0.0
    return datetime.fromisoformat(first["time"]).timestamp()


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
