"""What an account has let out: one job's plan as a block, or a filter, by the plan alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.composition import AccountReleases
from chorale.privacy.privacy_filter import filter_epsilon, fits
from chorale.privacy.releases import Gaussian, Release, SampledGaussian
from crypto.fixed_point.layout import Side
from tests.unit.silo_agent.privacy_book import exact

DELTA = 1e-5
FIRST, SECOND = b"1", b"2"
STEP = SampledGaussian(noise_multiplier=2.0, sample_rate=0.2, draws=10)
COUNT = Gaussian(noise_multiplier=20.0, draws=2)
PLAN: Counter[Release] = Counter({STEP: 50, COUNT: 2})
PLANNED = epsilon(PLAN, DELTA)
FILTERED = filter_epsilon(PLAN, DELTA, sides_are_fixed=True)


def account(*, sides_are_fixed: bool = True) -> AccountReleases:
    return AccountReleases(delta=DELTA, sides_are_fixed=sides_are_fixed)


def first(releases: Counter[Release]) -> AccountReleases:
    return account().with_more(releases, job=FIRST, plan=PLAN)


def test_a_job_costs_its_plan_however_early_it_stops() -> None:
    whole = first(PLAN)
    assert whole.epsilon() == PLANNED < FILTERED
    assert whole.fits(PLANNED)
    assert not whole.fits(0.999 * PLANNED)
    begun = first(Counter({STEP: 1}))
    assert begun.epsilon() == filter_epsilon({STEP: 1}, DELTA, sides_are_fixed=True) < PLANNED
    assert first(Counter({STEP: 49})).epsilon() == PLANNED


def test_a_release_beyond_the_plan_goes_through_the_filter() -> None:
    """A crash makes a silo compute an input again: the plan held none for it."""
    beyond = first(PLAN + Counter({STEP: 1}))
    assert not beyond.fits(1.01 * PLANNED)
    assert beyond.epsilon() > FILTERED
    # rounds that name fewer silos draw less noise, and are the planned releases otherwise
    fewer = SampledGaussian(noise_multiplier=2.0, sample_rate=0.2, draws=7)
    assert first(Counter({fewer: 50, COUNT: 2})).epsilon() == PLANNED
    more = SampledGaussian(noise_multiplier=2.0, sample_rate=0.2, draws=11)
    assert first(Counter({more: 50, COUNT: 2})).epsilon() > PLANNED


def test_a_second_job_has_what_the_first_ones_plan_left_of_delta() -> None:
    """Begun at a budget that pays the plan alone, the account would hold delta twice: once for readers who
    stop with the first job, once for those who go on."""
    budget = (PLANNED + FILTERED) / 2
    begun, more = Counter({STEP: 3}), Counter({COUNT: 1})
    both = first(begun).with_more(more, job=SECOND, plan=more)
    left = DELTA - delta_at(PLAN, budget)
    assert 0 < left < 0.9 * DELTA
    spent = both.epsilon()
    assert spent == filter_epsilon(begun + more, DELTA, sides_are_fixed=True) < PLANNED
    low, high = 1, 2_000
    while high - low > 1:  # counts that the account lets through beside the three steps
        middle = (low + high) // 2
        is_let = first(begun).with_more(Counter({COUNT: middle}), job=SECOND, plan=more).fits(budget)
        low, high = (middle, high) if is_let else (low, middle)
    assert fits(begun + Counter({COUNT: low}), budget, left, sides_are_fixed=True)
    assert not fits(begun + Counter({COUNT: high}), budget, left, sides_are_fixed=True)
    # the control: all of delta lets more through
    assert fits(begun + Counter({COUNT: high}), budget, DELTA, sides_are_fixed=True)


def test_a_budget_that_the_filter_keeps_the_plan_within_leaves_all_of_delta() -> None:
    budget = 1.3 * FILTERED
    both = first(PLAN).with_more(Counter({COUNT: 5}), job=SECOND, plan=Counter({COUNT: 5}))
    assert both.fits(budget)
    assert fits(PLAN + Counter({COUNT: 5}), budget, DELTA, sides_are_fixed=True)


def test_sides_that_changed_are_added() -> None:
    held = Gaussian(noise_multiplier=3.0, draws=1, side=Side.HOLDOUT)
    plan = PLAN + Counter({held: 1})
    fixed, moved = (
        account(sides_are_fixed=is_fixed).with_more(plan, job=FIRST, plan=plan) for is_fixed in (True, False)
    )
    assert fixed.epsilon() == PLANNED
    assert moved.epsilon() == epsilon(plan, DELTA, sides_are_fixed=False) > 1.05 * PLANNED


def test_a_plan_that_was_bought_stays_paid_for_when_sides_change_or_a_job_without_a_plan_comes() -> None:
    """Either made the account one of the filter alone, with all of delta beside the plan's."""
    held = Gaussian(noise_multiplier=3.0, draws=1, side=Side.HOLDOUT)
    plan = PLAN + Counter({held: 1})
    budget, begun = 1.001 * PLANNED, Counter({STEP: 25})
    bought = account().with_more(begun, job=FIRST, plan=plan)
    assert epsilon(plan, DELTA, sides_are_fixed=False) > budget
    assert fits(begun, budget, DELTA, sides_are_fixed=False)
    for changed in (
        replace(bought, sides_are_fixed=False),
        replace(bought, jobs=bought.jobs | {SECOND}),  # a plan that a recovery charged
    ):
        low, high = 1, 100_000
        while high - low > 1:
            middle = (low + high) // 2
            is_let = replace(changed, releases=begun + Counter({COUNT: middle})).fits(budget)
            low, high = (middle, high) if is_let else (low, middle)
        left = DELTA - delta_at(plan, budget)
        assert fits(begun + Counter({COUNT: high}), budget, DELTA, sides_are_fixed=True)
        assert not fits(begun + Counter({COUNT: high}), budget, left, sides_are_fixed=changed.sides_are_fixed)


