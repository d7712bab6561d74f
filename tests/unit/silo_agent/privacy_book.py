"""One data set's privacy ledger on disk, and its epsilon by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.privacy.accountant import ORDERS, SAMPLER_DISTANCE
from chorale.privacy.releases import Release, Skellam
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal
from silo_agent.ledger.budget import Budget, BudgetBalance, Charge, Spend
from silo_agent.ledger.ledger import Ledger
from silo_agent.policy.policy import Policy
from strategies.base import TOTAL, Arrays
from tests.support.agents import Hub
from tests.support.sessions import NOW

MEMBERS = 4
STATE: Arrays = {"model/votes": np.zeros(MEMBERS, np.float32), TOTAL: np.array(400)}
SUMS = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}
RECORDS = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
    "statistics_noise_multiplier": 20.0,
}


def private_job(folder: Path, privacy: dict[str, Any] | None, *, nonce: int = 0, rounds: int = 500) -> Job:
    return Hub(folder, silos=MEMBERS, rounds=rounds, privacy=privacy, nonce=f"{nonce:032x}").job


def policy(*, max_attempts: int = 5, **privacy: Any) -> Policy:
    return Policy.model_validate(
        {
            "federation": "test",
            "initial_state": "given",
            "privacy": privacy,
            "max_attempts": max_attempts,
        }
    )


class Book:
    """One data set's ledger on disk; `crash` is what a kill leaves behind, seen by the next process."""

    def __init__(self, folder: Path, **privacy: Any) -> None:
        self.folder = folder
        self.policy = policy(**privacy)
        self.told: list[Spend] = []
        self.ledger = Ledger(folder / "ledger.sqlite", clock=lambda: NOW)
        self.budget = self.of("data")

    def of(self, data_set: str, own: Policy | None = None) -> Budget:
        return self.ledger.budget(policy=own or self.policy, data_set=data_set, tell=self.told.append)

    def crash(self) -> int:
        self.ledger.close()
        self.ledger = Ledger(self.folder / "ledger.sqlite", clock=lambda: NOW)
        self.budget = self.of("data")
        return self.budget.release_dead()

    def reserve(
        self, job: Job, *, round: int = 1, phase: str = "train", budget: Budget | None = None
    ) -> Charge:
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
        return (budget or self.budget).reserve(job, key, STATE, members=MEMBERS)

    def spend(self, job: Job, **where: Any) -> Charge:
        charge = self.reserve(job, **where)
        charge.spend()
        return charge

    @property
    def balance(self) -> BudgetBalance:
        return self.budget.balance()


def refused(words: str, act: Callable[[], object], code: Refusal = Refusal.BUDGET) -> None:
    with pytest.raises(PolicyRefusal, match=words) as caught:
        act()
    assert caught.value.code is code


def by_hand(releases: list[Release], delta: float) -> float:
    """Epsilon of sums with Skellam noise, from the papers and nothing of the product.

    Renyi divergence by Agarwal, Kairouz, Liu 2021, Corollary 4.1, added up order by order; conversion by
    Canonne, Kamath, Steinke 2020, Proposition 12; delta less what the roundings and the sampler may fail.
    """
    assert all(isinstance(release, Skellam) for release in releases)
    if not releases:
        return 0.0
    sums: list[Any] = releases

    def at(left: float) -> float:
        best = math.inf
        for order in ORDERS:
            a = math.ceil(order)
            rdp = math.fsum(
                a * one.l2**2 / (2 * one.variance)
                + min(
                    ((2 * a - 1) * one.l2**2 + 6 * one.l1) / (4 * one.variance**2),
                    3 * one.l1 / (2 * one.variance),
                )
                for one in sums
            )
            found = rdp + math.log1p(-1 / order) - math.log(left * order) / (order - 1)
            best = min(best, max(0.0, found))
        return best

    left = delta - math.fsum(one.failure for one in sums)
    slack = (1 + math.exp(min(at(left / 2), 500.0))) * sum(one.draws for one in sums) * SAMPLER_DISTANCE
    return at(left - slack)
