"""A coordinator that deviates: every attack is refused by name, and nothing leaves.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crypto import bodies, encoding, identity, issuing, ring
from crypto.cohort import CohortRule
from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity import Identity, MemberId, Role
from crypto.layout import Layout, Quantity
from crypto.messages import Cohort, Envelopes, RecoverRequest, Signatures, SignedBody, Survivors
from crypto.silo_session import SiloSession, SiloState
from tests.support.sessions import (
    NOW,
    Exchange,
    MemoryLedger,
    make_exchange,
    make_federation,
    make_session,
    make_silo,
    make_terms,
    one_hot_layout,
)

VICTIM = "silo-001"


def honest(silos: int = 5, **changes) -> Exchange:
    """The control: the same exchange without the tampering reveals exactly the sum."""
    control = make_session(silos, **changes)
    assert np.array_equal(control.run(), control.expected())
    return make_session(silos, **changes)


def assert_refused(silo: SiloSession, message, match: str, code: Refusal) -> None:
    """Refused by name, and the session is over for good without its secrets."""
    with pytest.raises((RemoteProtocolError, PolicyRefusal), match=match) as caught:
        silo.receive(message)
    assert caught.value.code is code
    assert silo.state in (SiloState.FAILED, SiloState.ENDED)
    assert silo._held is None
    with pytest.raises(LocalProtocolError, match="session: it is over"):
        silo.receive(message)


def adverts_of(exchange: Exchange) -> dict[str, SignedBody]:
    exchange.advertise()
    cohort = exchange.coordinator.close_advertise()
    return dict(zip(exchange.coordinator.cohort, cohort.adverts, strict=True))


def tampered(adverts: dict[str, SignedBody], name: str, advert: SignedBody) -> Cohort:
    return Cohort(adverts=tuple((adverts | {name: advert}).values()))


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
    for group in (exchange.terms.names[:3], exchange.terms.names[3:6], exchange.terms.names[6:]):
        for name in group:
            message = Survivors(survivors=group)
            what = "survivors"
            if stage == "masked":
                what, message = "sharers", envelopes_among(exchange, name, group)
            match = f"{what}: expected at least 7 silos, got {len(group)}"
            assert_refused(exchange.silos[name], message, match, Refusal.COHORT_TOO_SMALL)
    assert not exchange.sent
    assert stage == "consistency" or exchange.nothing_left()


def envelopes_among(exchange: Exchange, receiver: str, group: tuple[str, ...]) -> Envelopes:
    dealings = exchange.coordinator._record.dealings
    relayed = tuple(dealings[peer].relayed[receiver] for peer in group if peer != receiver)
    return Envelopes(sharers=group, envelopes=relayed)


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
    match = "advert of silo-000: advert: the signature does not hold"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.ADVERT)
    assert exchange.nothing_left()


def resigned(signed: SignedBody, signer: Identity, **changes) -> SignedBody:
    """The advert with the signer's own keys and certificate instead."""
    advert = bodies.read_advert(signed).advert
    changes = {"certificate": signer.certificate_der} | changes
    return bodies.sign_advert(signer, dataclasses.replace(advert, **changes))


def foreign_identity(name: str) -> Identity:
    key, certificate = issuing.new_authority("test", now=NOW, valid_days=30)
    own = identity.new_key()
    member = MemberId(federation="test", role=Role.SILO, name=name)
    issued = issuing.sign_csr(
        issuing.new_csr(own, member),
        authority_key=key,
        authority_certificate=certificate,
        role=Role.SILO,
        now=NOW,
        valid_days=7,
    )
    return Identity(member=member, certificate=issued, key=own)


def test_silo_refuses_advert_forged_under_another_authority():
    exchange = honest()
    adverts = adverts_of(exchange)
    forged = resigned(adverts["silo-000"], foreign_identity("silo-000"))
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
    told = make_terms(exchange.federation, **changes)
    exchange.silos[VICTIM] = make_silo(exchange.federation, told, VICTIM)
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


# sets


