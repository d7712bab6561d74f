"""What a private search costs: every arm of every round, rung by rung, counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from chorale.privacy.job_releases import JobReleases, planned_rungs
from chorale.privacy.releases import DpSgd, Gaussian
from chorale.privacy.solve import solve
from chorale.spec.job_spec import JobSpec
from chorale.spec.training.search_spec import SearchSpec
from cli.silo.recovery import at_most_released
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.disclosure.policy.privacy_policy import PrivacyPolicy
from strategies.phases.arms import Halving
from strategies.tasks.classification import CLASSIFICATION
from tests.support.settings import job_spec

RATE = "training.learning_rate"
SEARCH = {"values": {RATE: [0.1, 0.3, 1.0, 3.0, 10.0]}, "rounds": 3}
SUMS = {"sums": {"clip_norm": 0.5, "noise_multiplier": 8.0}, "statistics_noise_multiplier": 30.0}
RECORDS: dict[str, Any] = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
    "statistics_noise_multiplier": 30.0,
}
SHARED = {**RECORDS, "records": {**RECORDS["records"], "noise": "sum"}}
STATE = {"model/votes": np.zeros(4, np.float32)}
ROUNDS, ARMS = 10, 3 * 5 + 3 * 2 + 4  # 5, 2 and 1 of them


def searched(privacy: dict[str, Any], search: dict[str, Any] | None = SEARCH, **fields: Any) -> JobSpec:
    values = {"rounds": ROUNDS, "privacy": privacy, "search": search, "enrollment_every": 100}
    return job_spec(**values | fields)


def gaussian_epsilon(square: float, delta: float) -> float:
    """Of Gaussian sums, square: of their sensitivities in deviations, added up (Balle and Wang 2018)."""
    mu = math.sqrt(square)

    def excess(epsilon: float) -> float:
        below = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(below) - delta

    return float(brentq(excess, 0.0, 50.0))


def test_a_search_costs_what_its_arms_cost_by_hand() -> None:
    """Updates are of training records and tests of held-out ones; each record is on one side."""
    released = JobReleases(searched(SUMS), STATE)
    of_updates = ARMS / (8.0 / 2) ** 2  # an exchange moves a sum twice as far as leaving a silo out
    of_tests = 3 * (ARMS + 1) / 30.0**2
    samples = 1 / 30.0**2
    assert released.epsilon_of_updates() == pytest.approx(gaussian_epsilon(of_updates, 1e-5), rel=5e-3)
    by_hand = gaussian_epsilon(max(of_updates, of_tests) + samples, 1e-5)
    assert released.epsilon() == pytest.approx(by_hand, rel=5e-3)
    # the control: without its further arms it costs less
    assert JobReleases(searched(SUMS, None), STATE).epsilon() < 0.65 * by_hand


def test_steps_of_every_arm_count_and_only_live_ones() -> None:
    plan = JobReleases(searched(RECORDS), STATE).planned()
    trained = {release: count for release, count in plan.items() if isinstance(release, DpSgd)}
    assert sum(trained.values()) == ARMS
    assert (
        sum(count for release, count in plan.items() if isinstance(release, Gaussian)) == 3 * (ARMS + 1) + 1
    )
    train = [(times, arms) for kind, _, times, arms in planned_rungs(searched(RECORDS)) if kind == "train"]
    assert train == [(3, 5), (3, 2), (4, 1)]


def test_multipliers_are_solved_for_the_whole_search() -> None:
    open_ = {"epsilon": 4.0, "sums": {"clip_norm": 0.5}, "statistics_noise_multiplier": 60.0}
    spec = solve(searched(open_), STATE)
    assert 0.99 * 4.0 <= JobReleases(spec, STATE).epsilon() <= 4.0
    assert JobReleases(spec.arms[1], STATE).epsilon() < 3.0  # by itself


def test_the_draws_risk_is_paid_once_by_a_phase_of_several_arms() -> None:
    spec = searched(RECORDS, silos=[f"silo-{place}" for place in range(40)], fraction=0.5)
    released = JobReleases(spec, STATE, colluders=8)
    risks = [sum(each.failure for each in released.cost("train", 20, arms=arms)) for arms in (5, 1)]
    assert risks[0] == risks[1] > 0


def test_arms_that_release_something_else_have_no_plan() -> None:
    """Which of them are left follows from the data. `check_private_search` refuses this job before."""
    like = searched(RECORDS, {"values": {RATE: [0.1, 0.2]}, "rounds": 2})
    JobReleases(like, STATE).planned()  # the control
    search = SearchSpec(values={"training.local_steps": (3, 5)}, rounds=2)
    training = like.training.model_copy(update={"local_epochs": None, "local_steps": 3})
    unlike = like.model_copy(update={"search": search, "training": training})
    with pytest.raises(ConfigError, match=r"search.values: expected arms that release the same .* arm 1"):
        JobReleases(unlike, STATE).planned()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"search": {"values": {"training.local_steps": [3, 5]}, "rounds": 2}, "training": {}},
            "training.local_steps is not allowed with privacy.records",
        ),
        (
            {
                "privacy": {**RECORDS, "records": {**RECORDS["records"], "noise": "sum"}},
                "steps": 20,
                "rounds": 22,
            },
            "search: not allowed with privacy.records.noise: sum, whose steps test no model",
        ),
    ],
)
def test_a_search_whose_arms_cannot_cost_the_same_or_be_judged_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        searched(**{"privacy": RECORDS} | fields)


def test_a_policy_counts_the_steps_of_all_arms_before_the_first_phase() -> None:
    policy = PrivacyPolicy(epsilon=2.5)
    policy.check_job(searched(RECORDS, None))  # the control
    with pytest.raises(PolicyRefusal, match=f"10 rounds of training, {ARMS} of single arms"):
        policy.check_job(searched(RECORDS))


def test_a_ledger_that_was_put_back_is_charged_as_if_no_arm_had_fallen_out() -> None:
    """Where rounds were lost, all may have been left to the end."""
    spec = searched(SUMS, model={"name": "mlp", "hidden": [4], "norm": "group"})
    released = at_most_released(bytes(32), spec, {}, 2, 1)
    assert released is not None
    updates = [
        release for release in released if isinstance(release, Gaussian) and release.noise_multiplier < 5
    ]
    assert len(updates) == 5 * (ROUNDS + 2)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_noise_beyond_the_range_of_a_metric_ends_no_halving(metric: str) -> None:
    halving = Halving(rounds=2, metric=metric, is_lowest_best=metric == "loss", task=CLASSIFICATION)
    sums = {  # by arm
        0: (-40.0, 90.0, 60.0),
        1: (-10.0, 70.0, 60.0),
        2: (20.0, 30.0, 60.0),
        3: (90.0, -200.0, -5.0),  # would be the best of all
        4: (-90.0, 200.0, 0.0),
    }
    values = {
        arm: halving.value(
            {"loss_sum": np.array(loss), "correct": np.array(right), "tested": np.array(tested)}
        )
        for arm, (loss, right, tested) in sums.items()
    }
    assert halving.better_half(values) == [0, 1]
