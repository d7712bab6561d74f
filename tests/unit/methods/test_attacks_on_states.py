"""Crafted and repeated states, drifts toward them, ground draws: each works, and what silos check ends it."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from chorale.spec.state import trained_names
from crypto.session.cohort import draw_seed, fraction_for, named_set
from research.attacks import __main__ as program
from research.attacks import ground_draw, product_rules
from research.attacks.digits import NAMES, job
from research.attacks.product_rules import HonestSilos, Refused
from research.attacks.states import crafted, drift, repeated, traps
from research.attacks.states.digit_silos import DigitSilos, Training
from research.attacks.states.drift import Liar
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.models.starting import initial_state
from strategies.base import MODEL, Array

WIDTH = 256
SILOS = 4


@pytest.fixture(scope="module")
def held() -> DigitSilos:
    return DigitSilos(SILOS, width=WIDTH, training=Training.FULL)


def given_away(held: DigitSilos, state: dict[str, Array]) -> int:
    found_MD = traps.candidates(held.sums(state)["delta"], state)
    return int(traps.rebuilt(found_MD, held.records_ND).sum())


# --- crafted states


def test_a_sum_over_a_crafted_state_holds_records_and_one_over_the_first_state_few(held: DigitSilos) -> None:
    honest = held.enrolled(held.first)
    state = traps.trap_state(honest, held.public_ND, records=held.total)
    assert len(held.records_ND) == 1_438
    assert given_away(held, state) > 70
    assert given_away(held, honest) < 10


def test_noise_hides_every_record_of_a_crafted_state_and_clipping_alone_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noised = DigitSilos(SILOS, width=WIDTH, training=Training.FULL, noise=True)
    state = traps.trap_state(noised.enrolled(noised.first), noised.public_ND, records=noised.total)
    assert given_away(noised, state) == 0
    monkeypatch.setattr(Draws, "noise", lambda draws, count: np.zeros(count, np.int64))
    assert given_away(noised, state) > 70


def test_a_record_is_read_where_it_alone_lies_between_two_thresholds(held: DigitSilos) -> None:
    like, record_D = initial_state(job("fedavg", silos=SILOS, hidden=(3,))), held.records_ND[7]
    slopes = np.array([0.5, 0.5, 0.2])
    update = {
        f"{MODEL}body.1.weight": np.outer(slopes, record_D),
        f"{MODEL}body.1.bias": slopes,
        f"{MODEL}head.weight": np.ones((10, 3)),
        f"{MODEL}head.bias": np.ones(10),
    }
    flat_P = np.concatenate([update[MODEL + name].reshape(-1) for name in trained_names(dict(like))])
    is_rebuilt_N = traps.rebuilt(traps.candidates(flat_P, like), held.records_ND)
    assert np.flatnonzero(is_rebuilt_N).tolist() == [7]
    assert not traps.rebuilt(traps.candidates(0.0 * flat_P, like), held.records_ND).any()
    assert not traps.rebuilt(1.03 * record_D[None], held.records_ND).any()


def test_silos_take_the_state_that_follows(held: DigitSilos) -> None:
    assert crafted.is_taken_as_first(held, held.first)
    assert crafted.is_taken_instead(held, lambda state: state)


def test_silos_refuse_a_first_state_that_the_operator_did_not_sign(held: DigitSilos) -> None:
    other = {name: array + np.float32(1) for name, array in held.first.items()}
    with (
        HonestSilos(held.spec, held.first, policy=held.policy) as honest,
        pytest.raises(Refused, match="a global state that no silo is known to have computed$"),
    ):
        honest.check_state(other, round=0, phase=product_rules.ENROLLMENT)


def test_silos_whose_policy_refuses_the_job_take_no_state_of_it(held: DigitSilos) -> None:
    strict = DigitSilos(SILOS, width=8, training=Training.FULL, policy={"max_rounds": 1})
    assert crafted.is_taken_as_first(held, held.first)
    assert not crafted.is_taken_as_first(strict, strict.first)


def test_silos_refuse_crafted_states_so_no_record_is_rebuilt() -> None:
    found = crafted.measure(silos=SILOS, width=WIDTH)
    assert found.rebuilt_without_verification > 70
    assert (found.rebuilt, found.taken_as) == (0, ())


def test_silos_say_why_they_refuse_a_crafted_state(held: DigitSilos) -> None:
    state = traps.trap_state(held.first, held.public_ND, records=held.total)
    given = "computed here .*got the given one .*: it is not the one that follows from the job$"
    with (
        HonestSilos(held.spec, state, policy=held.policy) as honest,
        pytest.raises(Refused, match=given),
    ):
        honest.enroll(state, held.counts)
    with HonestSilos(held.spec, held.first, policy=held.policy) as honest:
        enrolled = honest.enroll(held.first, held.counts)
        with pytest.raises(Refused, match="a global state that no silo is known to have computed$"):
            honest.check_state(held.enrolled(state), round=1, phase=product_rules.TRAIN)
        honest.check_state(enrolled, round=1, phase=product_rules.TRAIN)


def test_a_given_crafted_state_is_taken_where_policy_says_so(held: DigitSilos) -> None:
    state = traps.trap_state(held.first, held.public_ND, records=held.total)
    lenient = DigitSilos(SILOS, width=WIDTH, training=Training.FULL, policy={"initial_state": "given"})
    assert crafted.is_taken_as_first(lenient, state)
    assert not crafted.is_taken_as_first(held, state)


# --- repeated states


def test_five_sums_over_one_state_give_every_update_and_silos_reveal_one() -> None:
    found = repeated.measure(silos=5, width=8)
    assert found.recovered_without_verification == found.silos == 5
    assert found.largest_error < 1e-6
    assert (found.recovered, found.sums) == (0, 1)


def test_silos_say_why_they_reveal_no_second_sum_over_other_silos(held: DigitSilos) -> None:
    with HonestSilos(held.spec, held.first, policy=held.policy) as honest:
        state = honest.enroll(held.first, held.counts)
        _, inputs = held.inputs(state)
        honest.sum(state, inputs, round=1)
        fewer = {name: words for name, words in inputs.items() if name != held.spec.silos[0]}
        with pytest.raises(Refused, match="another sum over this model differs by 1 silos, expected none"):
            honest.sum(state, fewer, round=2)


def test_the_same_silos_sum_over_one_state_as_often_as_policy_says_and_no_more(held: DigitSilos) -> None:
    with HonestSilos(held.spec, held.first, policy=held.policy) as honest:
        state = honest.enroll(held.first, held.counts)
        _, inputs = held.inputs(state)
        assert held.policy.max_repeats == 2
        for round in (1, 2, 3):
            honest.sum(state, inputs, round=round)
        with pytest.raises(Refused, match=r"3 sums were taken over this model before.*\(max_repeats\)$"):
            honest.sum(state, inputs, round=4)


# --- drift


def test_a_liar_who_knows_all_drives_the_state_to_the_crafted_one_within_the_step_ratio() -> None:
    found = drift.measure(silos=SILOS, rounds=3, trap_rows=(256,))
    honest, _, knowing = found.ways
    assert [way.liar for way in found.ways] == [liar.value for liar in Liar]
    assert all(len(way.by_round) == 4 for way in found.ways)
    assert knowing.arrived is not None
    assert knowing.by_round[-1] > 1.5 * honest.by_round[-1]
    assert knowing.stopped is None
    assert knowing.largest_ratio == pytest.approx(3.0)  # the policy's max_step_ratio
    assert all(way.largest_sum < found.bound for way in found.ways)


def test_silos_stop_a_liar_who_goes_farther_than_they_let_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "KNOWING_MARGIN", 1.001)
    found = drift.measure(silos=SILOS, rounds=3, width=16, trap_rows=(16,))
    honest, _, knowing = found.ways
    assert (honest.stopped, knowing.stopped) == (None, 1)
    assert len(knowing.by_round) == 1


# --- draws


def test_a_nonce_chosen_for_its_draw_draws_no_worse_than_any_other() -> None:
    found = ground_draw.measure(silos=12, fraction=0.25, colluders=4, nonces=20_000)
    assert found.asked_members == 3
    # a hypergeometric law: 4 of 12 collude, 3 are named, 2 or 3 of them collude
    chance = (6 * 8 + 4) / 220
    assert found.asked_promise == pytest.approx(4 * chance)
    # false alarms: once in 10^9 runs
    assert abs(found.asked_risk - chance) < 6.2 * (chance * (1 - chance) / found.nonces) ** 0.5
    assert abs(found.asked_risk_of_picked - chance) < 6.2 * (chance * (1 - chance) / found.picked) ** 0.5
    assert found.worst_risk <= found.promised_risk


def test_a_draw_by_digest_is_ground_in_few_nonces() -> None:
    tries, _, named = ground_draw.ground_by_digest(12, 0.25, colluders=2, rounds=1, nonces=5_000)
    assert 0 < tries < 5_000
    assert named == set(NAMES[:3])
    none, _, _ = ground_draw.ground_by_digest(12, 0.5, colluders=2, rounds=1, nonces=10)
    assert none == 0


def test_fast_draws_are_those_of_the_rule() -> None:
    names, jobs = NAMES[:7], [os.urandom(32) for _ in range(3)]
    given, fraction = os.urandom(3 * 7 * 32), fraction_for(3, 7)
    seeds = ground_draw.draw_seeds(jobs, 7, lambda size: given[:size])
    ranks_BR = ground_draw.ranks(seeds, names, 5)
    for place, (digest, seed) in enumerate(zip(jobs, seeds, strict=True)):
        of_job = given[place * 7 * 32 :]
        own = {name: of_job[at * 32 :][:32] for at, name in enumerate(names)}
        assert seed == draw_seed(digest, own)
        drawn = tuple(sorted(name for name, rank in zip(names, ranks_BR[place], strict=True) if rank < 3))
        named = named_set(names, on_roster=names, round=5, fraction=fraction, draw_seed=seed)
        assert drawn == named


# --- the program


def test_each_attack_prints_what_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        program.main(["ground-draw", "--silos", "30", "--fraction", "0.1", "--nonces", "500", "--json"]) == 0
    )
    assert {"nonces", "worst_risk", "promised_risk"} <= set(json.loads(capsys.readouterr().out))
    assert program.main(["repeated-state", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"silos", "recovered", "recovered_without_verification"} <= set(found)
    assert program.main(["crafted-state", "--silos", "4", "--width", "16", "--json"]) == 0
    assert {"records", "rebuilt", "rebuilt_without_verification"} <= set(json.loads(capsys.readouterr().out))
    assert program.main(["crafted-state", "--width", "16", "--training", "example"]) == 0
    assert "records: 1438" in capsys.readouterr().out


def test_a_draw_that_no_job_has_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main(["ground-draw", "--fraction", "0.01"])
    assert stop.value.code == 2
    assert "a round would name 1 of 30 silos" in capsys.readouterr().err
