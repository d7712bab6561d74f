"""The privacy ledger of a data set: what its inputs released, in all jobs, and what may still be released.

A *reservation* is written before an input's data are touched, and counts like spend. It becomes spend
before the first byte of y(u) leaves, in one transaction with what else has to be durable then, and is
given back if nothing left. Every check and the write that it allows share one transaction. Nothing is ever
subtracted: epsilon is composed again from all stored releases at the delta that the account began with.
Whether it fits is decided by chorale/privacy/composition.py (`AccountReleases.fits`).
Source: docs/protocol.md 6.8, docs/privacy.md "The ledger".
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from chorale.job import Job
from chorale.privacy.accountant import epsilon
from chorale.privacy.composition import AccountReleases, FirstPlan
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from chorale.runtime.database import Commit, Database, Migration
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey, phase_kind
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.session.sum_check import SumCheck
from silo_agent.disclosure.ledger.accounts import account_delta, open_account, sides_are_fixed
from silo_agent.disclosure.ledger.costs import (
    BudgetBalance,
    Cost,
    Costs,
    JobSpend,
    PlannedCharge,
    composed,
    write_cost,
    write_plan,
)
from silo_agent.disclosure.ledger.known_states import keep_check
from silo_agent.disclosure.ledger.standing import check_not_put_back
from silo_agent.disclosure.ledger.state_uses import StateUse, record_use
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import Permission

TABLES: Migration = (
    # One row for each input that was computed from a data set. A spent row is never erased, nor with its job.
    """
    CREATE TABLE releases (
        input_id BLOB NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        cost_digest BLOB REFERENCES costs (digest), -- null: a job without privacy
        delta FLOAT NOT NULL, -- the policy's when it was reserved; today's is what counts
        status VARCHAR NOT NULL, -- ReleaseStatus
        process BLOB NOT NULL, -- of whom reserved it
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    "CREATE INDEX releases_by_cost ON releases (data_set, cost_digest, status, job_digest)",
    "CREATE INDEX releases_by_phase ON releases (job_digest, round, phase)",
)

# colluders, and name, type and shape of each array: what the releases of a job follow from
Basis: TypeAlias = tuple[int, frozenset[tuple[str, str, tuple[int, ...]]]]

INPUT_ID_BYTES = 16
MAX_KNOWN_JOBS = 64  # whose releases are not worked out again; as many as are open at once
_RECOVERED_AT_ONCE = 200  # releases of one row, so that its text is below MAX_RELEASES_BYTES
RECOVERY = "recovery"  # in place of a phase, of a plan that was charged because the ledger was put back


class ReleaseStatus(StrEnum):
    RESERVED = "reserved"  # the data may be touched; nothing has left
    SPENT = "spent"  # bytes may have left


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """An input that is about to leave, as the audit log shows it. cost_digest: None without noise."""

    input_id: bytes
    data_set: str
    job_digest: bytes
    round: int
    phase: str
    cost_digest: bytes | None


