"""Silos drop at any stage: the sum is exact, or the attempt ends with the right reason."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.masking.masks import UnmaskPlan
from crypto.session import seeds
from crypto.session.coordinator_session import AbortReason, CoordinatorState, SessionAborted
from tests.support.sessions import STAGES, Exchange, make_session
from tests.support.soak import examples


@pytest.mark.parametrize("silos", [3, 4, *(pytest.param(more, marks=pytest.mark.soak) for more in (5, 6))])
@pytest.mark.parametrize("stage", STAGES)
def test_sum_is_exact_or_attempt_fails_for_every_subset_dropped_in_one_stage(silos, stage):
    """Five silos and more: drawn, in the next test."""
    for size in range(silos + 1):
        for dropped in itertools.combinations(make_session(silos).terms.names, size):
            check_outcome(make_session(silos), {stage: dropped})


@st.composite
def mixed_drops(draw):
    silos = draw(st.sampled_from([5, 6, 7, 9, 10, 13]))
    names = [f"silo-{index:03}" for index in range(silos)]
    leaving = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(STAGES), max_size=silos // 2))
    return silos, {stage: {name for name, at in leaving.items() if at == stage} for stage in STAGES}


@given(mixed_drops())
@examples(30)
def test_sum_is_exact_or_attempt_fails_when_silos_drop_in_several_stages(case):
    silos, drops = case
    check_outcome(make_session(silos), drops)


def test_tolerated_losses_are_those_of_the_design():
    for silos, losses in [(3, 0), (4, 1), (6, 1), (7, 2), (9, 2), (10, 3)]:
        names = make_session(silos).terms.names
        assert make_session(silos).run({"masked": names[:losses]}).sum() == silos - losses
        with pytest.raises(SessionAborted, match="masked: expected at least"):
            make_session(silos).run({"masked": names[: losses + 1]})


def test_a_plan_holds_the_self_mask_seed_of_every_survivor_as_its_advert_committed_to_it():
    exchange = make_session(7)
    exchange.run_until("masked")
    names, adverts = exchange.coordinator.cohort, exchange.last_messages["silo-000"].adverts
    exchange.mask(drop=["silo-001"])
    exchange.consistency()
    exchange.unmask()
    found = exchange.plan.self_mask_seeds
    assert tuple(found) == tuple(name for name in names if name != "silo-001")
    for name, advert in zip(names, adverts, strict=True):
        if name in found:
            assert seeds.self_mask_commitment(found[name], name=name) in advert.body


def check_outcome(exchange: Exchange, drops: Mapping[str, Collection[str]]) -> None:
    """Predict the sets from the drops alone and compare."""
    rule, gone, left = exchange.terms.rule, set(), {}
    for stage in STAGES:
        gone |= set(drops.get(stage, ()))
        left[stage] = sorted(set(exchange.terms.names) - gone)
    least = dict.fromkeys(STAGES[:3], rule.min_survivors) | dict.fromkeys(STAGES[3:], rule.threshold)
    failing = [stage for stage in STAGES if len(left[stage]) < least[stage]]
    if failing:
        with pytest.raises(SessionAborted, match=f"{failing[0]}: expected at least") as caught:
            exchange.run(drops)
        assert caught.value.reason is AbortReason.TOO_FEW_SILOS
        assert exchange.coordinator.state is CoordinatorState.FAILED
        check_nothing_revealed(exchange)
        return
    assert np.array_equal(exchange.run(drops), exchange.expected())
    assert exchange.coordinator.survivors == tuple(left["masked"])
    assert not exchange.coordinator.liars


def check_nothing_revealed(exchange: Exchange) -> None:
    """Fewer than t answers left, so no self-mask can be rebuilt: the sum stays masked."""
    assert len(exchange.sent) < exchange.terms.rule.threshold
    assert not isinstance(exchange.plan, UnmaskPlan)
    for name, ledger in exchange.ledgers.items():
        assert bool(ledger.revealed) == (name in exchange.sent)
