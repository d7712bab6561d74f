"""How often this silo refused an input because of its data, by data set over all jobs.

A job without noise chooses ranges, columns and categories, so every such refusal answers a question of its
operator about this one silo, and no mask hides it. Source: docs/protocol.md 6.7.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime

from chorale.runtime.database import Database
from crypto.errors import PolicyRefusal, Rule
from silo_agent.ledger.decisions import suspend
from silo_agent.policy.policy import Policy


class DataRefusals:
    """Those of one data set. Every check and the write it allows share one transaction."""

    def __init__(
        self, database: Database, *, policy: Policy, data_set: str, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._policy = policy
        self._data_set = data_set
        self._clock = clock

    def take(self, policy: Policy) -> None:
        """What is checked from now on."""
        self._policy = policy

    def check(self, job_digest: bytes | None = None) -> int:
        """Before data are touched for a job without noise; None: one that nothing was granted to.

        Returns how many refusals count. Raises PolicyRefusal(code=POLICY) beyond the policy's limit.
        """
        with self._database.reading() as connection:
            counted = self._counted(connection)
            of_job = (self._data_set, job_digest or b"")
            granted, refused = self._granted(connection, *of_job), self._refused(connection, *of_job)
        if counted > self._policy.max_data_refusals and granted <= refused:
            raise PolicyRefusal(
                f"data set {self._data_set}: {counted} inputs were refused for its data, more than "
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
        of = {"data_set": self._data_set, "job": job_digest, "unix_seconds": self._clock().timestamp()}
        with self._database.transaction() as connection:
            if suspends or not self._refused(connection, self._data_set, job_digest):
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
            (self._data_set,),
        ).fetchall()
        return sum(
            max(0, row["refused"] - self._granted(connection, self._data_set, row["job_digest"]))
            for row in rows
        )

    @staticmethod
    def _refused(connection: sqlite3.Connection, data_set: str, job_digest: bytes) -> int:
        (refused,) = connection.execute(
            "SELECT count(*) FROM data_refusals WHERE data_set = ? AND job_digest = ?", (data_set, job_digest)
        ).fetchone()
        return int(refused)

    @staticmethod
    def _granted(connection: sqlite3.Connection, data_set: str, job_digest: bytes) -> int:
        (granted,) = connection.execute(
            "SELECT coalesce(sum(refusals), 0) FROM data_refusal_grants"
            " WHERE data_set = ? AND job_digest = ?",
            (data_set, job_digest),
        ).fetchone()
        return int(granted)
