"""Calibration under noise: the ridge that the noise asks for, and the shape of the card's table on digits.

The card's (section 4.3): with lambda = 2 sigma sqrt(D), epsilon 0.5 to 8 keep 92 to 97 % of 97 %; with 0 the
small epsilons collapse.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.rows import Row
from chorale.privacy.quantity_noise import noise_deviations
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from research import private_ffc
from research.attacks import chance
from research.attacks.digits import job
from research.attacks.inputs import encoded, phase_layout
from research.private_ffc import RANDOM, TRAINED, calibration_epsilon, multiplier_for
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Array, PhaseContext
from strategies.parts.closing.ffc import RIDGE, CalibratePhase, least_squares, packed
from strategies.parts.heads import HEAD, orthonormal_head
from tests.support.numbers import numbers

CARD = {0.5: 7.0318, 1.0: 3.7306, 2.0: 1.9938, 4.0: 1.0812, 8.0: 0.6002}  # analytic Gaussian, delta 1e-5


def context(*, noise: Mapping[str, float], width: int = 16) -> PhaseContext:
    head_CD = orthonormal_head(4, width, numbers(0)).astype(np.float32)
    state = {HEAD: head_CD, TOTAL: np.array(100)}
    return PhaseContext(round=1, members=5, classes=4, state=state, trained=(), noise=noise)


# --- the ridge


def test_ridge_is_as_large_as_the_noises_largest_eigenvalue() -> None:
    assert CalibratePhase().ridge_under(context(noise={"gram": 3.0, "moment": 5.0})) == 2 * 3.0 * 4.0
    generator = np.random.default_rng(0)
    noise_DD = np.triu(generator.normal(0.0, 3.0, (400, 400)))
    symmetric_DD = noise_DD + np.triu(noise_DD, 1).T
    ridge = CalibratePhase().ridge_under(context(noise={"gram": 3.0}, width=400))
    assert np.abs(np.linalg.eigvalsh(symmetric_DD)).max() == pytest.approx(ridge, rel=0.05)


@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_a_ridge_that_the_job_names_stays_under_noise(ridge: float) -> None:
    assert CalibratePhase(ridge=ridge).ridge_under(context(noise={"gram": 3.0})) == ridge


def test_without_noise_the_ridge_is_the_small_one() -> None:
    assert CalibratePhase().ridge_under(context(noise={})) == RIDGE == 0.1


def test_the_scaled_ridge_is_what_is_solved_with() -> None:
    generator = np.random.default_rng(0)
    unit_ND = generator.standard_normal((500, 16))
    unit_ND /= np.linalg.norm(unit_ND, axis=1, keepdims=True)
    gram_DD, moment_DC = unit_ND.T @ unit_ND, unit_ND.T @ np.eye(4)[unit_ND[:, :4].argmax(axis=1)]
    noisy = context(noise={"gram": 1.5})
    installed = CalibratePhase().next_state(noisy, {"gram": packed(gram_DD), "moment": moment_DC}).state
    assert installed is not None
    expected_DC = least_squares(gram_DD, moment_DC, ridge=12.0)
    np.testing.assert_allclose(installed[HEAD], expected_DC.T, rtol=1e-5)


# --- how much noise there is


def noised_layout(multiplier: float) -> Layout:
    privacy = {
        "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1},
        "statistics_noise_multiplier": multiplier,
    }
    spec = job("spherefed", silos=5, privacy=privacy)
    return phase_layout(spec, "calibrate", {**initial_state(spec), TOTAL: np.array(500)}, members=5)


def test_sums_carry_the_noise_that_the_ridge_is_scaled_with() -> None:
    """Once, not twice and not a silo's alone. False alarm 1e-9."""
    layout = noised_layout(4.0)
    total = ring.zeros(layout)
    nothing = {quantity.name: np.zeros(quantity.shape) for quantity in layout.quantities}
    for _ in range(5):
        ring.add_into(total, encoded(nothing, layout).vectors)
    sums, said = ring.decode(total, layout=layout), noise_deviations(layout.quantities, 5)
    assert said.keys() == {"gram", "moment"}
    for name, deviation in said.items():
        least, most = chance.chance_deviation_ratios(sums[name].size)
        assert least < np.sqrt(np.mean(sums[name] ** 2)) / deviation < most
    # four times what one record moves, of three silos' noise; the sum has that of five
    assert said["gram"] == pytest.approx(4.0 * math.sqrt(5 / 3), rel=0.02)


