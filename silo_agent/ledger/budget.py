"""The privacy ledger of a data set: what its inputs released, in all jobs, and what may still be released.

A *reservation* is written before an input's data are touched, and counts like spend. It becomes spend
before the first byte of y(u) leaves, and is given back if nothing left. Every check and the write that
it allows share one transaction. Nothing is ever subtracted: epsilon is composed anew from all stored
releases at the policy's delta of today. Source: docs/protocol.md 6.8, docs/privacy.md "The ledger".
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from sqlalchemy import (
    BindParameter,
    Connection,
    Engine,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.privacy.accountant import Release, epsilon, releases_from_json, releases_to_json
from chorale.privacy.plan import planned_releases
from chorale.privacy.protection import releases_of
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.ledger.ledger_parameters import OF_DATA_SET, OF_JOB, of_phase, same_phase
from silo_agent.ledger.ledger_tables import costs, releases
from silo_agent.policy.policy import Policy
from silo_agent.policy.privacy_policy import PartialJobs

INPUT_ID_BYTES = 16

log = get_logger("silo_agent.ledger.budget")


Cost: TypeAlias = tuple[Release, ...]  # all that one input releases; None where nothing bounds it


class ReleaseStatus(StrEnum):
    RESERVED = "reserved"  # the data may be touched; nothing has left
    SPENT = "spent"  # bytes may have left


_OF_INPUT: BindParameter[bytes] = bindparam("of_input")
_RELEASE = select(releases).where(releases.c.input_id == _OF_INPUT)
_MARK_SPENT = update(releases).where(releases.c.input_id == _OF_INPUT).values(status=ReleaseStatus.SPENT)
_GIVE_BACK = delete(releases).where(
    releases.c.input_id == _OF_INPUT, releases.c.status == ReleaseStatus.RESERVED
)
_INPUTS = select(func.count()).select_from(releases).where(releases.c.data_set == OF_DATA_SET)
_INPUTS_OF_JOB = _INPUTS.where(releases.c.job_digest == OF_JOB)
_LEFT_IN_PHASE = _INPUTS.where(same_phase(releases), releases.c.status == ReleaseStatus.SPENT)
_HELD = (
    select(releases.c.cost_digest, func.count().label("inputs"))
    .where(releases.c.data_set == OF_DATA_SET)
    .group_by(releases.c.cost_digest)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """An input that is about to leave, as the audit log tells of it. cost_digest: None without noise."""

    input_id: bytes
    data_set: str
    job_digest: bytes
    round: int
    phase: str
    cost_digest: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpend:
    """What one job spent by itself; the jobs' epsilons add up to more than they cost together."""

    job_digest: bytes
    epsilon: float
    inputs: int
    unnoised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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


