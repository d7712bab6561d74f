"""How often this silo refused an input because of its data, by data set over all jobs.

A job without noise chooses ranges, columns and categories, so every such refusal answers a question of its
operator about this one silo, and no mask hides it. Of a private job that is so where an input fails, as for
want of memory: it takes as many bytes as there are records, times what the job chooses. Source:
docs/protocol.md 6.7.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime

from chorale.runtime.database import Database, Migration
from crypto.errors import PolicyRefusal, Rule
from silo_agent.disclosure.ledger.decisions import suspend
from silo_agent.disclosure.policy.policy import Policy

TABLES: Migration = (
    """
    CREATE TABLE data_refusals ( -- inputs of jobs without noise that were refused for this silo's data
        number INTEGER NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    "CREATE INDEX data_refusals_by_job ON data_refusals (data_set, job_digest)",
)


class DataRefusals:
    """Those of one data set. Every check and the write it allows share one transaction."""

    def __init__(
        self,
        database: Database,
        *,
        policy: Policy,
        data_set: str,
        clock: Callable[[], datetime],
        is_private: bool = False,
    ) -> None:
        self._database = database
        self._policy = policy
        self._data_set = data_set
        self._counted_as = f"{data_set} (private jobs)" if is_private else data_set  # no account's name
        self._clock = clock

    def take(self, policy: Policy) -> None:
        """What is checked from now on."""
        self._policy = policy

    def check(self, job_digest: bytes | None = None) -> int:
        """Before data are touched for a job; None: one that nothing was granted to.

        Returns how many refusals count. Raises PolicyRefusal(code=POLICY) beyond the policy's limit.
        """
        with self._database.reading() as connection:
            counted = self._counted(connection)
            of_job = job_digest or b""
            granted, refused = self._granted(connection, of_job), self._refused(connection, of_job)
        if counted > self._policy.max_data_refusals and granted <= refused:
            raise PolicyRefusal(
                f"data set {self._counted_as}: {counted} inputs were refused for its data, more than "
                f"{self._policy.max_data_refusals} (max_data_refusals); to allow a job N more: "
                "chorale silo approve --config <this silo's file> <job> --more-data-refusals N",
                rule=Rule.MAX_DATA_REFUSALS,
            )
        return counted

    def record(self, job_digest: bytes, *, suspends: bool) -> int:
        """Count a refusal; durable before it leaves. Returns how many count now.

        suspends: the job gets no answer but this one until it is approved again, in the same transaction.
        Else it may ask again, and counts once.
        """
        of = {"data_set": self._counted_as, "job": job_digest, "unix_seconds": self._clock().timestamp()}
        with self._database.transaction() as connection:
            if suspends or not self._refused(connection, job_digest):
                connection.execute(
                    "INSERT INTO data_refusals (data_set, job_digest, written_unix_seconds)"
                    " VALUES (:data_set, :job, :unix_seconds)",
                    of,
                )
            if suspends:
                suspend(connection, job_digest)
            return self._counted(connection)

    def _counted(self, connection: sqlite3.Connection) -> int:
        """Those of all jobs, less what each job was granted."""
        rows = connection.execute(
            "SELECT job_digest, count(*) AS refused FROM data_refusals WHERE data_set = ?"
            " GROUP BY job_digest",
            (self._counted_as,),
        ).fetchall()
        return sum(max(0, row["refused"] - self._granted(connection, row["job_digest"])) for row in rows)

    def _refused(self, connection: sqlite3.Connection, job_digest: bytes) -> int:
        (refused,) = connection.execute(
            "SELECT count(*) FROM data_refusals WHERE data_set = ? AND job_digest = ?",
            (self._counted_as, job_digest),
        ).fetchone()
        return int(refused)

    def _granted(self, connection: sqlite3.Connection, job_digest: bytes) -> int:
        (granted,) = connection.execute(
            "SELECT coalesce(sum(refusals), 0) FROM data_refusal_grants"
            " WHERE data_set = ? AND job_digest = ?",
            (self._data_set, job_digest),
        ).fetchone()
        return int(granted)
