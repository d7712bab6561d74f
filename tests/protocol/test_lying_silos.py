"""A silo that signs or sends something false is named; the sum is exact without it or not revealed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crypto.errors import Refusal, RemoteProtocolError
from crypto.session import bodies, dealing, seeds
from crypto.session.coordinator_session import AbortReason, CoordinatorState, SessionAborted
from crypto.session.messages import Envelope, Envelopes, RecoveredSeeds, SessionTerms, UnmaskShares
from crypto.session.silo_session import EnvelopeComplaint, SiloState
from tests.support.sessions import Exchange, make_session

LIAR = "silo-002"


@pytest.fixture
def exchange() -> Exchange:
    return make_session(6)  # t = 5, one silo may be lost


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def lie_in_dealing(monkeypatch: pytest.MonkeyPatch, name: str, field: str, lie) -> None:
    """One silo deals something else than it should: only its own code is changed."""
    honest = dealing.make_envelope

    def make_envelope(receiver, *, dealer, **given):
        if dealer == name:
            given[field] = lie(given[field], receiver.advert.name)
        return honest(receiver, dealer=dealer, **given)

    monkeypatch.setattr(dealing, "make_envelope", make_envelope)


def lie_in_split(monkeypatch: pytest.MonkeyPatch, exchange: Exchange, name: str, secret_name: str) -> None:
    """The silo shares another secret than the one it committed to; all hashes match the shares."""
    honest = dealing.deal

    def deal(terms: SessionTerms, secrets, adverts, *, identity, **given):
        if identity.member.name == name:
            secrets = dataclasses.replace(secrets, **{secret_name: flip(getattr(secrets, secret_name))})
        return honest(terms, secrets, adverts, identity=identity, **given)

    monkeypatch.setattr(dealing, "deal", deal)


def test_false_share_names_the_giver_and_the_sum_is_exact_without_its_answer(exchange):
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()
    for name, silo in exchange.silos.items():
        answer = silo.receive(request)
        if name == LIAR:
            false = {**answer.self_mask_shares, "silo-000": flip(answer.self_mask_shares["silo-000"])}
            answer = dataclasses.replace(answer, self_mask_shares=false)
        exchange.coordinator.on_unmask(name, answer)
    exchange.close_unmask()
    assert exchange.coordinator.liars == {LIAR: "gave a share that is not the one it was dealt"}
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_false_recovery_share_names_the_giver():
    exchange = make_session(9)  # t = 7, so one may be lost and another lie
    exchange.run_until("unmask", {"masked": ["silo-000"]})
    request = exchange.coordinator.close_consistency()
    for name in exchange.coordinator.survivors:
        answer = exchange.silos[name].receive(request)
        if name == LIAR:
            false = {"silo-000": flip(answer.recovery_shares["silo-000"])}
            answer = dataclasses.replace(answer, recovery_shares=false)
        exchange.coordinator.on_unmask(name, answer)
    exchange.close_unmask()
    assert list(exchange.coordinator.liars) == [LIAR]
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_false_shares_of_too_many_end_the_session_with_liars_named():
    exchange = make_session(5)  # t = 4
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()
    for name, silo in exchange.silos.items():
        answer = silo.receive(request)
        if name in ("silo-000", "silo-001"):
            false = {dealer: flip(share) for dealer, share in answer.self_mask_shares.items()}
            answer = UnmaskShares(self_mask_shares=false, recovery_shares={})
        exchange.coordinator.on_unmask(name, answer)
    assert not exchange.coordinator.can_unmask
    with pytest.raises(SessionAborted, match="unmask: expected at least 4 silos, got 3") as caught:
        exchange.close_unmask()
    assert caught.value.reason is AbortReason.PROVEN_LIAR
    assert sorted(exchange.coordinator.liars) == ["silo-000", "silo-001"]


def test_shares_of_another_self_mask_seed_name_the_dealer_before_a_sum_exists(exchange, monkeypatch):
    lie_in_split(monkeypatch, exchange, LIAR, "self_mask_seed")
    with pytest.raises(SessionAborted, match="a self-mask cannot be rebuilt") as caught:
        exchange.run()
    assert caught.value.reason is AbortReason.PROVEN_LIAR
    reason = "dealt shares of another self-mask seed than it committed to"
    assert exchange.coordinator.liars == {LIAR: reason}
    assert exchange.coordinator.state is CoordinatorState.FAILED


def test_shares_that_rebuild_no_secret_name_the_dealer(exchange, monkeypatch):
    largest = (1 << 256) + 296  # a constant polynomial that is no 32-byte secret
    lie = largest.to_bytes(33, "big")
    lie_in_dealing(monkeypatch, LIAR, "self_mask_share", lambda share, receiver: lie)
    exchange.run_until("unmask")
    with pytest.raises(SessionAborted, match="a self-mask cannot be rebuilt"):
        exchange.unmask(drop=[LIAR])  # or its own share, which lies on the honest polynomial, would be used
    assert list(exchange.coordinator.liars) == [LIAR]


@pytest.mark.parametrize("liar", ["silo-000", "silo-002", "silo-005"])
def test_false_recovery_seed_is_named_and_survivors_recover(exchange, monkeypatch, liar):
    lie_in_split(monkeypatch, exchange, liar, "recovery_seed")
    exchange.run_until("unmask", {"masked": [liar]})
    requests = exchange.unmask()
    assert set(requests) == set(exchange.coordinator.survivors) == exchange.coordinator.awaited
    assert exchange.coordinator.state is CoordinatorState.RECOVER
    exchange.recover(requests)
    assert list(exchange.coordinator.liars) == [liar]
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_recovery_shares_that_rebuild_no_secret_are_named_and_survivors_recover(exchange, monkeypatch):
    lie = ((1 << 256) + 296).to_bytes(33, "big")
    lie_in_dealing(monkeypatch, LIAR, "recovery_share", lambda share, receiver: lie)
    assert exchange.run({"masked": [LIAR]}).sum() == 5
    assert list(exchange.coordinator.liars) == [LIAR]


def test_pair_seed_not_derived_is_named_and_only_its_receiver_is_asked(exchange, monkeypatch):
    def lie(seed, receiver):
        return flip(seed) if receiver == "silo-004" else seed

    lie_in_dealing(monkeypatch, LIAR, "pair_seed", lie)
    exchange.run_until("unmask", {"masked": [LIAR]})
    requests = exchange.unmask()
    assert {name: request.names for name, request in requests.items()} == {"silo-004": (LIAR,)}
    exchange.recover(requests)
    assert list(exchange.coordinator.liars) == [LIAR]
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_pair_seed_that_does_not_open_for_a_lost_silo_names_the_dealer_who_then_recovers(monkeypatch):
    exchange = make_session(6)
    lost, dealer = "silo-003", "silo-001"
    honest = dealing.envelope.seal

    def seal(public, plaintext, *, info):
        made = honest(public, plaintext, info=info)
        is_lie = info == seeds.seal_info(
            seeds.SEALED_PAIR_SEED, exchange.coordinator.cohort_digest, dealer=dealer, receiver=lost
        )
        return flip(made) if is_lie else made

    monkeypatch.setattr(dealing.envelope, "seal", seal)
    exchange.advertise()
    exchange.share()
    requests = None
    envelopes = exchange.coordinator.close_share()
    for name in exchange.terms.names:
        if name == lost:  # it would complain, were it still there
            continue
        exchange.maskers[name] = exchange.silos[name].receive(envelopes[name])
        exchange.upload(name)
    exchange.dropped.add(lost)
    exchange.consistency()
    requests = exchange.unmask()
    assert {name: request.names for name, request in requests.items()} == {dealer: (lost,)}
    exchange.recover(requests)
    assert list(exchange.coordinator.liars) == [dealer]
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_false_recovered_seed_is_named_and_the_session_fails_closed(exchange, monkeypatch):
    lie_in_split(monkeypatch, exchange, LIAR, "recovery_seed")
    exchange.run_until("unmask", {"masked": [LIAR]})
    requests = exchange.unmask()
    for name, request in requests.items():
        answer = exchange.silos[name].receive(request)
        if name == "silo-004":
            answer = RecoveredSeeds(pair_seeds={LIAR: flip(answer.pair_seeds[LIAR])})
        exchange.coordinator.on_recovered(name, answer)
    with pytest.raises(SessionAborted, match="recover: a pair seed is missing") as caught:
        exchange.coordinator.close_recover()
    assert caught.value.reason is AbortReason.PROVEN_LIAR
    assert sorted(exchange.coordinator.liars) == [LIAR, "silo-004"]


def test_survivor_silent_in_recover_fails_the_session_closed(exchange, monkeypatch):
    lie_in_split(monkeypatch, exchange, LIAR, "recovery_seed")
    exchange.run_until("unmask", {"masked": [LIAR]})
    requests = exchange.unmask()
    silent = requests.pop("silo-000")
    with pytest.raises(SessionAborted, match="recover: a pair seed is missing") as caught:
        exchange.recover(requests)
    assert caught.value.reason is AbortReason.PROVEN_LIAR
    assert silent.names == (LIAR,)


def test_recovered_seeds_for_other_names_are_refused(exchange, monkeypatch):
    lie_in_split(monkeypatch, exchange, LIAR, "recovery_seed")
    exchange.run_until("unmask", {"masked": [LIAR]})
    exchange.unmask()
    with pytest.raises(RemoteProtocolError, match="expected one for each name asked for"):
        exchange.coordinator.on_recovered("silo-000", RecoveredSeeds(pair_seeds={}))


def lie_in_hash(monkeypatch: pytest.MonkeyPatch, field: str, *, receiver: str) -> None:
    honest = dealing.make_envelope

    def make_envelope(advert, *, dealer, **given):
        made = honest(advert, dealer=dealer, **given)
        is_lie = dealer == LIAR and made.receiver == receiver
        return dataclasses.replace(made, **{field: flip(getattr(made, field))}) if is_lie else made

    monkeypatch.setattr(dealing, "make_envelope", make_envelope)


@pytest.mark.parametrize("field", ["self_mask_share_hash", "recovery_share_hash"])
def test_dealt_hash_that_does_not_match_is_complained_of_and_the_sum_goes_on(exchange, monkeypatch, field):
    lie_in_hash(monkeypatch, field, receiver="silo-004")
    mask_with_complaints(exchange)
    assert exchange.coordinator.complaints == [("silo-004", LIAR)]
    exchange.dropped.add("silo-004")
    exchange.consistency()
    exchange.unmask()
    assert "silo-004" not in exchange.coordinator.survivors
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_another_sum_key_for_one_silo_is_complained_of_and_the_sum_goes_on(exchange, monkeypatch):
    def lie(sum_key, receiver):
        return flip(sum_key) if receiver == "silo-004" else sum_key

    lie_in_dealing(monkeypatch, LIAR, "sum_key", lie)
    mask_with_complaints(exchange)
    assert exchange.coordinator.complaints == [("silo-004", LIAR)]
    assert exchange.silos["silo-004"].state is SiloState.FAILED
    exchange.dropped.add("silo-004")
    exchange.consistency()
    exchange.unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_sum_key_that_is_not_the_adverted_one_is_complained_of_by_all(exchange, monkeypatch):
    lie_in_dealing(monkeypatch, LIAR, "sum_key", lambda sum_key, receiver: flip(sum_key))
    mask_with_complaints(exchange)
    others = [name for name in exchange.terms.names if name != LIAR]
    assert exchange.coordinator.complaints == [(name, LIAR) for name in others]


@pytest.mark.parametrize("length", [0, 31, 33])
def test_envelope_with_a_sum_key_of_another_length_is_refused(exchange, monkeypatch, length):
    lie_in_dealing(monkeypatch, LIAR, "sum_key", lambda sum_key, receiver: (2 * sum_key)[:length])
    exchange.advertise()
    with pytest.raises(
        RemoteProtocolError, match="a sealed part is missing, out of place or of another length"
    ):
        exchange.share()


def test_dealt_seed_hash_that_does_not_match_is_complained_of_and_fails_closed(exchange, monkeypatch):
    """The mask between the two can then not be checked, so there is no sum."""
    lie_in_hash(monkeypatch, "pair_seed_hash", receiver="silo-004")
    mask_with_complaints(exchange)
    assert exchange.coordinator.complaints == [("silo-004", LIAR)]
    exchange.dropped.add("silo-004")
    exchange.consistency()
    requests = exchange.unmask()
    assert {name: request.names for name, request in requests.items()} == {LIAR: ("silo-004",)}
    with pytest.raises(SessionAborted, match="recover: a pair seed is missing") as caught:
        exchange.recover(requests)
    assert caught.value.reason is AbortReason.PROVEN_LIAR
    assert list(exchange.coordinator.liars) == [LIAR]


def test_complainer_leaves_no_masked_vector_and_its_session_is_over(exchange, monkeypatch):
    lie_in_dealing(monkeypatch, LIAR, "self_mask_share", lambda share, receiver: share)
    honest = dealing.open_dealt

    def open_dealt(made: Envelope, secrets, **given):
        if made.receiver == "silo-004" and made.sender == LIAR:
            made = dataclasses.replace(made, sealed_shares=flip(made.sealed_shares))
        return honest(made, secrets, **given)

    monkeypatch.setattr(dealing, "open_dealt", open_dealt)
    mask_with_complaints(exchange)
    assert "silo-004" not in exchange.masked
    assert exchange.silos["silo-004"].state is SiloState.FAILED
    with pytest.raises(RemoteProtocolError, match="masked vector of silo-004: it is not in this stage"):
        exchange.coordinator.on_masked("silo-004")


def test_complaint_is_refused_when_it_accuses_the_sender_or_a_stranger(exchange):
    exchange.run_until("consistency")
    digest = exchange.coordinator.cohort_digest
    for index, accused in enumerate(["silo-000", "spare"]):
        sender = f"silo-00{index}" if accused == "spare" else accused
        signed = bodies.sign(
            exchange.federation.silos[sender],
            bodies.Complaint(cohort_digest=digest, sender=sender, accused=accused),
        )
        with pytest.raises(RemoteProtocolError, match="the accused did not deal to it"):
            exchange.coordinator.on_complaint(sender, signed)
    assert exchange.coordinator.complaints == []


def test_complaint_of_another_silo_or_cohort_is_refused(exchange):
    exchange.run_until("consistency")
    one = bodies.Complaint(cohort_digest=exchange.coordinator.cohort_digest, sender="silo-001", accused=LIAR)
    by_another = bodies.sign(exchange.federation.silos["silo-000"], one)
    with pytest.raises(RemoteProtocolError, match="the signature is not valid"):
        exchange.coordinator.on_complaint("silo-001", by_another)
    elsewhere = bodies.sign(
        exchange.federation.silos["silo-003"],
        dataclasses.replace(one, sender="silo-003", cohort_digest=bytes(32)),
    )
    with pytest.raises(RemoteProtocolError, match="signed for another cohort or silo"):
        exchange.coordinator.on_complaint("silo-003", elsewhere)


def test_envelope_that_was_spoilt_on_the_way_accuses_nobody(exchange):
    exchange.advertise()
    exchange.share()
    given = exchange.coordinator.close_share()["silo-004"]
    first = given.envelopes[0]
    spoilt = dataclasses.replace(first, envelope=first.envelope[:-1] + bytes([first.envelope[-1] ^ 1]))
    with pytest.raises(RemoteProtocolError, match="it is not in the dealing that was signed") as caught:
        exchange.silos["silo-004"].receive(
            Envelopes(sharers=given.sharers, envelopes=(spoilt, *given.envelopes[1:]))
        )
    assert not isinstance(caught.value, EnvelopeComplaint)
    assert caught.value.code is Refusal.ENVELOPE


def mask_with_complaints(exchange: Exchange) -> None:
    exchange.advertise()
    exchange.share()
    for name, envelopes in exchange.coordinator.close_share().items():
        try:
            exchange.maskers[name] = exchange.silos[name].receive(envelopes)
        except EnvelopeComplaint as error:
            exchange.coordinator.on_complaint(name, error.complaint)
        else:
            exchange.upload(name)


def test_complaint_after_the_upload_still_takes_the_complainer_out(exchange):
    exchange.run_until("consistency")
    complaint = bodies.sign(
        exchange.federation.silos["silo-004"],
        bodies.Complaint(cohort_digest=exchange.coordinator.cohort_digest, sender="silo-004", accused=LIAR),
    )
    exchange.coordinator.on_complaint("silo-004", complaint)
    exchange.dropped.add("silo-004")
    exchange.consistency()
    exchange.unmask()
    assert "silo-004" not in exchange.coordinator.survivors
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_signature_over_other_survivors_is_refused_and_not_relayed(exchange):
    """Relayed, it would fail every honest silo: each refuses a set with one bad signature."""
    exchange.run_until("consistency", {"masked": ["silo-005"]})
    exchange.coordinator.close_masked()
    said = bodies.Consistency(
        cohort_digest=exchange.coordinator.cohort_digest,
        sender=LIAR,
        sharers=exchange.terms.names,
        survivors=exchange.terms.names,
    )
    signed = bodies.sign(exchange.federation.silos[LIAR], said)
    match = f"signature of {LIAR} over this cohort, U2 and U3: .* is not valid"
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        exchange.coordinator.on_consistency(LIAR, signed.signature)
    assert caught.value.code is Refusal.SIGNATURES
