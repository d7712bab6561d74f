"""The steps of the global state beside this silo's own, durable; and the stop of a data set that follows.

A stop ends further inputs and nothing else: the state is computed and signed as before, because others may
be longer or shorter. Source: docs/protocol.md 6.11.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from chorale.runtime.database import Database, Migration
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.step_ratio import ArraySteps

TABLES: Migration = (
    """
    CREATE TABLE array_steps ( -- how far the arrays that training reads moved, and this silo's own part
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        array VARCHAR NOT NULL,
        total FLOAT NOT NULL,
        own_total FLOAT NOT NULL,
        first VARCHAR NOT NULL, -- this silo's first lengths, a JSON list
        UNIQUE (data_set, job_digest, array)
    )
    """,
    """
    CREATE TABLE compared_phases ( -- whose step is in array_steps
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (data_set, job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE stopped_data_sets ( -- no input leaves until the job is approved again
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        UNIQUE (data_set, job_digest)
    )
    """,
)


class Steps:
    """Of one data set under one policy. Synchronous and durable."""

    def __init__(self, database: Database, *, policy: Policy, data_set: str) -> None:
        self._database = database
        self.take(policy)
        self._data_set = data_set

    def take(self, policy: Policy) -> None:
        """What steps are compared with from now on."""
        self._max_ratio = policy.max_step_ratio

    def note(self, key: PhaseKey, *, steps: Mapping[str, float], own: Mapping[str, float]) -> list[str]:
        """Add a phase's lengths by array, once; names of the arrays that moved too far.

        Where there is one, the data set is stopped with it, durably. An array without an own length is not
        compared; one whose own length is NaN is compared with the next.
        """
        exceeded = []
        with self._database.transaction() as connection:
            added = connection.execute(
                "INSERT INTO compared_phases (data_set, job_digest, round, phase) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (self._data_set, key.job_digest, key.round, key.phase),
            )
            if added.rowcount == 0:
                return []
            for name in sorted(steps.keys() & own.keys()):
                row = connection.execute(
                    "SELECT * FROM array_steps WHERE data_set = ? AND job_digest = ? AND array = ?",
                    (self._data_set, key.job_digest, name),
                ).fetchone()
                history = ArraySteps()
                if row is not None:
                    history = ArraySteps(
                        total=row["total"], own_total=row["own_total"], first=tuple(json.loads(row["first"]))
                    )
                lengths = {"step": steps[name], "own": own[name]}
                if math.isnan(own[name]):
                    after = history.after_unknown(step=steps[name])
                else:
                    if history.is_too_long(**lengths, max_ratio=self._max_ratio):
                        exceeded.append(name)
                    after = history.after(**lengths)
                connection.execute(
                    "INSERT OR REPLACE INTO array_steps (data_set, job_digest, array, total, own_total,"
                    " first) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        self._data_set,
                        key.job_digest,
                        name,
                        after.total,
                        after.own_total,
                        json.dumps(after.first),
                    ),
                )
            if exceeded:
                connection.execute(
                    "INSERT INTO stopped_data_sets (data_set, job_digest) VALUES (?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (self._data_set, key.job_digest),
                )
        return exceeded

    def check_runs(self) -> None:
        """Raises PolicyRefusal(code=JOB_NOT_APPROVED) while the data set is stopped."""
        with self._database.reading() as connection:
            stopped = connection.execute(
                "SELECT job_digest FROM stopped_data_sets WHERE data_set = ?", (self._data_set,)
            ).fetchone()
        if stopped is not None:
            job_id = stopped["job_digest"].hex()[:12]
            raise PolicyRefusal(
                f"data set {self._data_set}: the model of job {job_id} moved too far (max_step_ratio); to "
                f"resume: chorale silo approve --config <this silo's file> {job_id}",
                code=Refusal.JOB_NOT_APPROVED,
            )
