"""A coordinator that deviates in who is in the sum: every attack is refused by name, and nothing leaves.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session import bodies
from crypto.session.messages import Cohort, Consistency, Envelopes, RecoverRequest, Signatures, Survivors
from crypto.session.silo_session import SiloSession, SiloState
from crypto.session.sum_check import SumCheck
from tests.protocol.malice import VICTIM, adverts_of, assert_refused, envelopes_among, honest, relayed
from tests.support.sessions import Exchange, MemoryLedger, make_exchange, make_federation, make_session

NOT_HELD = "signature of silo-000 over this cohort, U2 and U3: .* is not valid"

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
                cohort = exchange.terms.names[: 6 if peer < "silo-003" else 7]
                place = [other for other in cohort if other != peer].index(name)
                envelopes.append(relayed(dealt[peer], place))
        message = Envelopes(sharers=sharers, envelopes=tuple(envelopes))
        other = "silo-003" if name < "silo-003" else "silo-000"
        match = f"dealing of {other}: signed for another cohort or silo"
        assert_refused(exchange.silos[name], message, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_no_silo_answers_when_silos_were_told_different_survivors():
    exchange = honest(7)  # t = 5
    exchange.run_until("consistency")
    names = exchange.terms.names
    survivors_by_silo = {name: names[:6] if name < "silo-003" else names[1:] for name in names}
    signed = {
        name: exchange.silos[name].receive(Survivors(survivors=survivors_by_silo[name])) for name in names
    }
    for name in names:
        same = {peer: signed[peer] for peer in names if survivors_by_silo[peer] == survivors_by_silo[name]}
        few = f"expected signatures of 5 survivors, got {len(same)}"
        fresh = resumed(exchange, name)
        assert_refused(fresh, Signatures(signatures=same), few, Refusal.SIGNATURES)
        match = "a signature is of silo-00[06], which is not in U3"
        assert_refused(resumed(exchange, name), Signatures(signatures=signed), match, Refusal.SIGNATURES)
        match = "signature of silo-00. over this cohort, U2 and U3: .* is not valid"
        survivors = Signatures(signatures={peer: signed[peer] for peer in survivors_by_silo[name]})
        assert_refused(exchange.silos[name], survivors, match, Refusal.SIGNATURES)
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


def signed_over(exchange: Exchange, sender: str, **changes: Any) -> bytes:
    """What that silo's key makes of the sets of this session, but for these changes."""
    coordinator = exchange.coordinator
    said = Consistency(
        cohort_digest=coordinator.cohort_digest,
        sender=sender,
        sharers=coordinator.sharers,
        survivors=coordinator.survivors,
    )
    identity = exchange.federation.silos[sender]
    return bodies.sign(identity, dataclasses.replace(said, **changes)).signature


def with_the_signature_of_another(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "silo-000": shown["silo-002"]}


def with_one_signature_for_all(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return dict.fromkeys(shown, shown["silo-000"])


def with_a_body_in_the_name_of_another(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    """silo-002 signs what silo-000 would."""
    coordinator = exchange.coordinator
    said = Consistency(
        cohort_digest=coordinator.cohort_digest,
        sender="silo-000",
        sharers=coordinator.sharers,
        survivors=coordinator.survivors,
    )
    return {**shown, "silo-000": bodies.sign(exchange.federation.silos["silo-002"], said).signature}


def over_another_u3(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    names = exchange.coordinator.sharers  # silo-006 among them
    return {**shown, "silo-000": signed_over(exchange, "silo-000", survivors=names)}


def over_another_u2(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    names = exchange.coordinator.survivors
    return {**shown, "silo-000": signed_over(exchange, "silo-000", sharers=names)}


def over_swapped_sets(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    sharers, survivors = exchange.coordinator.sharers, exchange.coordinator.survivors
    swapped = signed_over(exchange, "silo-000", sharers=survivors, survivors=sharers)
    return {**shown, "silo-000": swapped}


def over_another_cohort(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "silo-000": signed_over(exchange, "silo-000", cohort_digest=bytes(32))}


def too_few(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {name: shown[name] for name in sorted(shown)[:4]}


def nobodys(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {}


def of_a_lost_silo(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    """Of U2 minus U3, over these very sets."""
    return {**shown, "silo-006": signed_over(exchange, "silo-006")}


def of_a_silo_that_is_not_named(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "spare": shown["silo-000"]}


def empty(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "silo-000": b""}


def too_long(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "silo-000": shown["silo-000"] + bytes(1 << 20)}


def cut(exchange: Exchange, shown: dict[str, bytes]) -> dict[str, bytes]:
    return {**shown, "silo-000": shown["silo-000"][:-1]}


@pytest.mark.parametrize(
    ("bend", "match"),
    [
        (with_the_signature_of_another, NOT_HELD),
        (with_one_signature_for_all, "signature of silo-00[1-5] over this cohort.* is not valid"),
        (with_a_body_in_the_name_of_another, NOT_HELD),
        (over_another_u3, NOT_HELD),
        (over_another_u2, NOT_HELD),
        (over_swapped_sets, NOT_HELD),
        (over_another_cohort, NOT_HELD),
        (too_few, "expected signatures of 5 survivors, got 4"),
        (nobodys, "expected signatures of 5 survivors, got 0"),
        (of_a_lost_silo, "a signature is of silo-006, which is not in U3"),
        (of_a_silo_that_is_not_named, "a signature is of spare, which is not in U3"),
        (empty, NOT_HELD),
        (too_long, NOT_HELD),
        (cut, NOT_HELD),
    ],
)
def test_signatures_that_t_survivors_did_not_make_open_nothing(bend, match):
    """No body travels, so nothing but the signature and its name say what was signed, and by whom."""
    exchange = honest(7)  # t = 5
    exchange.run_until("unmask", {"masked": ["silo-006"]})
    request = exchange.coordinator.close_consistency()
    false = Signatures(signatures=bend(exchange, dict(request.signatures)))
    check = SumCheck.from_bytes(exchange.checks[VICTIM].to_bytes())
    survivors = exchange.coordinator.survivors
    with pytest.raises(RemoteProtocolError, match=f"sum: {match}") as caught:
        check.check_survivors(survivors, false)
    assert caught.value.code is Refusal.SIGNATURES
    assert_refused(exchange.silos[VICTIM], false, f"unmask: {match}", Refusal.SIGNATURES)
    assert not exchange.ledgers[VICTIM].revealed
    check.check_survivors(survivors, request)  # the control
    assert resumed(exchange, VICTIM).receive(request).self_mask_shares


def test_signatures_of_one_attempt_do_not_open_the_next():
    honest()
    federation = make_federation(5)
    ledgers = {name: MemoryLedger() for name in federation.names}
    first = make_exchange(federation, ledgers=ledgers)
    first.run_until("unmask")
    stolen = first.coordinator.close_consistency()  # collected and never used
    second = make_exchange(federation, ledgers=ledgers, attempt=2)
    second.run_until("unmask")
    match = "signature of silo-000 over this cohort, U2 and U3: .* is not valid"
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
        given = exchange.coordinator.close_share()
        message, what = envelopes_among(given, VICTIM, rest), "sharers: this silo is left out"
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
        assert_refused(again.silos[name], survivors, match, Refusal.OVERLAPPING_COHORT)
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
