"""One data set's privacy ledger on disk, and its epsilon by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chorale.job import Job
from chorale.privacy.releases import Gaussian, Release
from chorale.privacy.renyi import ORDERS
from chorale.transport.wire import PhaseKey
from crypto.errors import Refusal
from silo_agent.disclosure.ledger.budget import Budget, Charge, Spend
from silo_agent.disclosure.ledger.costs import BudgetBalance
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL, Arrays
from tests.support import refusals
from tests.support.agents import Hub
from tests.support.sessions import NOW

MEMBERS = 4
STATE: Arrays = {"model/votes": np.zeros(MEMBERS, np.float32), TOTAL: np.array(400)}
SUMS = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}
RECORDS = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
    "statistics_noise_multiplier": 20.0,
}


def private_job(
    folder: Path,
    privacy: dict[str, Any] | None,
    *,
    nonce: int = 0,
    rounds: int = 500,
    max_attempts: int = 100,
) -> Job:
    return Hub(
        folder,
        silos=MEMBERS,
        rounds=rounds,
        privacy=privacy,
        nonce=f"{nonce:032x}",
        max_attempts=max_attempts,
    ).job


def policy(**privacy: Any) -> Policy:
    return Policy.model_validate({"federation": "test", "initial_state": "given", "privacy": privacy})


class Book:
    """One data set's ledger on disk; `crash` is what a kill leaves behind, seen by the next process."""

    def __init__(self, folder: Path, **privacy: Any) -> None:
        self.folder = folder
        self.policy = policy(**privacy)
        self.announced: list[Spend] = []
        self.ledger = Ledger(folder / "ledger.sqlite", clock=lambda: NOW)
        self.budget = self.of("data")

    def of(self, data_set: str, own: Policy | None = None) -> Budget:
        return self.ledger.budget(policy=own or self.policy, data_set=data_set, tell=self.announced.append)

    def crash(self) -> int:
        self.ledger.close()
        self.ledger = Ledger(self.folder / "ledger.sqlite", clock=lambda: NOW)
        self.budget = self.of("data")
        return self.budget.release_dead()

    def reserve(
        self,
        job: Job,
        *,
        round: int = 1,
        phase: str = "train",
        budget: Budget | None = None,
        members: int = MEMBERS,
    ) -> Charge:
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
        return (budget or self.budget).reserve(job, key, STATE, members=members)

    def spend(self, job: Job, **where: Any) -> Charge:
        charge = self.reserve(job, **where)
        charge.spend()
        return charge

    @property
    def balance(self) -> BudgetBalance:
        return self.budget.balance()


def refused(words: str, act: Callable[[], object], code: Refusal = Refusal.BUDGET) -> None:
    refusals.refused(words, act, code)


def by_hand(releases: list[Release], delta: float) -> float:
    """The least budget of a filter over Gaussian noise, from the rule in docs/privacy.md and nothing of the
    product: orders 1.1 to 1024, weights by hand, one excess loss after the other."""
    assert all(isinstance(release, Gaussian) for release in releases)
    if not releases:
        return 0.0
    square = math.fsum(release.noise_multiplier**-2 for release in releases)  # one Gaussian
    draws = sum(release.draws for release in releases)
    failure = math.fsum(release.failure for release in releases)

    def lets_through(epsilon: float, delta: float) -> bool:
        if max(failure + draws * 2.0**-77, math.exp(epsilon) * draws * 2.0**-77) > delta / 16:
            return False
        logs = np.log(np.array(ORDERS) - 1)
        root = math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))
        center = math.log(0.7 * math.sqrt(math.log(1 / delta)) / root)
        weights = np.exp(-((logs - center) ** 2) / (2 * 0.4**2)) * np.gradient(logs)
        weights /= weights.sum()
        excesses = np.geomspace(1e-4, 10.0, 300)[:, None]
        exponents = (np.array(ORDERS) - 1) * (epsilon + excesses - order_rdp)
        shown = np.sum(weights * np.exp(np.minimum(exponents, 600.0)), axis=1)
        return bool(np.all(1 - np.exp(-excesses[:, 0]) <= 7 / 8 * delta * shown))

    order_rdp = np.array(ORDERS) * square / 2
    low, high = 1e-3, 10.0  # no filter of a larger budget is asked here
    while high - low > 1e-6 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if lets_through(middle, delta) else (middle, high)
    return high


def exact(releases: list[Release], delta: float) -> float:
    """The true epsilon of Gaussian noise (Balle and Wang 2018, Theorem 8): no filter is below it."""
    mu = math.sqrt(math.fsum(one.noise_multiplier**-2 for one in releases if isinstance(one, Gaussian)))
    low, high = 0.0, 100.0
    for _ in range(60 if mu else 0):
        middle = (low + high) / 2
        above = math.erfc((middle / mu - mu / 2) / math.sqrt(2)) / 2
        below = math.exp(middle) * math.erfc((middle / mu + mu / 2) / math.sqrt(2)) / 2
        low, high = (low, middle) if above - below <= delta else (middle, high)
    return high if mu else 0.0
