"""A coordinator that deviates in sizes, adverts or terms: silos refuse it before they mask.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import dataclasses

import pytest

from crypto.errors import PolicyRefusal, Refusal
from crypto.fixed_point.layout import Layout, Quantity
from crypto.session.cohort import CohortRule
from crypto.session.messages import Cohort
from crypto.session.silo_session import SiloState
from tests.protocol.malice import VICTIM, assert_refused, honest
from tests.support.sessions import make_silo, make_terms, one_hot_layout


@pytest.mark.parametrize(
    "rule, match",
    [
        (
            CohortRule(members=10, threshold=3, min_cohort=5),
            "threshold: expected 7 to 10 for 10 silos, got 3",
        ),
        (
            CohortRule(members=10, threshold=7, min_cohort=3),
            "min_cohort: expected 5 to 10 for 10 silos, got 3",
        ),
        (CohortRule(members=9, threshold=7, min_cohort=5), "m is not the size of the sorted named set"),
    ],
)
def test_silo_refuses_terms_whose_sizes_are_below_the_rule(rule, match):
    exchange = honest(10)
    terms = dataclasses.replace(exchange.terms, rule=rule)
    with pytest.raises(PolicyRefusal, match=match) as caught:
        make_silo(exchange.federation, terms, VICTIM)
    assert caught.value.code is Refusal.TERMS


def test_silo_refuses_terms_for_two_silos():
    federation = honest(3).federation
    rule = CohortRule(members=2, threshold=2, min_cohort=2)
    terms = make_terms(federation, names=federation.names[:2], rule=rule, layout=one_hot_layout(2))
    with pytest.raises(PolicyRefusal, match="a round needs at least 3 named silos, got 2"):
        make_silo(federation, terms, VICTIM)


def test_silo_refuses_adverts_of_silos_that_were_told_another_named_set():
    """The coordinator tells seven of ten that m is 7: their adverts fit no session of m = 10."""
    exchange = honest(10)
    federation, names = exchange.federation, exchange.terms.names[:7]
    fewer = make_terms(federation, names=names, rule=CohortRule.for_members(7), layout=one_hot_layout(7))
    adverts = {name: make_silo(federation, fewer, name).advertise() for name in names}
    adverts[VICTIM] = exchange.silos[VICTIM].advertise()
    cohort = Cohort(adverts=tuple(adverts.values()))
    match = "advert of silo-000: made for another session"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def other_layout(members: int) -> Layout:
    return Layout(
        members=members,
        quantities=(Quantity(name="counts", shape=(members,), bound=2, is_count=True),),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"state_digest": b"t" * 32},  # a different model, or another total in it
        {"layout": other_layout(5)},
        {"job_digest": b"k" * 32},
        {"round": 2},
        {"phase": "evaluate.0"},
        {"attempt": 2},
        {"rule": CohortRule.for_members(5, threshold=5)},
    ],
)
def test_silos_told_different_terms_never_complete_a_session(changes):
    exchange = honest()
    other_terms = make_terms(exchange.federation, **changes)
    exchange.silos[VICTIM] = make_silo(exchange.federation, other_terms, VICTIM)
    adverts = {name: exchange.silos[name].advertise() for name in exchange.terms.names}
    cohort = Cohort(adverts=tuple(adverts.values()))
    for name in exchange.terms.names:
        other = "silo-000" if name == VICTIM else VICTIM
        match = f"advert of {other}: made for another session"
        assert_refused(exchange.silos[name], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def test_silo_refuses_terms_under_an_older_roster():
    exchange = honest()
    newer = exchange.federation.with_roster(version=8)
    with pytest.raises(PolicyRefusal, match="terms: they name another roster") as caught:
        make_silo(newer, exchange.terms, VICTIM)
    assert caught.value.code is Refusal.ROSTER


def test_silo_refuses_terms_that_name_a_silo_struck_from_the_roster():
    exchange = honest()
    struck = exchange.federation.with_roster(version=8, without=["silo-004"])
    with pytest.raises(PolicyRefusal, match="terms: a named silo is not on the roster") as caught:
        make_silo(struck, make_terms(struck), VICTIM)
    assert caught.value.code is Refusal.ROSTER


def test_silo_refuses_to_join_when_it_was_struck_or_is_not_named():
    exchange = honest()
    struck = exchange.federation.with_roster(version=8, without=[VICTIM])
    with pytest.raises(PolicyRefusal, match="the roster does not hold this silo's certificate"):
        make_silo(struck, make_terms(struck), VICTIM)
    names = tuple(name for name in exchange.terms.names if name != VICTIM)
    terms = make_terms(
        exchange.federation, names=names, rule=CohortRule.for_members(4), layout=one_hot_layout(4)
    )
    with pytest.raises(PolicyRefusal, match="the named set does not hold this silo") as caught:
        make_silo(exchange.federation, terms, VICTIM)
    assert caught.value.code is Refusal.NOT_NAMED


def test_silo_refuses_another_roster_version_for_a_round_it_adverted_in():
    exchange = honest()
    exchange.run_until("consistency")
    newer = exchange.federation.with_roster(version=8)
    silo = make_silo(newer, make_terms(newer, attempt=2), VICTIM, exchange.ledgers[VICTIM])
    with pytest.raises(PolicyRefusal, match="this round has another roster") as caught:
        silo.advertise()
    assert caught.value.code is Refusal.ROSTER
    assert silo.state is SiloState.FAILED
