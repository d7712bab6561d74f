"""What releases cost, compared with published figures, opacus, results by hand and other accountants."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chorale.privacy import renyi
from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.releases import (
    DpSgd,
    Gaussian,
    Release,
    SampledGaussian,
    releases_from_json,
    releases_to_json,
)
from chorale.privacy.renyi import ORDERS, rdp, rdp_epsilon
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Side

MNIST = 256 / 60_000
DELTA = 1e-5


def dp_sgd(noise: float, epochs: float, rate: float = MNIST) -> DpSgd:
    return DpSgd(noise_multiplier=noise, sample_rate=rate, steps=int(epochs / rate))


def gaussian(variance: float, *, l2: float = 1.0, draws: int = 1) -> Gaussian:
    return Gaussian(noise_multiplier=math.sqrt(variance) / l2, draws=draws)


def papers_epsilon(release: Release) -> float:
    """By the classic conversion, rdp + log(1 / delta) / (order - 1) (Mironov 2017, Proposition 3), as the
    published figures are; nothing is taken out of delta."""
    return float(np.min(rdp([release]) + math.log(1.0 / DELTA) / (np.array(ORDERS) - 1.0)))


# (release, published epsilon at delta 1e-5, where it stands)
PUBLISHED = [
    # tensorflow/privacy, tutorials/README.md, table "Select Parameters", first edition
    (dp_sgd(1.3, 15), 1.19),
    (dp_sgd(1.1, 60), 3.01),
    (dp_sgd(0.7, 45), 7.10),
    # the same table as it stands today
    (dp_sgd(1.12, 60), 2.92),
    (dp_sgd(0.6, 30), 9.74),
    (dp_sgd(1.2, 10), 1.20),
    # Bu, Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", HDSR 2020, figure 4
    (dp_sgd(0.7, 70), 8.68),
    # Abadi et al. 2016 (arXiv 1607.00133), section 3.2: q = 0.01, sigma = 4, 10,000 steps
    (DpSgd(noise_multiplier=4.0, sample_rate=0.01, steps=10_000), 1.26),
]


@pytest.mark.parametrize(("release", "published"), PUBLISHED)
def test_published_settings_cost_what_was_published(release: DpSgd, published: float) -> None:
    assert papers_epsilon(release) == pytest.approx(published, rel=0.01)
    assert epsilon([release], DELTA) < published


def test_todays_conversion_of_the_best_known_setting() -> None:
    assert rdp_epsilon(rdp([dp_sgd(1.1, 60)]), DELTA) == pytest.approx(2.597, abs=5e-4)


@pytest.mark.parametrize(
    ("release", "apart"),
    [
        (dp_sgd(1.1, 60), 1e-6),
        (dp_sgd(1.3, 15), 1e-6),
        # opacus cuts the series of orders between whole numbers short; dp-accounting rounds it up
        (dp_sgd(0.7, 45), 2e-3),
        (DpSgd(noise_multiplier=1.0, sample_rate=0.1, steps=100), 5e-3),
    ],
)
def test_dp_sgd_costs_what_opacus_says(release: DpSgd, apart: float) -> None:
    accountants: Any = pytest.importorskip("opacus.accountants")
    accountant = accountants.RDPAccountant()
    accountant.history = [(release.noise_multiplier, release.sample_rate, release.steps)]
    assert -1e-6 < rdp_epsilon(rdp([release]), DELTA) - accountant.get_epsilon(DELTA) < apart


def test_more_noise_costs_less() -> None:
    costs = [epsilon([gaussian(variance, l2=10.0)], DELTA) for variance in (1e1, 1e2, 1e3, 1e4, 1e5)]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)


def test_rounds_add_up_order_by_order() -> None:
    one, step = gaussian(400.0, l2=3.0), DpSgd(noise_multiplier=1.0, sample_rate=0.1, steps=10)
    many: list[Release] = [one, step] * 7
    np.testing.assert_allclose(rdp(many), 7 * (rdp([one]) + rdp([step])), rtol=1e-12)
    assert epsilon(many, DELTA) == epsilon(Counter({one: 7, step: 7}), DELTA)


def test_nothing_released_costs_nothing_and_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)  # whose import takes seconds of a scrape
    renyi.accounting.cache_clear()
    assert epsilon([], DELTA) == 0.0
    with pytest.raises(ConfigError, match="delta"):
        epsilon([], 1.0)


def test_an_accountant_does_not_start_again_at_zero() -> None:
    """An accountant of its own for each job would say that two jobs cost no more than the dearer one."""
    one, other, both = (
        DpSgd(noise_multiplier=1.1, sample_rate=MNIST, steps=steps) for steps in (2_000, 1_000, 3_000)
    )
    assert epsilon([one, other], DELTA) == pytest.approx(epsilon([both], DELTA), rel=1e-12)
    assert epsilon([one, other], DELTA) > epsilon([one], DELTA)


def test_what_a_sensitivity_may_fail_is_taken_out_of_delta() -> None:
    sure = gaussian(25.0)
    mostly = replace(sure, failure=DELTA / 4)
    assert epsilon([mostly, mostly], DELTA) == pytest.approx(epsilon([sure, sure], DELTA / 2), rel=1e-9)
    assert epsilon([mostly] * 4, DELTA) == math.inf


def test_what_the_sampler_is_off_its_law_is_taken_out_of_delta() -> None:
    few, many = gaussian(25.0), gaussian(25.0, draws=1 << 40)
    assert epsilon([few], 1e-10) < epsilon([many], 1e-10) < math.inf
    assert epsilon([many], 1e-12) == math.inf


def test_draws_of_dp_sgd_are_paid_out_of_delta_too() -> None:
    plain = DpSgd(noise_multiplier=1.0, sample_rate=0.01, steps=100)
    small, large = (replace(plain, draws=draws) for draws in (10**8, 1 << 60))
    assert epsilon([plain], 1e-5) <= epsilon([small], 1e-5) < epsilon([plain], 0.999_999e-5)
    assert epsilon([large], 1e-5) == math.inf
    assert releases_from_json(releases_to_json([small])) == (small,)
    for draws in (-1, 1 << 61):
        with pytest.raises(ConfigError, match="dp-sgd: draws: expected 0 to"):
            replace(plain, draws=draws)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_odd_numbers_are_no_release(value: float) -> None:
    """NaN passes `value <= 0`, and an accountant that lets it pass finds every budget unspent."""
    for name in ("noise_multiplier", "sample_rate"):
        with pytest.raises(ConfigError, match=f"dp-sgd: {name}: expected a finite number above 0"):
            DpSgd(**{"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1, name: value})
    with pytest.raises(ConfigError, match="delta: expected more than 0 and less than 1"):
        epsilon([dp_sgd(1.0, 1)], value)


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (DpSgd, {"noise_multiplier": 1.0, "sample_rate": 1.1, "steps": 1}, "sample_rate: expected at most 1"),
        (DpSgd, {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 0}, "steps: expected 1 to"),
        (Gaussian, {"noise_multiplier": 1.0, "draws": -1}, "draws: expected 0 to"),
        (Gaussian, {"noise_multiplier": 1.0, "draws": 1, "failure": math.nan}, "failure: expected 0 to 1"),
    ],
)
def test_impossible_releases_are_refused(made: type[Any], fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**fields)


def test_releases_survive_their_text() -> None:
    releases = (
        dp_sgd(1.1, 60),
        Gaussian(noise_multiplier=2.0, draws=5, failure=1e-12, side=Side.HOLDOUT),
        SampledGaussian(noise_multiplier=2.0, sample_rate=0.2, draws=0, distance=1e-13),
    )
    assert releases_from_json(releases_to_json(releases)) == releases
    assert releases_to_json(releases_from_json(releases_to_json(releases))) == releases_to_json(releases)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[[]]",
        '[{"kind": "none"}]',
        '[{"kind": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.1}]',
        '[{"kind": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1, "more": 1}]',
        '[{"kind": "dp-sgd", "noise_multiplier": NaN, "sample_rate": 0.1, "steps": 1}]',
        '[{"kind": "dp-sgd", "noise_multiplier": "1", "sample_rate": 0.1, "steps": 1}]',
        '[{"kind": "dp-sgd", "noise_multiplier": true, "sample_rate": 0.1, "steps": 1}]',
        '[{"kind": "gaussian", "noise_multiplier": 1.0, "draws": 1, "side": "neither"}]',
        '[{"kind": "gaussian", "noise_multiplier": 1.0, "draws": 1, "side": 1}]',
        '[{"kind": "sampled-gaussian", "noise_multiplier": 1.0, "sample_rate": 0.1}]',
        "[" * 60_000,  # a RecursionError left
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="releases: |dp-sgd: "):
        releases_from_json(text)


def test_next_to_no_noise_promises_nothing() -> None:
    """Its losses are beyond a float's exponent: an OverflowError came out."""
    assert delta_at([Gaussian(noise_multiplier=1e-5, draws=1)], 1.0) == 1.0


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.1, 300), (4.0, 0.5, 20), (20.0, 0.3, 3000)])
def test_the_grid_of_losses_costs_a_ten_thousandth(noise: float, rate: float, steps: int) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    law = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    finest = law.self_compose(steps).get_epsilon_for_delta(DELTA)
    found = epsilon([DpSgd(noise_multiplier=noise, sample_rate=rate, steps=steps)], DELTA)
    assert finest <= found <= finest * 1.0001
