"""The table against the law, in whole numbers: no sampling, so nothing here can fail by chance."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import count, takewhile

import mpmath
import numpy as np
import pytest
from crypto.noise.skellam import MORE_BITS, WEIGHT_BITS, Law, skellam_law, tail_probability, wrap_probability
from scipy import special

from crypto.errors import ConfigError
from crypto.noise import skellam

WHOLE = 1 << WEIGHT_BITS


def weights_of(law: Law) -> list[int]:
    """Of every magnitude, read back from the table as the sampler uses it."""
    cells = 1 << law.index_bits
    capacity = WHOLE >> law.index_bits
    weights = [0] * cells
    for cell in range(cells):
        entry = int(law.entries_C[cell])
        threshold = (entry >> law.index_bits << MORE_BITS) + int(law.more_C[cell])
        assert threshold <= capacity
        weights[cell] += threshold
        weights[entry & (cells - 1)] += capacity - threshold
    return weights


def law_by_series(variance: Fraction) -> list[Fraction]:
    """P(|X| = k), k = 0 and up, to 2^-150: the series of I_k, divided by their sum, which is e^variance."""

    def bessel(k: int) -> Fraction:
        terms = ((variance / 2) ** (2 * j + k) / (math.factorial(j) * math.factorial(j + k)) for j in count())
        return sum(takewhile(lambda term: term > Fraction(1, 1 << 200), terms), Fraction(0))

    magnitudes = [bessel(0), *(2 * bessel(k) for k in range(1, 90))]
    total = sum(magnitudes)
    return [magnitude / total for magnitude in magnitudes]


def law_by_fourier(k: int, variance: float) -> mpmath.mpf:
    """P(X = k) from values of the characteristic function at 64 points a deviation: k folds at 50."""
    points = 1 << math.ceil(math.log2(64 * math.sqrt(variance)))
    with mpmath.workprec(400):
        total = mpmath.mpf(1)
        for n in range(1, points // 2):
            angle = 2 * mpmath.pi * n / points
            exponent = variance * (mpmath.cos(angle) - 1)
            if exponent < -260:
                return total / points
            total += 2 * mpmath.exp(exponent) * mpmath.cos(k * angle)
    raise AssertionError("the characteristic function does not fade")


@pytest.mark.parametrize("variance", [2.0**-20, 0.1, 0.5, 1.0, 10.0, 12.345, 1e3, 2.0**24])
def test_weights_sum_to_the_power_of_two(variance: float) -> None:
    law = skellam_law(variance)
    assert sum(weights_of(law)) == WHOLE
    assert law.entries_C.size == law.more_C.size == 1 << law.index_bits


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0, 10.0])
def test_the_table_is_as_far_from_the_law_as_it_says(variance: float) -> None:
    """Against exact fractions; and the number charged is no more than twice what is true."""
    exact = law_by_series(Fraction(variance))
    law = skellam_law(variance)
    weights = weights_of(law)
    drawn = [Fraction(weight, WHOLE) for weight in weights] + [Fraction(0)] * (len(exact) - len(weights))
    distance = sum(abs(p - q) for p, q in zip(exact, drawn, strict=True)) / 2
    assert distance <= law.total_variation <= 2 * distance
    assert law.total_variation < 2.0**-88


@pytest.mark.parametrize("variance", [2.0**18 + 0.3, 2.0**24])
@pytest.mark.parametrize("deviations", [0.0, 0.3, 1.0, 5.0, 9.0, 11.5])
def test_weights_of_large_variances_are_the_law_cut_to_95_bits(variance: float, deviations: float) -> None:
    k = round(deviations * math.sqrt(variance)) + 1
    with mpmath.workprec(400):
        exact = 2 * WHOLE * law_by_fourier(k, variance)
        assert exact - 1 - exact * 2.0**-100 <= weights_of(skellam_law(variance))[k]
        assert weights_of(skellam_law(variance))[k] <= exact + exact * 2.0**-100


@pytest.mark.parametrize("variance", [0.5, 10.0, 1e3, 2.0**24])
def test_every_weight_is_the_law_in_float64(variance: float) -> None:
    weights = np.array([weight / WHOLE for weight in weights_of(skellam_law(variance))])
    exact = special.ive(np.arange(weights.size), variance) * np.where(np.arange(weights.size) == 0, 1, 2)
    np.testing.assert_allclose(weights, exact, rtol=1e-10, atol=1e-27)


def test_the_heaviest_table_stays_small_and_close() -> None:
    law = skellam_law(2.0**24)
    assert law.entries_C.nbytes == 256 * 1024
    assert law.index_bits == 16
    assert law.total_variation < 2.0**-80


def test_start_of_the_recurrence_is_far_enough_out() -> None:
    """The two numbers that the docstring of `_bessel` bounds, over all variances that are taken."""
    for exponent in range(-20, 24):
        variance = 1.37 * 2.0**exponent
        bessel = skellam._bessel(variance)
        end = skellam._reach(variance, 96)
        start_error = 2 * math.log2(bessel[-1]) - math.log2(bessel[end]) - math.log2(bessel[end - 1])
        assert start_error < -110
        assert sum(1 / value for value in bessel) < 2.0**-111


@pytest.mark.parametrize(
    "variance", [math.nan, 0.0, -1.0, math.inf, -math.inf, 2.0**24 + 1, 1e-9, 1e300, -math.nan]
)
def test_a_variance_out_of_range_is_refused(variance: float) -> None:
    with pytest.raises(
        ConfigError, match=r"^noise: variance is 9.5.*e-07 to 1.67.*e\+07 squared units, got "
    ):
        skellam_law(variance)


def test_a_table_is_built_once() -> None:
    assert skellam_law(1234.5) is skellam_law(1234.5)


def test_a_million_coordinates_and_a_thousand_rounds_cost_less_than_a_billionth_of_delta() -> None:
    law = skellam_law(2.0**24)
    assert law.delta_sampling(10**6 * 1000, epsilon=10.0) < 1e-10
    assert law.delta_sampling(1, epsilon=0.0) == 2 * law.total_variation
    assert law.delta_sampling(6, epsilon=2.0) == pytest.approx(6 * (1 + math.e**2) * law.total_variation)


@pytest.mark.parametrize(("samples", "epsilon"), [(-1, 1.0), (1, -0.5), (1, math.nan)])
def test_a_charge_for_nonsense_is_refused(samples: int, epsilon: float) -> None:
    with pytest.raises(ConfigError, match="noise: count and epsilon are not negative, got"):
        skellam_law(1.0).delta_sampling(samples, epsilon=epsilon)


@pytest.mark.parametrize("variance", [0.5, 10.0, 1e3, 2.0**24])
@pytest.mark.parametrize("deviations", [0.5, 2.0, 4.0, 6.0, 8.0])
def test_the_tail_bound_is_above_the_tail_and_not_far_above(variance: float, deviations: float) -> None:
    at_least = math.ceil(deviations * math.sqrt(variance))
    magnitudes = np.arange(at_least, at_least + 12 * math.ceil(math.sqrt(variance)) + 60)
    exact = 2 * special.ive(magnitudes, variance).sum()
    assert exact <= tail_probability(at_least, variance) <= 40 * exact


def test_wrap_is_counted_over_coordinates_and_beyond_the_bound() -> None:
    room = 2**15 - 1
    one = wrap_probability(20_000, 2.0**20, 1, room)
    assert one == tail_probability(room + 1 - 20_000, 2.0**20)
    assert wrap_probability(20_000, 2.0**20, 1000, room) == pytest.approx(1000 * one)
    assert wrap_probability(25_000, 2.0**20, 1, room) > one
    assert wrap_probability(20_000, 2.0**21, 1, room) > one


def test_a_wrap_that_is_sure_or_impossible() -> None:
    assert wrap_probability(2**15, 100.0, 5, 2**15 - 1) == 1.0
    assert wrap_probability(2**20, 100.0, 5, 2**15 - 1) == 1.0
    assert wrap_probability(100, 0.0, 5, 2**15 - 1) == 0.0
    assert wrap_probability(100, 100.0, 0, 2**15 - 1) == 0.0
    assert wrap_probability(100, 2.0**24 * 100, 10**9, 2**63 - 1) == 0.0
    assert wrap_probability(0, 2.0**24 * 100, 10**9, 2**15 - 1) == 1.0


def test_ten_silos_fit_32_bits_and_not_16() -> None:
    variance = 10 * 2.0**24
    assert wrap_probability(10 * 2**20, variance, 10**7, 2**31 - 1) < 2.0**-40
    assert wrap_probability(0, variance, 1, 2**15 - 1) > 2.0**-40


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0])
def test_a_wrap_of_nonsense_is_refused(place: int, odd: float) -> None:
    numbers: list[float] = [1.0, 1.0, 1, 100.0]
    numbers[place] = odd
    with pytest.raises(
        ConfigError, match="noise: bound, variance, count and room are finite and not negative"
    ):
        wrap_probability(*numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("variance", [0.5, 10.0, 1e3])
def test_moments_of_the_table_are_not_above_the_laws(variance: float) -> None:
    """What lets Chernoff's bound of the law stand for a sum of samples of the table."""
    weights = weights_of(skellam_law(variance))
    with mpmath.workprec(300):
        for theta in (0.01, 0.3, 1.0, 3.0):
            law = mpmath.exp(mpmath.mpf(variance) * (mpmath.cosh(theta) - 1))
            drawn = sum(weight * mpmath.cosh(theta * k) for k, weight in enumerate(weights)) / WHOLE
            assert drawn <= law * (1 + mpmath.mpf(2) ** -100)
