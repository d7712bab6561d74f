"""Attacks on digits, each with its protection and without: small runs of `python -m research.attacks`.

Every protected arm has a control in which the same attack works, and goes red when its protection is taken
out. Masks and noise come from the system's generator; each test of chance has a false alarm once in 10^9
runs, membership once in 10^5.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.rows import Row
from chorale.spec.privacy_spec import PrivacySpec
from crypto.masking import masks
from crypto.noise.gaussian import GaussianStream
from research.attacks import __main__ as program
from research.attacks import chance, differences, gradients, membership, moments
from research.attacks.digits import digits, job
from research.attacks.mlp import logits, unit_features
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.models.starting import initial_state
from tests.support.small_methods import built_model

PIXELS = 64


def failed(rows: Sequence[Row]) -> list[str]:
    return [f"{row.name}: {row.value:g}, target {row.target:g}" for row in rows if not row.holds]


def without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks._Masks, "apply", lambda masks, words_B, first: None)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of its ways into the words."""
    monkeypatch.setattr(GaussianStream, "add_into", lambda stream, start, word_N: None)


# --- what chance does


@pytest.mark.parametrize(("size", "rate"), [(200, 0.01), (640, 0.01), (4000, 0.2)])
def test_words_by_chance_are_seldom_as_close_as_the_threshold(size: int, rate: float) -> None:
    generator = np.random.default_rng(0)
    fixed_N = np.abs(generator.standard_normal(size))
    limit = chance.largest_chance_cosine(size, false_alarm=rate)
    random = generator.uniform(-1, 1, (2000, size))
    assert limit < 1.0
    assert np.mean([abs(chance.cosine(fixed_N, words)) > limit for words in random]) <= rate


def test_a_threshold_that_few_words_could_not_hold_is_no_threshold() -> None:
    assert chance.largest_chance_cosine(16) == 1.0


def test_bytes_of_a_generator_pass_and_bytes_with_a_favorite_do_not() -> None:
    random = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8)
    limit = chance.largest_chance_chi_square(255)
    assert chance.byte_chi_square(random.tobytes()) < limit
    random[:500] = 7
    assert chance.byte_chi_square(random.tobytes()) > limit


def test_measured_deviations_lie_between_their_bounds() -> None:
    least, most = chance.chance_deviation_ratios(500, false_alarm=0.01)
    drawn = np.random.default_rng(0).standard_normal((2000, 500)).std(axis=1)
    assert 0.8 < least < 1.0 < most < 1.3
    assert np.mean((drawn < least) | (drawn > most)) <= 0.01


# --- (a) Gram and moment of one silo


def test_a_lone_sample_is_read_off_the_moment_and_not_off_masked_words() -> None:
    attack = moments.measure()
    assert failed(attack.rows()) == []
    assert attack.unmasked_cosine == pytest.approx(1.0, abs=1e-9)
    assert 0.0 < attack.closer_strangers < 1.0  # the sum is near to the class, not to the sample


def test_without_masks_the_same_rows_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    without_masks(monkeypatch)
    attack = moments.measure()
    assert attack.masked_cosine == pytest.approx(1.0, abs=1e-9)
    assert len(failed(attack.rows())) == 2


# --- (b) images from an update


def test_images_come_out_of_an_update_and_not_out_of_masks_or_noise() -> None:
    attack = gradients.measure(attacked=3)
    assert failed(attack.rows()) == []
    # what masks do not hide: rows that a single sample of a single silo moved are in the sum too
    assert attack.arm(gradients.SUM, 1).recovered > 0.5
    for protection in gradients.PROMISES:
        spent = attack.arm(protection, 1).epsilon
        assert spent is not None
        assert 0.9 * gradients.TARGET_EPSILON < spent <= gradients.TARGET_EPSILON