class Budget:
    """One data set under one policy. Synchronous and durable; safe in any thread.

    tell: hears of every spend when it is durable and before a byte leaves.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policy: Policy,
        data_set: str,
        clock: Callable[[], datetime],
        tell: Callable[[Spend], None],
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._data_set = data_set
        self._clock = clock
        self._tell = tell
        self._process = os.urandom(8)
        self._costs: dict[bytes, Cost] = {}  # by digest, so an entry never changes

    def release_dead(self) -> int:
        """Give back what processes before this one reserved and never spent; how many inputs that were.

        The caller holds the agent's lock, so none of them is alive.
        """
        of_others = and_(releases.c.status == ReleaseStatus.RESERVED, releases.c.process != self._process)
        with self._engine.begin() as connection:
            return connection.execute(delete(releases).where(of_others)).rowcount

    def check_plan(self, job: Job, state: GlobalState) -> None:
        """Raises PolicyRefusal(code=BUDGET) for a private job that plans more than is left.

        state: the initial one. A job that has touched the data before was let in, and goes on until the
        budget stops it.
        """
        if job.spec.privacy is None or self._policy.privacy.partial_jobs is PartialJobs.ALLOW:
            return
        try:
            planned = planned_releases(job.spec, state)
        except ConfigError as error:
            raise PolicyRefusal(f"job {job.id}: {error}", code=Refusal.JOB_INVALID) from None
        with self._engine.begin() as connection:
            of_job = {"of_data_set": self._data_set, "of_job": job.digest}
            if connection.execute(_INPUTS_OF_JOB, of_job).scalar_one():
                return
            held = self._held(connection)
        self._check_fits(held, planned, what=f"job {job.id}: its plan")

    def reserve(self, job: Job, key: PhaseKey, state: GlobalState, *, members: int) -> Charge:
        """Room for one input of a phase, before its data are touched.

        Raises PolicyRefusal(code=BUDGET) where it does not fit; nothing is written then. Raises
        PolicyRefusal(code=POLICY) where as many inputs of this phase have left as policy has attempts.
        """
        what = f"job {job.id} round {key.round} {key.phase}"
        cost = None if job.spec.privacy is None else releases_of(job.spec, key.kind, state, members)
        if cost is not None:
            epsilon(cost, self._policy.privacy.delta)  # what takes long is done before the lock is held
        row = self._row(key, cost)
        with self._engine.begin() as connection:
            self._check_attempts(connection, key, what)
            if cost is not None:
                self._check_fits(self._held(connection), Counter(cost), what=what)
                kept = {"digest": row["cost_digest"], "releases": releases_to_json(cost)}
                connection.execute(insert(costs).prefix_with("OR IGNORE"), kept)
            connection.execute(insert(releases), row)
        return Charge(self, row["input_id"])

    def standing(self) -> Standing:
        """Where the data set stands now, job by job."""
        with self._engine.begin() as connection:
            by_job = self._by_job(connection)
            held = self._held(connection)
        spent = _total(by_job.values())
        return Standing(
            data_set=self._data_set,
            budget=self._policy.privacy.epsilon,
            delta=self._policy.privacy.delta,
            spent=self._epsilon(spent),
            held=self._epsilon(held),
            unnoised=spent[None],
            jobs=tuple(self._job_spend(job_digest, counts) for job_digest, counts in by_job.items()),
        )

    def spent(self) -> tuple[float, int]:
        """Epsilon spent on the data set, and inputs that left without noise."""
        with self._engine.begin() as connection:
            counts = _total(self._by_job(connection).values())
        return self._epsilon(counts), counts[None]

    def spend(self, input_id: bytes) -> None:
        """Durable, and told, before the first byte leaves.

        Raises PolicyRefusal(code=STAGE) if the reservation was given back.
        """
        of_input = {"of_input": input_id}
        with self._engine.begin() as connection:
            found = connection.execute(_RELEASE, of_input).one_or_none()
            if found is None:
                raise PolicyRefusal("budget: the input was given up, so it cannot leave", code=Refusal.STAGE)
            connection.execute(_MARK_SPENT, of_input)
        self._tell(spend_of(found))

    def release(self, input_id: bytes) -> None:
        """Give a reservation back; what was spent stays."""
        with self._engine.begin() as connection:
            connection.execute(_GIVE_BACK, {"of_input": input_id})

    def _check_attempts(self, connection: Connection, key: PhaseKey, what: str) -> None:
        """Each crash makes an input anew; a phase is worth so many and no more."""
        of = {**of_phase(key), "of_data_set": self._data_set}
        left = connection.execute(_LEFT_IN_PHASE, of).scalar_one()
        if left >= self._policy.max_attempts:
            raise PolicyRefusal(
                f"{what}: expected at most {self._policy.max_attempts} different inputs (max_attempts), "
                f"and {left} have left already"
            )

    def _check_fits(self, held: Counter[Cost | None], more: Mapping[Release, int], *, what: str) -> None:
        privacy = self._policy.privacy
        before = self._epsilon(held)
        after = epsilon(_composed(held) + Counter(more), privacy.delta)
        if after <= privacy.epsilon:
            return
        alone = epsilon(more, privacy.delta)
        raise PolicyRefusal(
            f"{what}: expected at most epsilon {privacy.epsilon:g} on data set {self._data_set} "
            f"(delta {privacy.delta:g}), got {after:.4g}: {before:.4g} spent or reserved before, "
            f"{alone:.4g} by itself",
            code=Refusal.BUDGET,
        )

    def _epsilon(self, counts: Counter[Cost | None]) -> float:
        return epsilon(_composed(counts), self._policy.privacy.delta)

    def _held(self, connection: Connection) -> Counter[Cost | None]:
        """What was spent and what is reserved on the data set, by cost."""
        rows = connection.execute(_HELD, {"of_data_set": self._data_set}).all()
        return Counter({self._cost(connection, row.cost_digest): row.inputs for row in rows})

    def _by_job(self, connection: Connection) -> dict[bytes, Counter[Cost | None]]:
        """What was spent on the data set, by job and cost."""
        of_data = and_(releases.c.data_set == self._data_set, releases.c.status == ReleaseStatus.SPENT)
        columns = (releases.c.job_digest, releases.c.cost_digest)
        counted = select(*columns, func.count().label("inputs")).where(of_data).group_by(*columns)
        by_job: dict[bytes, Counter[Cost | None]] = {}
        for row in connection.execute(counted).all():
            of_job = by_job.setdefault(row.job_digest, Counter())
            of_job[self._cost(connection, row.cost_digest)] += row.inputs
        return by_job

    def _cost(self, connection: Connection, digest: bytes | None) -> Cost | None:
        if digest is None:
            return None
        if digest not in self._costs:
            text = select(costs.c.releases).where(costs.c.digest == digest)
            self._costs[digest] = _read_cost(connection.execute(text).scalar_one(), digest)
        return self._costs[digest]

    def _job_spend(self, job_digest: bytes, counts: Counter[Cost | None]) -> JobSpend:
        return JobSpend(
            job_digest=job_digest,
            epsilon=self._epsilon(counts),
            inputs=counts.total(),
            unnoised=counts[None],
        )

    def _row(self, key: PhaseKey, cost: Cost | None) -> dict[str, Any]:
        return {
            "input_id": os.urandom(INPUT_ID_BYTES),
            "data_set": self._data_set,
            "job_digest": key.job_digest,
            "round": key.round,
            "phase": key.phase,
            "cost_digest": None if cost is None else _digest(releases_to_json(cost)),
            "delta": self._policy.privacy.delta,
            "status": ReleaseStatus.RESERVED,
            "process": self._process,
            "written_unix_seconds": self._clock().timestamp(),
        }


class Charge:
    """One input's reservation, and its spend once it leaves."""

    def __init__(self, budget: Budget, input_id: bytes) -> None:
        self._budget = budget
        self._input_id = input_id
        self.is_spent = False

    def spend(self) -> None:
        """Once, however often the input is sent. Raises PolicyRefusal if it was given back."""
        if not self.is_spent:
            self._budget.spend(self._input_id)
            self.is_spent = True

    def release(self) -> None:
        self._budget.release(self._input_id)