@pytest.mark.parametrize(
    "target", [0.5, 1.0, 2.0, *(pytest.param(target, marks=pytest.mark.soak) for target in (4.0, 8.0))]
)
def test_the_cards_multiplier_meets_its_epsilon_and_is_the_least_that_does(target: float) -> None:
    multiplier = math.sqrt(2.0) * CARD[target]  # two sums of sensitivity 1 are one of sqrt(2)
    assert calibration_epsilon(1.001 * multiplier) <= target < calibration_epsilon(0.999 * multiplier)


def test_the_search_finds_the_least_multiplier() -> None:
    target = 0.5  # the quickest to account for
    multiplier = multiplier_for(target)
    assert 0.999 * target < calibration_epsilon(multiplier) <= target
    assert multiplier == pytest.approx(math.sqrt(2.0) * CARD[target], rel=1e-3)


# --- the shape


def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's generator replaced by a hash of a counter, so that the outcome is always the same."""
    calls = count()

    def random(size: int) -> bytes:
        return hashlib.shake_256(next(calls).to_bytes(8, "big")).digest(size)

    def encoded_alike(values: Mapping[str, Array], layout: Layout) -> ring.Encoded:
        return Encoder(values, layout=layout, random=random).encode()

    monkeypatch.setattr(private_ffc, "encoded", encoded_alike)


@pytest.mark.soak
def test_ridge_keeps_what_calibration_without_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_noise(monkeypatch)
    figure = private_ffc.measure(TRAINED, seeds=(1, 2), epsilons=(0.5, 1.0, 8.0), rounds=4)
    strong, middle, weak = figure.levels
    assert figure.no_noise.mean > 0.93
    assert middle.with_ridge.mean > figure.no_noise.mean - 0.07
    assert weak.with_ridge.mean > figure.no_noise.mean - 0.03
    assert strong.with_ridge.mean > strong.without_ridge.mean + 0.15
    assert middle.with_ridge.mean > middle.without_ridge.mean + 0.05
    assert [level.ridge for level in figure.levels] == sorted([level.ridge for level in figure.levels])[::-1]
    for level in figure.levels:
        assert level.ridge == pytest.approx(16.0 * level.sigma)
        assert level.installed == level.with_ridge  # by the noised squared error it is the better one


@pytest.mark.soak
def test_a_random_backbone_learns_by_calibration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_noise(monkeypatch)
    figure = private_ffc.measure(RANDOM, seeds=(1, 2), epsilons=(8.0,))
    (level,) = figure.levels
    assert figure.before.mean < 0.3
    assert figure.no_noise.mean > 0.85
    assert level.with_ridge.mean > level.without_ridge.mean


# --- the program


@pytest.mark.soak
def test_program_prints_rows_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measure: Callable[..., Any] = private_ffc.measure
    monkeypatch.setattr(
        private_ffc, "measure", lambda backbone, **options: measure(backbone, **options, rounds=1)
    )
    picture = tmp_path / "figure.svg"
    assert private_ffc.main(["--seeds", "2", "--json", "--plot", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [figure["backbone"] for figure in report["figures"]] == [TRAINED, RANDOM]
    assert [level["epsilon"] for level in report["figures"][0]["levels"]] == sorted(CARD)
    assert len([Row.from_json(row) for row in report["rows"]]) == 2
    assert picture.read_text().startswith("<?xml")
