"""What releases cost: blocks by privacy loss distributions, both sides of a split, and the filter."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.privacy_filter import filter_epsilon, fits
from chorale.privacy.releases import Gaussian, Release, SampledGaussian
from chorale.privacy.renyi import rdp, rdp_epsilon
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Side
from tests.support.privacy_losses import epsilon_by_fft

DELTA = 1e-5


def step(noise: float, rate: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=rate, draws=0)


def gaussian(noise: float, *, side: Side = Side.BOTH) -> Gaussian:
    return Gaussian(noise_multiplier=noise, draws=0, side=side)


SETTINGS = [
    [(5.06, 0.2, 50)],  # the experiments' job at epsilon 1
    [(1.65, 0.2, 50)],  # at epsilon 4
    [(1.06, 0.2, 50)],  # at epsilon 8
    [(3.6, 0.2, 55), (10.0, 1.0, 2)],  # with two counts
    [(1.1, 256 / 60_000, 14_062)],
    [(0.7, 256 / 60_000, 1_000)],
    [(4.0, 0.01, 10_000)],
    [(2.0, 0.05, 200), (1.5, 0.1, 50), (8.0, 1.0, 12)],
    [(0.8, 0.005, 1_000)],
    [(4.0, 1.0, 3)],
]


@pytest.mark.parametrize("steps", SETTINGS)
def test_a_block_costs_what_losses_by_fft_say(steps: list[tuple[float, float, int]]) -> None:
    block = {step(noise, rate): times for noise, rate, times in steps}
    assert epsilon(block, DELTA) == pytest.approx(epsilon_by_fft(steps, DELTA), rel=0.01)


# Koskela, Jalko and Honkela 2020 (arXiv 1906.03049), remove/add, as their fourier-accountant has it in
# tests/test_compute_delta.py: (epsilon, noise, rate, steps) and delta
PUBLISHED = [
    ((1.0, 2.0, 0.01, 10_000), 0.0102249),
    ((1.0, 2.0, 0.01, 100_000), 0.392057),
    ((0.8, 2.0, 0.01, 10_000), 0.0228503),
    ((1.0, 1.0, 0.01, 10_000), 0.239176),
    ((1.0, 2.0, 0.02, 10_000), 0.149917),
]


@pytest.mark.parametrize(("setting", "published"), PUBLISHED)
def test_a_block_costs_what_was_published_of_privacy_losses(
    setting: tuple[float, float, float, int], published: float
) -> None:
    at, noise, rate, steps = setting
    assert delta_at({step(noise, rate): steps}, at) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("noise", [5.06, 1.65, 1.06])
def test_a_block_gives_away_nothing_that_renyi_divergence_gave_away(noise: float) -> None:
    """An epsilon of 1 was noised for as if it were 0.9: the best order is 7 to 15 % above the losses."""
    steps = {step(noise, 0.2): 50}
    best_order = rdp_epsilon(rdp(steps), DELTA)
    assert 1.07 < best_order / epsilon(steps, DELTA) < 1.15


def test_training_and_holdout_cost_the_dearer_of_the_two() -> None:
    """They share no record, and were composed one after the other."""
    train, held, both = gaussian(4.0, side=Side.TRAIN), gaussian(3.0, side=Side.HOLDOUT), gaussian(20.0)
    assert epsilon([train, held, both], DELTA) == epsilon([held, both], DELTA)
    assert epsilon([train, train, held, both], DELTA) == epsilon([train, train, both], DELTA)
    added = epsilon([train, held, both], DELTA, sides_are_fixed=False)
    assert added == pytest.approx(epsilon([gaussian(4.0), gaussian(3.0), both], DELTA))
    assert added > 1.2 * epsilon([train, held, both], DELTA)


def test_a_failure_costs_itself_and_a_distance_what_epsilon_makes_of_it() -> None:
    plain = replace(step(1.65, 0.2), draws=1)
    failing = replace(plain, failure=DELTA / 100)  # 50 of them take half of delta
    assert epsilon({failing: 50}, DELTA) == pytest.approx(epsilon({plain: 50}, DELTA / 2), rel=1e-4)
    at, most = (epsilon({plain: 50}, share * DELTA) for share in (0.75, 0.5))
    distant = replace(plain, distance=DELTA / 4 / (1 + math.exp(at)) / 50)
    assert at <= epsilon({distant: 50}, DELTA) <= most
    assert epsilon({replace(plain, failure=DELTA / 50): 50}, DELTA) == math.inf
    assert delta_at({distant: 50}, at) == pytest.approx(DELTA, rel=1e-2)


def test_next_to_no_noise_neither_fills_the_memory_nor_counts_as_little() -> None:
    for release in (step(1e-3, 0.2), step(1e-3, 1e-9), gaussian(1e-3), step(0.02, 1e-12)):
        cost = epsilon({release: 10}, DELTA)
        assert cost > 30 or release.sample_rate < 1e-6  # type: ignore[union-attr]


# the filter


MIXES = st.dictionaries(
    st.one_of(
        st.floats(0.5, 50.0).map(gaussian),
        st.builds(step, st.floats(0.8, 8.0), st.sampled_from([0.01, 0.2])),
    ),
    st.integers(1, 20),
    min_size=1,
    max_size=3,
)


@pytest.mark.gate
@settings(max_examples=8, deadline=None)
@given(mix=MIXES, more=MIXES)
def test_a_filter_is_above_the_block_and_more_never_costs_less(
    mix: dict[Release, int], more: dict[Release, int]
) -> None:
    cost = filter_epsilon(mix, DELTA, sides_are_fixed=True)
    assert cost >= epsilon(mix, DELTA)
    together = filter_epsilon(Counter(mix) + Counter(more), DELTA, sides_are_fixed=True)
    assert together >= cost * (1 - 1e-6)
    if cost < 9.0:
        assert fits(mix, cost * 1.001, DELTA, sides_are_fixed=True)
        assert not fits(mix, cost * 0.999, DELTA, sides_are_fixed=True)


@pytest.mark.parametrize(("budget", "given_away"), [(0.5, 1.2), (1.0, 1.18), (4.0, 1.16), (8.0, 1.16)])
def test_a_filter_gives_away_no_more_than_the_page_says(budget: float, given_away: float) -> None:
    """Of Gaussian sums: against what the same releases cost had they been planned."""
    low, high = 0.1, 100.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        is_enough = fits([gaussian(middle)], budget, DELTA, sides_are_fixed=True)
        low, high = (low, middle) if is_enough else (middle, high)
    assert 1.05 < budget / epsilon([gaussian(high)], DELTA) < given_away


def test_a_filter_stays_private_however_its_reader_goes_on() -> None:
    """A reader asks for the next sum by what the last ones showed, until the filter lets no more through.

    All sums are Gaussian, so the loss is a random walk. The reader asks for much noise where it was unlucky
    and for little where it was lucky, which is what a filter with an order chosen afterwards falls for. The
    walk is followed exactly on a grid: delta at the budget is that of the law where it stops.
    """
    budget, delta = 1.0, 1e-2
    fine, coarse = gaussian(12.0), gaussian(4.0)
    found = _delta_of_reader(budget, delta, lucky=coarse, unlucky=fine)
    assert 0.0 < found <= delta
    control = _delta_of_reader(1.6 * budget, delta, lucky=coarse, unlucky=fine, at=budget)
    assert control > delta  # a budget of 1.6 spent, and told as 1


def _delta_of_reader(
    budget: float, delta: float, *, lucky: Gaussian, unlucky: Gaussian, at: float | None = None
) -> float:
    """E[(1 - e^(at - L))+] where the filter stops, L the loss; states are (sums of each kind, loss)."""
    import numpy as np

    width = 0.05
    losses = np.arange(-12.0, 14.0, width)
    states = {(0, 0): np.where(np.abs(losses) < width / 2, 1.0, 0.0)}
    stopped = np.zeros_like(losses)
    is_lucky = losses > 0
    while states:
        following: dict[tuple[int, int], object] = {}
        for (few, many), mass in states.items():
            for release, chosen, key in (
                (lucky, is_lucky, (few + 1, many)),
                (unlucky, ~is_lucky, (few, many + 1)),
            ):
                part = np.where(chosen, mass, 0.0)
                if part.sum() < 1e-12:
                    continue
                if not fits({lucky: key[0], unlucky: key[1]}, budget, delta, sides_are_fixed=True):
                    stopped += part
                    continue
                mu = 1.0 / release.noise_multiplier
                kernel = np.exp(-((np.arange(-8.0, 8.0, width) - mu**2 / 2) ** 2) / (2 * mu**2))
                moved = np.convolve(part, kernel / kernel.sum(), mode="same")
                following[key] = following.get(key, 0.0) + moved  # type: ignore[operator]
        states = following  # type: ignore[assignment]
    return float(np.sum(stopped * np.maximum(0.0, -np.expm1((at or budget) - losses))))


def test_a_large_budget_lets_a_small_spend_through() -> None:
    """What a sampler is off its law costs e^budget: at a budget of 30 it would use up delta by itself."""
    small = Gaussian(noise_multiplier=4.0, draws=10**9)
    assert all(fits([small], budget, DELTA, sides_are_fixed=True) for budget in (2.0, 10.0, 30.0, 1e6))
    assert filter_epsilon([replace(small, draws=1 << 60)], DELTA, sides_are_fixed=True) == math.inf
    with pytest.raises(ConfigError, match="delta: expected more than 0"):
        epsilon([small], 0.0)
