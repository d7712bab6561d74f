"""What inputs and whole plans release, as the ledger keeps it: each text once, under its SHA-256; and what
an account holds of it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, overload

from chorale.privacy.composition import FirstPlan
from chorale.privacy.releases import Release, releases_from_json, releases_to_json
from chorale.runtime.database import Migration
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.accounts import sides_are_fixed

TABLES: Migration = (
    """
    CREATE TABLE costs ( -- what one input releases: thousands of inputs share a few of these
        digest BLOB NOT NULL PRIMARY KEY, -- SHA-256 of `releases`
        releases VARCHAR NOT NULL -- chorale.privacy.accountant.releases_to_json
    )
    """,
    # A job's plan is fixed before its data are touched, and costs less than what is chosen as one goes.
    """
    CREATE TABLE plans (
        number INTEGER NOT NULL PRIMARY KEY, -- in the order in which jobs first touched the account's data
        account VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        cost_digest BLOB NOT NULL REFERENCES costs (digest), -- the releases, each once
        times VARCHAR NOT NULL, -- a JSON list: how often each is planned
        is_first BOOLEAN NOT NULL DEFAULT 0, -- of an account without private inputs
        sides_were_fixed BOOLEAN NOT NULL DEFAULT 0, -- of the account, at that time
        UNIQUE (account, job_digest)
    )
    """,
)

Cost: TypeAlias = tuple[Release, ...]  # all that one input releases; None where nothing bounds it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCharge:
    """What a whole planned job would add to an account, at the account's delta.

    epsilon: of the job by itself. epsilon_after: of the job and all that is spent or reserved, composed; None
    of a job that has touched the data already, as part of it stands in the account.
    """

    delta: float
    epsilon: float
    epsilon_after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpend:
    """What one job spent by itself; the jobs' epsilons add up to more than they cost together."""

    job_digest: bytes
    epsilon: float
    inputs: int
    unnoised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBalance:
    """Where a data set stands. held: spent and reserved. unnoised: inputs that left without noise."""

    data_set: str
    budget: float
    delta: float
    spent: float
    held: float
    unnoised: int
    jobs: tuple[JobSpend, ...] = field(default=())

    @property
    def left(self) -> float:
        """Epsilon up to the budget; what it still buys depends on what is bought."""
        return max(0.0, self.budget - self.held)


def write_cost(connection: sqlite3.Connection, cost: Cost) -> bytes:
    """Returns its digest."""
    text = releases_to_json(cost)
    digest = hashlib.sha256(text.encode()).digest()
    connection.execute(
        "INSERT INTO costs (digest, releases) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING", (digest, text)
    )
    return digest


def write_plan(
    connection: sqlite3.Connection, job_digest: bytes, plan: Mapping[Release, int], account: str
) -> None:
    """With a job's first input, before the input; what it says stays.

    The first one of an account without private inputs is its first plan. Those that stand there then are of
    jobs that gave everything back.
    """
    digest, times = write_cost(connection, tuple(plan)), json.dumps(list(plan.values()))
    is_first = connection.execute(
        "SELECT 1 FROM releases WHERE data_set = ? AND cost_digest IS NOT NULL LIMIT 1", (account,)
    ).fetchone()
    if is_first is None:
        connection.execute("DELETE FROM plans WHERE account = ?", (account,))
    connection.execute(
        "INSERT INTO plans (account, job_digest, cost_digest, times, is_first, sides_were_fixed)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (account, job_digest) DO NOTHING",
        (account, job_digest, digest, times, is_first is None, sides_are_fixed(connection, account)),
    )


class Costs:
    """Those of one ledger, each read once. Raises ConfigError for a cost that is not the one written."""

    def __init__(self) -> None:
        self._costs: dict[bytes, Cost] = {}  # by digest, so an entry never changes

    @overload
    def cost(self, connection: sqlite3.Connection, digest: bytes) -> Cost: ...

    @overload
    def cost(self, connection: sqlite3.Connection, digest: bytes | None) -> Cost | None: ...

    def cost(self, connection: sqlite3.Connection, digest: bytes | None) -> Cost | None:
        """None where there is none."""
        if digest is None:
            return None
        if digest not in self._costs:
            (text,) = connection.execute("SELECT releases FROM costs WHERE digest = ?", (digest,)).fetchone()
            if hashlib.sha256(text.encode()).digest() != digest:
                raise ConfigError("ledger: a release was changed after it was written")
            self._costs[digest] = releases_from_json(text)
        return self._costs[digest]

    def plan(self, connection: sqlite3.Connection, account: str, job_digest: bytes) -> Mapping[Release, int]:
        """How often a job's plan releases what; empty where it has none."""
        row = connection.execute(
            "SELECT cost_digest, times FROM plans WHERE account = ? AND job_digest = ?", (account, job_digest)
        ).fetchone()
        if row is None:
            return {}
        return dict(zip(self.cost(connection, row["cost_digest"]), json.loads(row["times"]), strict=True))

    def first_plan(self, connection: sqlite3.Connection, account: str) -> FirstPlan | None:
        row = connection.execute(
            "SELECT job_digest, sides_were_fixed FROM plans WHERE account = ? AND is_first", (account,)
        ).fetchone()
        if row is None:
            return None
        return FirstPlan(
            job=row["job_digest"],
            releases=self.plan(connection, account, row["job_digest"]),
            sides_are_fixed=bool(row["sides_were_fixed"]),
        )


def composed(inputs: Counter[Cost | None]) -> Counter[Release]:
    """Every release and how often it was made; what has no bound is counted elsewhere."""
    composed: Counter[Release] = Counter()
    for cost, count in inputs.items():
        for release in cost or ():
            composed[release] += count
    return composed


def is_covered(connection: sqlite3.Connection, data_set: str, of_phase: Mapping[str, object]) -> bool:
    """Whether epsilon covers all that this silo sends in a phase: a private job's quantities carry noise, or
    follow from DP-SGD, or are the same whatever the data are. of_phase: job, round, phase."""
    rows = connection.execute(
        "SELECT DISTINCT cost_digest IS NOT NULL AS is_bounded FROM releases"
        " WHERE data_set = :data_set AND job_digest = :job AND round = :round AND phase = :phase",
        {"data_set": data_set, **of_phase},
    ).fetchall()
    return [row["is_bounded"] for row in rows] == [1]