def spend_of(row: Row[Any]) -> Spend:
    """A row of the ledger as the audit log tells of it."""
    return Spend(
        input_id=row.input_id,
        data_set=row.data_set,
        job_digest=row.job_digest,
        round=row.round,
        phase=row.phase,
        cost_digest=row.cost_digest,
    )


def data_sets(engine: Engine) -> list[str]:
    """Every data set that an input was ever made of."""
    with engine.begin() as connection:
        return list(connection.execute(select(releases.c.data_set).distinct().order_by("data_set")).scalars())


def spends(engine: Engine) -> list[Spend]:
    """Everything spent, oldest first."""
    spent = select(releases).where(releases.c.status == ReleaseStatus.SPENT)
    with engine.begin() as connection:
        rows = connection.execute(spent.order_by(releases.c.written_unix_seconds)).all()
    return [spend_of(row) for row in rows]


def _total(counts: Iterable[Counter[Cost | None]]) -> Counter[Cost | None]:
    total: Counter[Cost | None] = Counter()
    for more in counts:
        total.update(more)
    return total


def _composed(counts: Counter[Cost | None]) -> Counter[Release]:
    """Every release and how often it was made; what has no bound is counted elsewhere."""
    composed: Counter[Release] = Counter()
    for cost, inputs in counts.items():
        for release in cost or ():
            composed[release] += inputs
    return composed


def _read_cost(text: str, digest: bytes) -> Cost:
    """Raises ConfigError for a cost that is not the one that was written."""
    if _digest(text) != digest:
        raise ConfigError("ledger: a release was changed after it was written")
    return releases_from_json(text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
