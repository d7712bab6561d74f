"""What people at this institution said to jobs, by name and time, and what they granted.

Anybody who may run commands on the silo's machine can type any name; nothing proves it. A policy that asks
for two people counts names: an approval waits, open, until another name approves too. It holds under the
policy that its person saw: where that has changed since, or refuses the job, it is taken back.
Source: docs/operations.md, "Approve a job".
"""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from chorale.runtime import audit
from chorale.runtime.database import Database, Migration
from chorale.transport.wire import MAX_REJECTION_CHARACTERS
from crypto.errors import UNSEEN, ConfigError
from silo_agent.disclosure.ledger.reveals import Decision

TABLES: Migration = (
    """
    CREATE TABLE persons_decisions ( -- what people of the institution said to jobs, in order
        number INTEGER NOT NULL PRIMARY KEY,
        job_digest BLOB NOT NULL,
        decision VARCHAR NOT NULL, -- Decision: approved or rejected
        person VARCHAR NOT NULL, -- the name that was typed
        reason VARCHAR NOT NULL, -- of a rejection, as the operator reads it
        required INTEGER NOT NULL, -- approvals that the policy asked for
        changes INTEGER NOT NULL, -- overlapping cohorts beyond the policy's, granted with it
        refusals INTEGER NOT NULL, -- refusals for the data beyond the policy's, granted with it
        is_open BOOLEAN NOT NULL, -- an approval that waits for another person's
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL,
        policy BLOB -- digest of the file that the person saw
    )
    """,
    "CREATE INDEX persons_decisions_by_job ON persons_decisions (job_digest)",
    """
    CREATE TABLE cohort_change_grants ( -- further changes of the cohort that the institution allows a job
        number INTEGER NOT NULL PRIMARY KEY,
        job_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL,
        changes INTEGER NOT NULL,
        is_told BOOLEAN NOT NULL, -- to the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    """
    CREATE TABLE data_refusal_grants ( -- refusals that the institution allowed a job beyond its policy
        number INTEGER NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        refusals INTEGER NOT NULL,
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
)

APPROVED_EVENT = "job_approved"  # audit entry: who, when, the policy and how many approvals it asked for
REJECTED_EVENT = "job_rejected"  # audit entry: who, when, and what the operator is told
GRANTED_EVENT = "cohort changes granted"  # audit entry: the institution allowed a job more of them
REFUSALS_GRANTED_EVENT = "data refusals granted"  # audit entry: the same of refusals for its data
MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonsDecision:
    """What one person said to a job. reason: of a rejection, as the operator is told it. required: approvals
    that the policy asked for then."""

    by: str
    decision: Decision
    reason: str
    required: int
    when: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Who approved a job that waits for another person's approval. taken_back: under another policy."""

    counted: tuple[str, ...] = ()
    taken_back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a job may do beyond the policy: further overlapping cohorts, further refusals for the data."""

    cohort_changes: int = 0
    data_refusals: int = 0


NO_GRANTS = Grants()


class Decisions:
    """Those of one ledger. Every check and the write it allows share one transaction."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def approve(
        self,
        job_digest: bytes,
        *,
        by: str,
        required: int = 1,
        policy: bytes | None = None,
        grants: Grants = NO_GRANTS,
        account: str | None = None,
    ) -> int:
        """One person's approval, whatever was decided before; how many more it takes.

        With the last of them the job runs, and what all of them granted is granted. policy: digest of the one
        that this person saw; approvals under another are taken back. account: of the data set that grants are
        for. Raises ConfigError for a name that approved it already.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE persons_decisions SET is_open = 0 WHERE job_digest = ? AND policy != ?",
                (job_digest, policy),
            )
            names = [row["person"] for row in _open(connection, job_digest)]
            if required > 1 and _key(by) in [_key(name) for name in names]:
                raise ConfigError(
                    f"--by: {by} approved this job already; the policy asks for {required} different people "
                    "(required_approvals)"
                )
            self._write(
                connection,
                job_digest,
                Decision.APPROVED,
                by,
                required=required,
                policy=policy,
                grants=grants,
            )
            given = _open(connection, job_digest)
            if len(given) < required:
                return required - len(given)
            connection.execute(
                "UPDATE jobs SET decision = ? WHERE job_digest = ?", (Decision.APPROVED, job_digest)
            )
            # its steps are compared from here on (docs/protocol.md 6.11)
            for table in ("stopped_data_sets", "array_steps"):
                connection.execute(f"DELETE FROM {table} WHERE job_digest = ?", (job_digest,))
            for table, what in (
                ("cohort_change_grants", "changes"),
                ("data_refusal_grants", "refusals"),
            ):
                granted = min(row[what] for row in given)
                if granted and account is not None:
                    connection.execute(
                        f"INSERT INTO {table} (job_digest, data_set, {what}, is_told, written_unix_seconds)"
                        " VALUES (?, ?, ?, 0, ?)",
                        (job_digest, account, granted, self._clock().timestamp()),
                    )
            _close(connection, job_digest)
        return 0

    def reject(self, job_digest: bytes, *, by: str, reason: str) -> None:
        """One person's no, which is enough. reason: the operator reads it."""
        with self._database.transaction() as connection:
            self._write(connection, job_digest, Decision.REJECTED, by, reason=reason)
            connection.execute(
                "UPDATE jobs SET decision = ? WHERE job_digest = ?", (Decision.REJECTED, job_digest)
            )
            _close(connection, job_digest)

    def of(self, job_digest: bytes) -> tuple[PersonsDecision, ...]:
        """All that people said to a job, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM persons_decisions WHERE job_digest = ? ORDER BY number", (job_digest,)
            ).fetchall()
        return tuple(
            PersonsDecision(
                by=row["person"],
                decision=Decision(row["decision"]),
                reason=row["reason"],
                required=row["required"],
                when=datetime.fromtimestamp(row["written_unix_seconds"], UTC),
            )
            for row in rows
        )

    def given(self, job_digest: bytes, *, policies: Collection[bytes]) -> Given:
        """Who approved a job that waits for another person. policies: digests of those that hold now."""
        with self._database.reading() as connection:
            rows = _open(connection, job_digest)
        counted = [row["policy"] in policies for row in rows]
        return Given(
            counted=tuple(row["person"] for row, counts in zip(rows, counted, strict=True) if counts),
            taken_back=tuple(row["person"] for row, counts in zip(rows, counted, strict=True) if not counts),
        )

    def take_back(self, job_digest: bytes) -> tuple[str, ...]:
        """Approvals that wait for another person's count no more; whose they were."""
        with self._database.transaction() as connection:
            names = tuple(row["person"] for row in _open(connection, job_digest))
            _close(connection, job_digest)
        return names

    def tell(self, log: audit.AuditLog) -> None:
        """Enter what was decided and granted into the audit log, which the agent alone writes; a crash
        between repeats an entry."""
        for table, event, what in (
            ("persons_decisions", "", ""),
            ("cohort_change_grants", GRANTED_EVENT, "changes"),
            ("data_refusal_grants", REFUSALS_GRANTED_EVENT, "refusals"),
        ):
            with self._database.reading() as connection:
                rows = connection.execute(
                    f"SELECT * FROM {table} WHERE NOT is_told ORDER BY number"
                ).fetchall()
            for row in rows:
                job = row["job_digest"].hex()
                if event:
                    log.append(event, job=job, data_set=row["data_set"], **{what: row[what]})
                else:
                    _tell_decision(log, job, row)
                with self._database.transaction() as connection:
                    connection.execute(f"UPDATE {table} SET is_told = 1 WHERE number = ?", (row["number"],))

    def _write(
        self,
        connection: sqlite3.Connection,
        job_digest: bytes,
        decision: Decision,
        by: str,
        *,
        reason: str = "",
        required: int = 1,
        policy: bytes | None = None,
        grants: Grants = NO_GRANTS,
    ) -> None:
        connection.execute(
            "INSERT INTO persons_decisions (job_digest, decision, person, reason, required, policy, changes,"
            " refusals, is_open, is_told, written_unix_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (
                job_digest,
                decision,
                by,
                reason,
                required,
                policy,
                grants.cohort_changes,
                grants.data_refusals,
                decision is Decision.APPROVED,
                self._clock().timestamp(),
            ),
        )