def test_what_no_budget_covers_is_not_shown_as_the_first_plans_cost() -> None:
    failing = replace(STEP, failure=DELTA / 10)
    assert fits(PLAN, 1.2 * FILTERED, DELTA, sides_are_fixed=True)
    both = first(PLAN).with_more({failing: 1}, job=SECOND, plan={failing: 1})
    assert both.epsilon() == math.inf


def test_an_account_of_an_earlier_release_has_no_plan_and_goes_through_the_filter() -> None:
    old = AccountReleases(delta=DELTA, sides_are_fixed=True, releases=PLAN, jobs=frozenset({FIRST}))
    assert old.epsilon() == FILTERED
    both = old.with_more({COUNT: 1}, job=SECOND, plan={COUNT: 1})
    assert both.first is None
    assert both.epsilon() > FILTERED


@settings(max_examples=15, deadline=None)
@given(
    plan=st.dictionaries(st.floats(2.0, 30.0), st.integers(1, 20), min_size=1, max_size=2),
    made=st.floats(0.0, 1.5),
    further=st.dictionaries(st.floats(2.0, 30.0), st.integers(1, 5), max_size=2),
)
def test_an_account_is_never_below_the_truth_and_lets_through_what_it_says(
    plan: dict[float, int], made: float, further: dict[float, int]
) -> None:
    planned: Counter[Release] = Counter(_gaussians(plan))
    begun: Counter[Release] = +Counter({release: round(count * made) for release, count in planned.items()})
    other: Counter[Release] = Counter(_gaussians(further))
    found = account().with_more(begun, job=FIRST, plan=planned)
    if other:
        found = found.with_more(other, job=SECOND, plan=other)
    spent = found.epsilon()
    assert spent >= exact(list((begun + other).elements()), DELTA) * (1 - 1e-6)
    if spent:
        assert found.fits(spent * 1.001)
        if not planned <= begun or other:
            assert not found.fits(spent * 0.99)


def _gaussians(counts: dict[float, int]) -> dict[Release, int]:
    return {Gaussian(noise_multiplier=noise, draws=0): count for noise, count in counts.items()}