class Budget:
    """One data set under one policy. Synchronous and durable; safe in any thread.

    data_set: the id of its account. budgets: epsilon of the data sets that share it, each of which holds, as
    the policy's does. tell: called for every spend when it is durable and before a byte leaves.
    """

    def __init__(
        self,
        database: Database,
        *,
        policy: Policy,
        data_set: str,
        clock: Callable[[], datetime],
        tell: Callable[[Spend], None],
        budgets: Collection[float] = (),
    ) -> None:
        self._database = database
        self._policy = policy
        self._data_set = data_set
        # a higher budget may buy a first plan that a lower one does not, and has less of delta then
        self._budgets = {policy.privacy.epsilon, *budgets}
        self._is_lowered = False  # since this process reserves
        self._clock = clock
        self._tell = tell
        self._process, self._costs = os.urandom(8), Costs()
        self._of_jobs: dict[bytes, tuple[Basis, JobReleases]] = {}
        with database.transaction() as connection:
            self._delta = account_delta(connection, self._data_set) or policy.privacy.delta

    def open_account(self) -> None:
        """When an agent starts: the first policy's delta is the account's until an administrator changes it.

        Raises ConfigError for a policy with another one, under which all that was spent would have other
        values.
        """
        with self._database.transaction() as connection:
            open_account(connection, self._data_set, self._delta)
            self._delta = account_delta(connection, self._data_set) or self._policy.privacy.delta
        if self._delta != self._policy.privacy.delta:
            raise ConfigError(
                f"policy: privacy.delta: expected that of account {self._data_set}, {self._delta:g}, at "
                f"which all that was spent is valued, got {self._policy.privacy.delta:g}: set it back, or "
                "change the account's (chorale silo ledger --delta)"
            )

    def take(self, policy: Policy) -> None:
        """Another policy from now on, whose delta is the account's. What is released keeps to the budgets of
        both: each decides by itself how the account's first plan is paid."""
        self._policy = policy
        self.take_limit(self._data_set, policy.privacy.epsilon)

    def take_limit(self, account: str, most: float) -> None:
        """A further budget of an account, if it is this one."""
        if account == self._data_set and most not in self._budgets:
            self._budgets, self._is_lowered = self._budgets | {most}, True

    def check_held(self, job: Job, key: PhaseKey) -> None:
        """Raises PolicyRefusal(code=BUDGET) where what is charged passes a budget that fell since."""
        if job.spec.privacy is not None and self._is_lowered:
            what = f"job {job.id} round {key.round} {key.phase}"
            with self._database.transaction() as connection:
                self._check_fits(connection, job, {}, {}, what=what)

    def release_dead(self) -> int:
        """Give back what processes before this one reserved and never spent; how many inputs that were.

        The caller holds the agent's lock, so none of them is alive.
        """
        with self._database.transaction() as connection:
            return connection.execute(
                "DELETE FROM releases WHERE status = ? AND process != ?",
                (ReleaseStatus.RESERVED, self._process),
            ).rowcount

    def check_plan(self, job: Job, state: GlobalState) -> None:
        """Raises PolicyRefusal(code=BUDGET) for a private job that plans more than is left.

        state: the initial one. A job that has touched the data before was let in, and continues until the
        budget stops it.
        """
        if job.spec.privacy is None or self._policy.privacy.partial_jobs is Permission.ALLOW:
            return
        try:
            planned = self._released(job, state).planned()
        except ConfigError as error:
            raise PolicyRefusal(f"job {job.id}: {error}", code=Refusal.JOB_INVALID) from None
        with self._database.transaction() as connection:
            if not self._has_begun(connection, job):
                self._check_fits(connection, job, planned, planned, what=f"job {job.id}: its plan")

    def planned_charge(self, job: Job, state: GlobalState) -> PlannedCharge:
        """What the account would be charged for the whole job, composed as it is when the job
        reserves. state: the initial one. Raises ConfigError.
        """
        plan = self._released(job, state).planned()
        with self._database.transaction() as connection:
            held = self._releases(connection)
            has_begun = self._has_begun(connection, job)
        alone, after = (each.with_more(plan, job=job.digest, plan=plan) for each in (held.emptied, held))
        return PlannedCharge(
            delta=held.delta,
            epsilon=alone.epsilon(),
            epsilon_after=None if has_begun else after.epsilon(),
        )

    def reserve(
        self, job: Job, key: PhaseKey, state: GlobalState, *, members: int, use: StateUse | None = None
    ) -> Charge:
        """Room for one input of a phase, before its data are touched. use: recorded when it is spent.

        Raises PolicyRefusal(code=BUDGET) where it does not fit; nothing is written then. Raises
        PolicyRefusal(code=POLICY) where as many inputs of this phase have left as policy has attempts.
        """
        what = f"job {job.id} round {key.round} {key.phase}"
        cost = plan = None
        if job.spec.privacy is not None:
            released = self._released(job, state)
            # of this state, not of the plan: after a round that was lost more arms may be left
            arms = max(1, len(job.strategy.live_arms(key.kind, state)))
            cost, plan = released.cost(key.kind, members, arms=arms), released.planned()
            epsilon(plan, self._delta)  # what takes long is done before the lock is held
        with self._database.transaction(Commit.QUIET) as connection:
            check_not_put_back(connection)
            open_account(connection, self._data_set, self._delta)
            self._check_attempts(connection, job, key, what)
            if cost is not None and plan is not None:
                self._check_fits(connection, job, plan, Counter(cost), what=what)
                write_plan(connection, job.digest, plan, self._data_set)
            input_id = self._write_input(connection, key, cost, ReleaseStatus.RESERVED)
        return Charge(self, input_id, use)

    def charge_plan(self, connection: sqlite3.Connection, job_digest: bytes, cost: Cost | None) -> None:
        """All that a job may have spent beyond what the ledger holds, as inputs that left; it may be more
        than the budget. No plan stands beside it, so the account goes through the filter from then on.

        cost: None for a job without noise. Source: docs/protocol.md 6.13.
        """
        open_account(connection, self._data_set, self._delta)
        key = PhaseKey(job_digest=job_digest, round=0, phase=RECOVERY, attempt=0)
        for start in range(0, len(cost or (None,)), _RECOVERED_AT_ONCE):
            part = None if cost is None else cost[start : start + _RECOVERED_AT_ONCE]
            self._write_input(connection, key, part, ReleaseStatus.SPENT)

    def balance(self) -> BudgetBalance:
        """Where the account stands now, job by job."""
        with self._database.transaction() as connection:
            of_jobs = self._spent_by_job(connection)
            spent, held = (self._releases(connection, only) for only in (ReleaseStatus.SPENT, None))
            jobs = [
                (self._of_one_job(connection, job_digest, inputs), job_digest, inputs)
                for job_digest, inputs in of_jobs.items()
            ]
        return BudgetBalance(
            data_set=self._data_set,
            budget=min(self._budgets),
            delta=self._delta,
            spent=spent.epsilon(),
            held=held.epsilon(),
            unnoised=sum(inputs[None] for inputs in of_jobs.values()),
            jobs=tuple(
                JobSpend(
                    job_digest=job_digest,
                    epsilon=of_job.epsilon(),
                    inputs=inputs.total(),
                    unnoised=inputs[None],
                )
                for of_job, job_digest, inputs in jobs
            ),
        )

    def of_job(self, job_digest: bytes) -> tuple[AccountReleases, int]:
        """What one job let out by itself, and how many of its inputs left without noise."""
        with self._database.transaction() as connection:
            inputs = self._spent_by_job(connection).get(job_digest, Counter())
            return self._of_one_job(connection, job_digest, inputs), inputs[None]

    def spent_inputs(self, job_digest: bytes) -> Counter[tuple[str, int]]:
        """How many inputs of a job left, by kind of phase and number of releases."""
        found: Counter[tuple[str, int]] = Counter()
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT phase, cost_digest, count(*) AS inputs FROM releases"
                " WHERE data_set = ? AND job_digest = ? AND status = ? GROUP BY phase, cost_digest",
                (self._data_set, job_digest, ReleaseStatus.SPENT),
            ).fetchall()
            for row in rows:
                releases = self._costs.cost(connection, row["cost_digest"]) or ()
                found[phase_kind(row["phase"]), len(releases)] += row["inputs"]
        return found

    def spent(self) -> tuple[float, int]:
        """Epsilon spent of the account, and inputs that left without noise."""
        with self._database.transaction() as connection:
            releases = self._releases(connection, ReleaseStatus.SPENT)
            unnoised = self._inputs_by_cost(connection, ReleaseStatus.SPENT)[None]
        return releases.epsilon(), unnoised

    def spend(self, input_id: bytes, use: StateUse | None = None, check: SumCheck | None = None) -> None:
        """Durable, and told, before the first byte leaves. check: of the sum that the input goes into.

        Raises PolicyRefusal(code=STAGE) if the reservation was given back, and as `state_uses.check_use` and
        `known_states.keep_check`; nothing is spent then.
        """
        with self._database.transaction() as connection:
            check_not_put_back(connection)
            found = connection.execute("SELECT * FROM releases WHERE input_id = ?", (input_id,)).fetchone()
            if found is None:
                raise PolicyRefusal("budget: the input was given up, so it cannot leave", code=Refusal.STAGE)
            connection.execute(
                "UPDATE releases SET status = ? WHERE input_id = ?", (ReleaseStatus.SPENT, input_id)
            )
            if use is not None:
                record_use(
                    connection,
                    use,
                    data_set=self._data_set,
                    max_repeats=self._policy.max_repeats,
                    unix_seconds=self._clock().timestamp(),
                )
            if check is not None:
                keep_check(connection, check)
        self._tell(spend_of(found))

    def keep_check(self, check: SumCheck) -> None:
        """Of a further session that an input goes into which was spent before. Raises PolicyRefusal."""
        with self._database.transaction() as connection:
            keep_check(connection, check)

    def release(self, input_id: bytes) -> None:
        """Give a reservation back; what was spent stays."""
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM releases WHERE input_id = ? AND status = ?", (input_id, ReleaseStatus.RESERVED)
            )

    def _write_input(
        self, connection: sqlite3.Connection, key: PhaseKey, cost: Cost | None, status: ReleaseStatus
    ) -> bytes:
        """The new row's input id."""
        input_id = os.urandom(INPUT_ID_BYTES)
        cost_digest = None if cost is None else write_cost(connection, cost)
        connection.execute(
            "INSERT INTO releases (input_id, data_set, job_digest, round, phase, cost_digest, delta,"
            " status, process, written_unix_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                input_id,
                self._data_set,
                key.job_digest,
                key.round,
                key.phase,
                cost_digest,
                self._delta,
                status,
                self._process,
                self._clock().timestamp(),
            ),
        )
        return input_id

    def _check_attempts(self, connection: sqlite3.Connection, job: Job, key: PhaseKey, what: str) -> None:
        """After each crash an input is made again, with other noise; a phase is worth so many and no more."""
        (left,) = connection.execute(
            "SELECT count(*) FROM releases"
            " WHERE data_set = ? AND job_digest = ? AND round = ? AND phase = ? AND status = ?",
            (self._data_set, key.job_digest, key.round, key.phase, ReleaseStatus.SPENT),
        ).fetchone()
        if left >= job.spec.max_attempts:
            raise PolicyRefusal(
                f"{what}: expected at most {job.spec.max_attempts} different inputs, the job's max_attempts, "
                f"got {left + 1}"
            )

    def _check_fits(
        self,
        connection: sqlite3.Connection,
        job: Job,
        plan: Mapping[Release, int],
        more: Mapping[Release, int],
        *,
        what: str,
    ) -> None:
        held = self._releases(connection)
        after = held.with_more(more, job=job.digest, plan=plan)
        most = next((budget for budget in sorted(self._budgets) if not after.fits(budget)), None)
        if most is None:
            return
        alone = held.emptied.with_more(more, job=job.digest, plan=plan)
        raise PolicyRefusal(
            f"{what}: expected at most epsilon {most:g} of account {self._data_set} (delta {held.delta:g}), "
            f"got {after.epsilon():.4g}: {held.epsilon():.4g} spent or reserved before and "
            f"{alone.epsilon():.4g} by itself, which are composed, not added",
            code=Refusal.BUDGET,
        )

    def _has_begun(self, connection: sqlite3.Connection, job: Job) -> bool:
        """Whether the job has touched the data."""
        query = "SELECT 1 FROM releases WHERE data_set = ? AND job_digest = ? LIMIT 1"
        return connection.execute(query, (self._data_set, job.digest)).fetchone() is not None

    def _released(self, job: Job, state: GlobalState) -> JobReleases:
        """What the job releases, worked out once for arrays of these types and shapes."""
        colluders = self._policy.colluders(job.spec)
        basis = colluders, frozenset((name, each.dtype.str, each.shape) for name, each in state.items())
        known = self._of_jobs.get(job.digest)
        if known is None or known[0] != basis:
            known = basis, JobReleases(job.spec, state, colluders=colluders)
            self._of_jobs[job.digest] = known
            while len(self._of_jobs) > MAX_KNOWN_JOBS:
                self._of_jobs.pop(next(iter(self._of_jobs)), None)
        return known[1]

    def _releases(self, connection: sqlite3.Connection, only: ReleaseStatus | None = None) -> AccountReleases:
        """What the account was charged for: spent and reserved, or `only` the ones."""
        jobs = connection.execute(
            "SELECT DISTINCT job_digest FROM releases"
            " WHERE data_set = :account AND (:only IS NULL OR status = :only) AND cost_digest IS NOT NULL",
            {"account": self._data_set, "only": only},
        ).fetchall()
        digests = frozenset(row["job_digest"] for row in jobs)
        return AccountReleases(
            delta=account_delta(connection, self._data_set) or self._delta,
            sides_are_fixed=sides_are_fixed(connection, self._data_set),
            releases=composed(self._inputs_by_cost(connection, only)),
            jobs=digests,
            first=self._costs.first_plan(connection, self._data_set),
        )

    def _of_one_job(
        self, connection: sqlite3.Connection, job_digest: bytes, inputs: Counter[Cost | None]
    ) -> AccountReleases:
        fixed = sides_are_fixed(connection, self._data_set)
        plan = self._costs.plan(connection, self._data_set, job_digest)
        return AccountReleases(
            delta=self._delta,
            sides_are_fixed=fixed,
            releases=composed(inputs),
            jobs=frozenset({job_digest}),
            first=FirstPlan(job=job_digest, releases=plan, sides_are_fixed=fixed) if plan else None,
        )

    def _inputs_by_cost(
        self, connection: sqlite3.Connection, only: ReleaseStatus | None = None
    ) -> Counter[Cost | None]:
        """How many inputs of each cost it was charged for: spent and reserved, or `only` the ones."""
        rows = connection.execute(
            "SELECT cost_digest, count(*) AS inputs FROM releases"
            " WHERE data_set = :account AND (:only IS NULL OR status = :only) GROUP BY cost_digest",
            {"account": self._data_set, "only": only},
        ).fetchall()
        return Counter({self._costs.cost(connection, row["cost_digest"]): row["inputs"] for row in rows})

    def _spent_by_job(self, connection: sqlite3.Connection) -> dict[bytes, Counter[Cost | None]]:
        rows = connection.execute(
            "SELECT job_digest, cost_digest, count(*) AS inputs FROM releases"
            " WHERE data_set = ? AND status = ? GROUP BY job_digest, cost_digest",
            (self._data_set, ReleaseStatus.SPENT),
        ).fetchall()
        by_job: dict[bytes, Counter[Cost | None]] = {}
        for row in rows:
            of_job = by_job.setdefault(row["job_digest"], Counter())
            of_job[self._costs.cost(connection, row["cost_digest"])] += row["inputs"]
        return by_job


class Charge:
    """One input's reservation, and its spend once it leaves."""

    def __init__(self, budget: Budget, input_id: bytes, use: StateUse | None) -> None:
        self._budget = budget
        self._input_id = input_id
        self._use = use
        self.is_spent = False

    def spend(self, check: SumCheck | None = None) -> None:
        """All that has to be durable before the input leaves: the spend, once, however often it is sent, and
        what checks the sum of this session. check: None where nothing is tagged.

        Raises PolicyRefusal if it was given back, and where its state is not the newest any more.
        """
        if not self.is_spent:
            self._budget.spend(self._input_id, self._use, check)
            self.is_spent = True
        elif check is not None:
            self._budget.keep_check(check)

    def release(self) -> None:
        self._budget.release(self._input_id)


def spend_of(row: sqlite3.Row) -> Spend:
    """A row of the ledger as the audit log shows it."""
    return Spend(
        input_id=row["input_id"],
        data_set=row["data_set"],
        job_digest=row["job_digest"],
        round=row["round"],
        phase=row["phase"],
        cost_digest=row["cost_digest"],
    )