def suspend(connection: sqlite3.Connection, job_digest: bytes) -> None:
    """Stop serving an approved job; earlier approvals no longer count."""
    _close(connection, job_digest)
    connection.execute(
        "UPDATE jobs SET decision = ? WHERE job_digest = ? AND decision = ?",
        (Decision.SUSPENDED, job_digest, Decision.APPROVED),
    )


def checked_name(name: str) -> str:
    """The name of a person as it is kept. Raises ConfigError."""
    composed = " ".join(unicodedata.normalize("NFC", name).split())
    return _checked_text(composed, most=MAX_NAME_CHARACTERS, option="--by")


def checked_reason(reason: str) -> str:
    """Why a job is rejected, as its operator reads it. Raises ConfigError."""
    return _checked_text(reason.strip(), most=MAX_REJECTION_CHARACTERS, option="--reason")


def _checked_text(text: str, *, most: int, option: str) -> str:
    wanted = f"{option}: expected 1 to {most} printable characters on one line"
    if not 0 < len(text) <= most:
        raise ConfigError(f"{wanted}, got {len(text)}")
    if hidden := next((each for each in text if not each.isprintable() or UNSEEN.match(each)), None):
        cause = " of another encoding than this terminal's locale" if "\ud800" <= hidden <= "\udfff" else ""
        raise ConfigError(f"{wanted}, got {hidden!a}{cause}")
    return text


def _tell_decision(log: audit.AuditLog, job: str, row: sqlite3.Row) -> None:
    decided = datetime.fromtimestamp(row["written_unix_seconds"], UTC).isoformat()
    if row["decision"] == Decision.APPROVED:
        policy = {} if row["policy"] is None else {"policy": row["policy"].hex()}
        log.append(
            APPROVED_EVENT, job=job, by=row["person"], decided=decided, required=row["required"], **policy
        )
    else:
        log.append(REJECTED_EVENT, job=job, by=row["person"], decided=decided, reason=row["reason"])


def _key(name: str) -> str:
    """What two spellings of a name have in common."""
    return unicodedata.normalize("NFKC", name).casefold()


def _open(connection: sqlite3.Connection, job_digest: bytes) -> list[sqlite3.Row]:
    """Approvals that wait for another person's."""
    return connection.execute(
        "SELECT * FROM persons_decisions WHERE job_digest = ? AND is_open ORDER BY number", (job_digest,)
    ).fetchall()


def _close(connection: sqlite3.Connection, job_digest: bytes) -> None:
    connection.execute("UPDATE persons_decisions SET is_open = 0 WHERE job_digest = ?", (job_digest,))