def test_envelopes_do_not_verify_among_silos_that_were_told_different_cohorts():
    exchange = honest(7)
    adverts = adverts_of(exchange)
    cohorts = {
        name: Cohort(adverts=tuple(adverts.values())[slice(0, 6) if name < "silo-003" else slice(7)])
        for name in exchange.terms.names
    }
    dealt = {name: exchange.silos[name].receive(cohorts[name]) for name in exchange.terms.names}
    sharers = exchange.terms.names[:6]
    for name in sharers:
        envelopes = []
        for peer in sharers:
            if peer != name:
                receivers = [other for other in exchange.terms.names if other != peer]
                envelopes.append(dealt[peer].envelopes[receivers.index(name)])
        message = Envelopes(sharers=sharers, envelopes=tuple(envelopes))
        match = "signed for another cohort, sender or receiver"
        assert_refused(exchange.silos[name], message, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_no_silo_answers_when_silos_were_told_different_survivors():
    exchange = honest(7)  # t = 5
    exchange.run_until("consistency")
    names = exchange.terms.names
    told = {name: names[:6] if name < "silo-003" else names[1:] for name in names}
    signed = {name: exchange.silos[name].receive(Survivors(survivors=told[name])) for name in names}
    for name in names:
        same = tuple(signed[peer] for peer in names if told[peer] == told[name])
        few = f"expected signatures of 5 survivors, got {len(same)}"
        fresh = resumed(exchange, name)
        assert_refused(fresh, Signatures(signatures=same), few, Refusal.SIGNATURES)
        match = "a signature is not a survivor's over this cohort, U2 and U3"
        everyone = Signatures(signatures=tuple(signed.values()))
        assert_refused(exchange.silos[name], everyone, match, Refusal.SIGNATURES)
    assert not exchange.sent
    assert not any(ledger.revealed for ledger in exchange.ledgers.values())


def resumed(exchange: Exchange, name: str) -> SiloSession:
    """The silo after a restart, from its ledger alone."""
    ledger = exchange.ledgers[name]
    key = (exchange.terms.job_digest, exchange.terms.round, exchange.terms.phase)
    is_revealed = key in ledger.revealed
    row = ledger.revealed[key] if is_revealed else ledger.pending[key]
    return SiloSession.resume(
        type(row).from_bytes(row.to_bytes()),
        revealed=is_revealed,
        identity=exchange.federation.silos[name],
        ledger=ledger,
    )


def test_one_signature_many_times_counts_once():
    exchange = honest()
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()
    repeated = Signatures(signatures=(request.signatures[0],) * 5)
    match = "expected signatures of 4 survivors, got 1"
    assert_refused(exchange.silos[VICTIM], repeated, match, Refusal.SIGNATURES)
    assert not exchange.ledgers[VICTIM].revealed


def test_a_statement_under_the_signature_of_another_silo_counts_for_nobody():
    """The body is known and only compared, so nothing but the signature says who made it."""
    exchange = honest()
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()
    first, second, *others = request.signatures
    forged = dataclasses.replace(first, signature=second.signature)
    message = Signatures(signatures=(forged, second, *others))
    match = "consistency signature of .*: the signature does not hold"
    assert_refused(exchange.silos[VICTIM], message, match, Refusal.SIGNATURES)
    assert not exchange.ledgers[VICTIM].revealed


def test_signatures_of_one_attempt_do_not_open_the_next():
    honest()
    federation = make_federation(5)
    ledgers = {name: MemoryLedger() for name in federation.names}
    first = make_exchange(federation, ledgers=ledgers)
    first.run_until("unmask")
    stolen = first.coordinator.close_consistency()  # collected and never used
    second = make_exchange(federation, ledgers=ledgers, attempt=2)
    second.run_until("unmask")
    match = "a signature is not a survivor's over this cohort, U2 and U3"
    for name in second.terms.names:
        assert_refused(second.silos[name], stolen, match, Refusal.SIGNATURES)
    assert not any(ledger.revealed for ledger in ledgers.values())


def test_old_sessions_row_is_gone_once_the_silo_adverts_again():
    """Else the first attempt's shares and the second's could both be had."""
    exchange = honest()
    exchange.run_until("unmask")
    second = make_exchange(exchange.federation, ledgers=exchange.ledgers, attempt=2)
    second.advertise()
    assert not exchange.ledgers[VICTIM].pending
    assert not exchange.sent


def test_silo_outside_survivors_neither_signs_nor_answers():
    exchange = honest()
    exchange.run_until("consistency")
    survivors = Survivors(survivors=tuple(name for name in exchange.terms.names if name != VICTIM))
    assert_refused(exchange.silos[VICTIM], survivors, "survivors: this silo is left out", Refusal.LEFT_OUT)
    assert exchange.silos[VICTIM].state is SiloState.ENDED
    assert not exchange.ledgers[VICTIM].pending
    assert "check_reveal" not in exchange.ledgers[VICTIM].log


@pytest.mark.parametrize("stage", ["share", "masked"])
def test_silo_outside_cohort_or_sharers_leaves_the_session(stage):
    exchange = honest()
    exchange.run_until(stage)
    rest = tuple(name for name in exchange.terms.names if name != VICTIM)
    if stage == "share":
        adverts = exchange.coordinator.close_advertise().adverts
        message, what = Cohort(adverts=(adverts[0], *adverts[2:])), "cohort: this silo is not in U1"
    else:
        message, what = envelopes_among(exchange, VICTIM, rest), "sharers: this silo is left out"
    assert_refused(exchange.silos[VICTIM], message, what, Refusal.LEFT_OUT)
    assert exchange.nothing_left()


def test_silo_asked_for_shares_before_it_signed_gives_none():
    exchange = honest()
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()
    late = make_session()
    late.run_until("consistency")
    assert_refused(late.silos[VICTIM], request, "got Signatures in state masked", Refusal.STAGE)
    assert not late.ledgers[VICTIM].revealed


@pytest.mark.parametrize(
    "survivors",
    [
        ("silo-000", "silo-001", "silo-002", "silo-003", "spare"),
        ("silo-000", "silo-001", "silo-002", "silo-003", "silo-003"),
        ("silo-001", "silo-000", "silo-002", "silo-003", "silo-004"),
    ],
)
def test_silo_refuses_survivors_that_are_no_sorted_subset(survivors):
    exchange = honest()
    exchange.run_until("consistency")
    match = "survivors: expected a sorted subset of the set before it"
    assert_refused(exchange.silos[VICTIM], Survivors(survivors=survivors), match, Refusal.MALFORMED)
    assert not exchange.sent


# both shares of one silo


def test_silo_never_gives_both_shares_of_one_silo():
    exchange = honest(6)  # t = 5, so one may be lost
    exchange.run_until("unmask", {"masked": ["silo-005"]})
    request = exchange.coordinator.close_consistency()
    answer = exchange.silos[VICTIM].receive(request)
    assert not set(answer.self_mask_shares) & set(answer.recovery_shares)
    assert set(answer.self_mask_shares) | set(answer.recovery_shares) == set(exchange.terms.names)
    again = Survivors(survivors=exchange.terms.names)  # now silo-005 is said to have survived
    assert_refused(exchange.silos[VICTIM], again, "got Survivors in state revealed", Refusal.STAGE)
    after = resumed(exchange, VICTIM)
    assert after.receive(request) == answer
    assert_refused(after, again, "got Survivors in state revealed", Refusal.STAGE)


def test_recover_is_answered_for_lost_silos_only():
    exchange = honest(6)
    exchange.run_until("unmask", {"masked": ["silo-005"]})
    request = exchange.coordinator.close_consistency()
    for names in [("silo-000",), ("silo-005", "silo-000"), ("spare",)]:
        silo = resumed(exchange, VICTIM)
        silo.receive(request)
        match = "recover: a name is not in U2 minus U3"
        assert_refused(silo, RecoverRequest(names=names), match, Refusal.SIGNATURES)
    for names in [(), ("silo-005", "silo-005")]:
        silo = resumed(exchange, VICTIM)
        silo.receive(request)
        match = "recover: expected distinct names of lost silos"
        assert_refused(silo, RecoverRequest(names=names), match, Refusal.MALFORMED)


def test_recover_is_refused_before_the_signatures_were_shown():
    exchange = honest(6)
    exchange.run_until("unmask", {"masked": ["silo-005"]})
    request = RecoverRequest(names=("silo-005",))
    match = "got RecoverRequest in state signed"
    assert_refused(exchange.silos[VICTIM], request, match, Refusal.STAGE)
    assert_refused(resumed(exchange, VICTIM), request, match, Refusal.STAGE)
    assert not exchange.ledgers[VICTIM].revealed


# a round that was revealed


@pytest.mark.parametrize("attempt", [1, 2])
def test_round_revealed_before_is_refused_at_the_next_attempt_and_after_restart(attempt):
    honest()
    exchange = make_session()
    exchange.run()
    again = make_exchange(exchange.federation, ledgers=exchange.ledgers, attempt=attempt)
    for name, silo in again.silos.items():
        with pytest.raises(PolicyRefusal, match="this round was revealed before") as caught:
            silo.advertise()
        assert caught.value.code is Refusal.ALREADY_REVEALED
        assert silo.state is SiloState.FAILED
        assert again.ledgers[name].revealed
    assert again.nothing_left() is False  # of the first time, and nothing but that
    assert not again.masked
    assert not again.sent


def test_statistics_phase_is_refused_again_with_one_bit_of_the_state_flipped():
    honest(phase="calibrate.0")
    exchange = make_session(phase="calibrate.0")
    exchange.run()
    again = make_exchange(
        exchange.federation, ledgers=exchange.ledgers, phase="calibrate.0", state_digest=b"r" + b"s" * 31
    )
    with pytest.raises(PolicyRefusal, match="this round was revealed before"):
        again.advertise()
    assert not again.masked


def test_statistics_phase_near_a_revealed_one_is_refused_before_the_silo_signs():
    honest(6, phase="calibrate.0")
    exchange = make_session(6, phase="calibrate.0")
    exchange.run()
    again = make_exchange(exchange.federation, ledgers=exchange.ledgers, phase="calibrate.1")
    again.run_until("consistency", {"masked": ["silo-005"]})
    survivors = again.coordinator.close_masked()
    for name in survivors.survivors:
        match = "too near to a revealed sum"
        assert_refused(again.silos[name], survivors, match, Refusal.NEAR_REVEAL)
        assert not again.ledgers[name].pending
    assert not again.sent


def test_reveal_is_durable_before_the_first_share_leaves():
    exchange = honest()
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()

    def full_disk(pending):
        raise OSError("disk full")

    exchange.ledgers[VICTIM].mark_revealed = full_disk
    with pytest.raises(OSError, match="disk full"):
        exchange.silos[VICTIM].receive(request)
    assert exchange.silos[VICTIM].state is SiloState.FAILED


def test_signature_does_not_leave_before_the_row_is_written():
    exchange = honest()
    exchange.run_until("consistency")

    def full_disk(pending):
        raise OSError("disk full")

    exchange.ledgers[VICTIM].write_pending = full_disk
    with pytest.raises(OSError, match="disk full"):
        exchange.silos[VICTIM].receive(exchange.coordinator.close_masked())
    assert exchange.silos[VICTIM].state is SiloState.FAILED


# masks


def test_word_sizes_are_masked_with_unrelated_key_streams():
    """A stream used twice would give the difference of two of a silo's own quantities."""
    honest()
    layout = Layout(
        members=5,
        quantities=tuple(
            Quantity(name=f"w{word}", shape=(4096 // word,), bound=1.0, word=word) for word in (16, 32, 64)
        ),
    )
    exchange = make_session(layout=layout)
    exchange.run_until("masked")
    masker = exchange.silos[VICTIM].receive(exchange.coordinator.close_share()[VICTIM])
    nothing = ring.Encoded(vectors=ring.zeros(layout), clipped_total=0)
    streams = np.frombuffer(b"".join(masker.stream(nothing)), np.uint8).reshape(3, 512)
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        # 512 equal bytes of 512 if reused; 15 or more of 512 by chance: once in 1e8 runs
        assert np.count_nonzero(streams[one] == streams[other]) < 15


def test_every_session_masks_afresh():
    exchange = honest()
    exchange.run_until("consistency")
    again = make_session()
    again.run_until("consistency")
    assert exchange.masked[VICTIM] != again.masked[VICTIM]


# truncated and repeated messages


@pytest.mark.parametrize(
    "next_stage, state", [("masked", "shared"), ("consistency", "masked"), ("unmask", "signed")]
)
def test_repeated_message_fails_the_session(next_stage, state):
    exchange = honest()
    exchange.run_until(next_stage)
    message = exchange.told[VICTIM]
    match = f"wrong or repeated message, got {type(message).__name__} in state {state}"
    assert_refused(exchange.silos[VICTIM], message, match, Refusal.STAGE)
    assert not exchange.sent


def test_truncated_messages_are_refused():
    exchange = honest()
    adverts = adverts_of(exchange)
    cut = dataclasses.replace(adverts["silo-000"], body=adverts["silo-000"].body[:-1])
    match = "advert: ends early"
    assert_refused(exchange.silos["silo-002"], tampered(adverts, "silo-000", cut), match, Refusal.MALFORMED)
    exchange = make_session()
    exchange.run_until("masked")
    given = exchange.coordinator.close_share()
    few = dataclasses.replace(given[VICTIM], envelopes=given[VICTIM].envelopes[:-1])
    match = "envelopes: expected 4 to silo-001, got 3"
    assert_refused(exchange.silos[VICTIM], few, match, Refusal.ENVELOPE)
    body = given["silo-002"].envelopes[0]
    cut = dataclasses.replace(body, signature=body.signature[:-1])
    short = dataclasses.replace(given["silo-002"], envelopes=(cut, *given["silo-002"].envelopes[1:]))
    match = "envelope silo-000 to silo-002: envelope: the signature does not hold"
    assert_refused(exchange.silos["silo-002"], short, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_envelopes_of_another_receiver_are_refused():
    exchange = honest()
    exchange.run_until("masked")
    given = exchange.coordinator.close_share()
    swapped = dataclasses.replace(given[VICTIM], envelopes=given["silo-002"].envelopes)
    match = "envelope silo-000 to silo-001: signed for another cohort, sender or receiver"
    assert_refused(exchange.silos[VICTIM], swapped, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_body_of_another_purpose_is_no_envelope():
    """A silo's other signatures cannot be passed off: each purpose is part of what was signed."""
    exchange = honest()
    adverts = adverts_of(exchange)
    signed = exchange.federation.silos["silo-000"].sign("complaint", bytes(32), "silo-000", VICTIM)
    cohort = tampered(adverts, "silo-000", signed)
    match = "advert: the bytes are of another purpose"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.MALFORMED)
    assert encoding.decode("complaint", signed.body)