@pytest.mark.parametrize(
    ("protection", "break_it"),
    [
        (gradients.MASKS, without_masks),
        (gradients.SUMS, without_noise),
        (
            gradients.RECORDS,
            lambda patch: patch.setattr(Draws, "noise", lambda draws, count: np.zeros(count, np.int64)),
        ),
    ],
)
def test_an_update_whose_protection_is_taken_out_gives_the_image(
    protection: str, break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    attack = gradients.measure(attacked=2, counts=(1,))
    assert attack.arm(protection, 1).recovered == 1.0
    assert any(protection in line for line in failed(attack.rows()))


def test_rows_of_the_first_layer_are_the_input_after_any_number_of_steps() -> None:
    generator = np.random.default_rng(0)
    state = dict(initial_state(job("fedavg", silos=4)))
    image_D = digits().images(np.array([5]))[0]
    slope_H = generator.standard_normal(64) * (np.arange(64) % 3 == 0)
    update = {
        "body.1.bias": slope_H,
        "body.1.weight": np.outer(slope_H, image_D),
        "head.bias": np.zeros(10),
        "head.weight": np.zeros((10, 64)),
    }
    names = sorted(update)
    rows_HD = gradients.rows_of_first_layer(np.concatenate([update[name].ravel() for name in names]), state)
    np.testing.assert_allclose(rows_HD, np.tile(image_D, (22, 1)), atol=1e-12)


# --- (c) membership


def test_chance_that_a_members_loss_is_lower_counts_ties_half() -> None:
    def auc(members: list[float], others: list[float]) -> float:
        return membership.auc(np.array(members), np.array(others))

    assert auc([1, 2], [3, 4]) == 1.0
    assert auc([3, 4], [1, 2]) == 0.0
    assert auc([1, 1], [1, 1]) == 0.5
    assert auc([1, 3], [2, 3]) == pytest.approx((1 + 1 + 0 + 0.5) / 4)


def test_an_advantage_is_measured_on_other_samples_than_its_threshold() -> None:
    # 8, the largest of every second member, is the threshold; of the other members, 9 is above it
    assert membership.advantage(np.arange(10.0), np.arange(10.0) + 10) == 0.8
    generator = np.random.default_rng(0)
    gains = [membership.advantage(generator.random(40), generator.random(40)) for _ in range(300)]
    assert abs(np.mean(gains)) < 5 * np.std(gains) / math.sqrt(300)  # no bias: false alarm 1e-6


def test_an_epsilon_leaves_any_attack_this_advantage() -> None:
    assert membership.largest_advantage(0.0, 0.0) == 0.0
    assert membership.largest_advantage(math.log(3), 0.0) == pytest.approx(0.5)
    assert membership.largest_advantage(8.0, 1e-5) == pytest.approx(0.99933, abs=1e-5)


def test_an_attackers_losses_are_those_of_the_model() -> None:
    spec = job("fedavg", silos=4, hidden=(16, 12))
    state = dict(initial_state(spec))
    model = built_model(spec, state)
    places_N = np.arange(50)
    inputs, label_N = torch.tensor(digits().take(places_N).features), digits().labels(places_N)
    with torch.inference_mode():
        expected_NC = model.eval()(inputs)
        losses_N = torch.nn.functional.cross_entropy(expected_NC, torch.tensor(label_N), reduction="none")
    images_ND = digits().images(places_N)
    np.testing.assert_allclose(logits(state, images_ND), expected_NC.numpy(), atol=1e-5)
    np.testing.assert_allclose(membership.losses(state, images_ND, label_N), losses_N.numpy(), atol=1e-5)


def test_unit_features_are_what_a_calibration_sees() -> None:
    spec = job("spherefed", silos=4, hidden=(16, 12))
    state = dict(initial_state(spec))
    model = built_model(spec, state)
    places_N = np.arange(20)
    with torch.inference_mode():
        expected_ND = model.eval().embed(model.features(torch.tensor(digits().take(places_N).features)))
    np.testing.assert_allclose(unit_features(state, digits().images(places_N)), expected_ND, atol=1e-6)


def small_membership(
    monkeypatch: pytest.MonkeyPatch, *, seeds: Sequence[int] = (1, 2)
) -> membership.MembershipAttack:
    """Fewer samples, half of them odd, and few steps. Under DP-SGD the mean AUC of 200 odd members and 300
    odd others over two seeds is about 0.53, with a standard deviation of 0.02."""
    monkeypatch.setattr(membership, "PER_SILO", 100)
    monkeypatch.setattr(membership, "ODD_SHARE", 0.5)
    monkeypatch.setattr(membership, "ODD_OTHERS", 300)
    monkeypatch.setattr(membership, "SAMPLE_RATE", 0.3)
    return membership.measure(seeds=seeds, epsilons=(3.0,))


@pytest.mark.gate
def test_a_model_that_learned_by_heart_tells_its_members_and_dp_sgd_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attack = small_membership(monkeypatch)
    assert failed(attack.rows()) == []
    private = attack.arms[1]
    assert private.epsilon is not None
    assert 2.8 < private.epsilon <= 3.0
    assert private.accuracy > 0.15  # chance is 0.1
    assert attack.control.advantage > 0.25


@pytest.mark.soak
def test_dp_sgd_without_noise_and_clip_tells_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draws, "noise", lambda draws, count: np.zeros(count, np.int64))
    solve = membership.solve

    def with_a_wide_clip(spec: Any, state: Any) -> Any:
        solved = solve(spec, state)
        if solved.privacy is None:
            return solved
        records = solved.privacy.records.model_copy(update={"clip_norm": 100.0})
        privacy: PrivacySpec = solved.privacy.model_copy(update={"records": records})
        return solved.model_copy(update={"privacy": privacy})

    monkeypatch.setattr(membership, "solve", with_a_wide_clip)
    # no standard error of one seed is looked at
    monkeypatch.setattr(membership, "_standard_error", lambda values: 0.0)
    attack = small_membership(monkeypatch, seeds=(1,))
    assert len(failed(attack.rows())) == 1


# --- (d) two cohorts that differ by one silo


def test_the_difference_of_two_sums_is_a_silos_statistic_unless_there_is_noise() -> None:
    attack = differences.measure(per_silo=40)
    assert failed(attack.rows()) == []
    assert attack.plain.cosine == pytest.approx(1.0, abs=1e-12)
    assert attack.noised.expected >= math.sqrt(2.0) * attack.noised.promised
    assert attack.plain.epsilon is None
    assert attack.noised.epsilon is not None


def test_a_difference_without_the_promised_noise_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    assert len(failed(differences.measure(per_silo=40).rows())) == 2


# --- the program


def test_json_is_one_object_with_rows_and_details(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = membership.Arm(
        protection="no protection",
        seeds=2,
        auc=0.9,
        auc_standard_error=0.01,
        advantage=0.5,
        advantage_standard_error=0.01,
        accuracy=0.9,
        epsilon=None,
        max_advantage=1.0,
    )
    found = membership.MembershipAttack(arms=(arm, replace(arm, protection="records", auc=0.5, epsilon=8.0)))
    monkeypatch.setattr(membership, "measure", lambda **options: found)
    assert program.main(["--json", "--attacked", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"moments", "gradients", "membership", "differences", "rows"}
    rows = [Row.from_json(row) for row in report["rows"]]
    assert sum("(control)" in row.name for row in rows) == 8
    assert len({row.name for row in rows}) == len(rows)


def test_a_wrong_option_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main(["--seeds", "1"])
    assert stop.value.code == 2
    assert "expected a whole number from 2 to 50, got 1" in capsys.readouterr().err
