"""A coordinator that deviates in sizes, adverts or terms: silos refuse it before they mask.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import dataclasses

import pytest

from crypto.errors import PolicyRefusal, Refusal
from crypto.fixed_point.layout import Layout, Quantity
from crypto.identity.certificates import Identity, Role, SignedBody
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import Cohort, Survivors
from crypto.session.silo_session import SiloState
from tests.protocol.malice import VICTIM, adverts_of, assert_refused, envelopes_among, honest, tampered
from tests.support.ceremony import stranger
from tests.support.sessions import NOW, make_exchange, make_silo, make_terms, one_hot_layout

# sizes


def test_silo_refuses_cohort_of_three_when_coordinator_declares_threshold_three_of_ten():
    exchange = honest(10)
    adverts = adverts_of(exchange)
    for group in (exchange.terms.names[:3], exchange.terms.names[3:6], exchange.terms.names[6:]):
        cohort = Cohort(adverts=tuple(adverts[name] for name in group))
        for name in group:
            match = f"cohort: expected at least 7 silos, got {len(group)}"
            assert_refused(exchange.silos[name], cohort, match, Refusal.COHORT_TOO_SMALL)
    assert exchange.nothing_left()


@pytest.mark.parametrize("stage", ["masked", "consistency"])
def test_silo_refuses_split_sharers_and_survivors_of_three_of_ten(stage):
    exchange = honest(10)
    exchange.run_until(stage)
    given = exchange.coordinator.close_share() if stage == "masked" else {}
    for group in (exchange.terms.names[:3], exchange.terms.names[3:6], exchange.terms.names[6:]):
        for name in group:
            message = Survivors(survivors=group)
            what = "survivors"
            if stage == "masked":
                what, message = "sharers", envelopes_among(given, name, group)
            match = f"{what}: expected at least 7 silos, got {len(group)}"
            assert_refused(exchange.silos[name], message, match, Refusal.COHORT_TOO_SMALL)
    assert not exchange.sent
    assert stage == "consistency" or exchange.nothing_left()


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


def test_silo_refuses_survivors_below_a_cohort_that_the_job_raised():
    rule = CohortRule.for_members(5, min_cohort=5)
    exchange = honest(5, rule=rule)
    exchange.run_until("consistency")
    survivors = Survivors(survivors=exchange.terms.names[:4])  # t alone would allow it
    match = "survivors: expected at least 5 silos, got 4"
    assert_refused(exchange.silos[VICTIM], survivors, match, Refusal.COHORT_TOO_SMALL)
    assert not exchange.sent


# adverts


@pytest.mark.parametrize("field", ["channel_key", "mask_key"])
def test_silo_refuses_swapped_key(field):
    exchange = honest()
    adverts = adverts_of(exchange)
    other = bodies.read_advert(adverts["silo-003"]).advert
    body = adverts["silo-000"].body.replace(
        getattr(bodies.read_advert(adverts["silo-000"]).advert, field), getattr(other, field)
    )
    forged = dataclasses.replace(adverts["silo-000"], body=body)
    cohort = tampered(adverts, "silo-000", forged)
    match = "advert of silo-000: advert: the signature is not valid"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def resigned(signed: SignedBody, signer: Identity, **changes) -> SignedBody:
    """The advert with the signer's own keys and certificate instead."""
    advert = bodies.read_advert(signed).advert
    changes = {"certificate": signer.certificate_der} | changes
    return bodies.sign(signer, dataclasses.replace(advert, **changes))


def test_silo_refuses_advert_forged_under_another_authority():
    exchange = honest()
    adverts = adverts_of(exchange)
    forged = resigned(adverts["silo-000"], stranger(Role.SILO, "silo-000", now=NOW))
    cohort = tampered(adverts, "silo-000", forged)
    match = "certificate: it was not issued by this federation's authority"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ROSTER)
    assert exchange.nothing_left()


def test_silo_refuses_advert_resigned_with_the_certificate_of_another_member():
    exchange = honest()
    adverts = adverts_of(exchange)
    forged = resigned(adverts["silo-000"], exchange.federation.silos["silo-004"])
    cohort = tampered(adverts, "silo-000", forged)
    match = "advert of silo-000: the certificate is of silo-004"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def test_silo_refuses_advert_whose_certificate_is_a_coordinators():
    exchange = honest()
    adverts = adverts_of(exchange)
    coordinator = exchange.federation.issue("silo-000", role=Role.COORDINATOR)
    cohort = tampered(adverts, "silo-000", resigned(adverts["silo-000"], coordinator))
    match = "its extended key usage is not that of a silo"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ROSTER)
    assert exchange.nothing_left()


def test_silo_refuses_advert_with_a_certificate_that_is_not_on_the_roster():
    """An older or stolen-and-reissued certificate of the right name, from the right authority."""
    exchange = honest()
    adverts = adverts_of(exchange)
    reissued = exchange.federation.issue("silo-000")
    cohort = tampered(adverts, "silo-000", resigned(adverts["silo-000"], reissued))
    match = "advert of silo-000: certificate not on the roster"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ROSTER)
    assert exchange.nothing_left()


def test_silo_refuses_advert_of_a_roster_member_outside_the_named_set():
    exchange = honest()
    adverts = adverts_of(exchange)
    spare = resigned(adverts["silo-000"], exchange.federation.spare, name="spare")
    cohort = tampered(adverts, "silo-000", spare)
    match = "advert: the silo is not in the named set"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.NOT_NAMED)
    assert exchange.nothing_left()


def test_silo_refuses_advert_replayed_from_an_earlier_attempt():
    exchange = honest(attempt=2)
    earlier = adverts_of(make_exchange(exchange.federation))
    cohort = tampered(adverts_of(exchange), "silo-000", earlier["silo-000"])
    match = "advert of silo-000: made for another session"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def test_silo_refuses_cohort_with_an_older_advert_of_its_own():
    """Its keys of a run before a crash, in the same attempt: the others would seal to dead keys."""
    exchange = honest()
    earlier = make_silo(exchange.federation, exchange.terms, VICTIM).advertise()
    cohort = tampered(adverts_of(exchange), VICTIM, earlier)
    match = "this silo's own advert is not the one it sent"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def test_silo_refuses_one_advert_twice_and_more_adverts_than_silos():
    exchange = honest()
    adverts = tuple(adverts_of(exchange).values())
    match = "cohort: a silo adverts twice"
    assert_refused(exchange.silos[VICTIM], Cohort(adverts=(*adverts[:4], adverts[0])), match, Refusal.ADVERT)
    match = "cohort: more adverts than named silos"
    cohort = Cohort(adverts=(*adverts, adverts[0]))
    assert_refused(exchange.silos["silo-002"], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


# terms


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
