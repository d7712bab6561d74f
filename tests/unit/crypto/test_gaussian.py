"""Tables and lemmas of the rounded Gaussian against 400-bit arithmetic: nothing here can fail by chance."""

# K = magnitudes 0 and up

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from chorale.privacy.accountant import SAMPLER_DISTANCE
from crypto.errors import ConfigError
from crypto.noise.gaussian import (
    MAX_VARIANCE,
    MIN_VARIANCE,
    SAMPLE_DISTANCE,
    gaussian_tables,
    noise_tail,
    wrap_probability,
)
from crypto.noise.table import MORE_BITS, WEIGHT_BITS, Table

Masses: TypeAlias = NDArray[np.float64]  # of whole numbers from -reach to reach

WHOLE = 1 << WEIGHT_BITS
VARIANCES = [64.0, 123.456, 2.0**16, 2.0**16 + 1, 2.0**24 + 0.3, 2.0**30, MAX_VARIANCE]


def weights_of(table: Table) -> list[int]:
    """Of every magnitude, read back from the cells as the sampler uses them."""
    cells = 1 << table.index_bits
    capacity = WHOLE >> table.index_bits
    weights = [0] * cells
    for cell, (entry, more) in enumerate(zip(table.entries_C.tolist(), table.more_C.tolist(), strict=True)):
        threshold = (entry >> table.index_bits << MORE_BITS) + more
        assert threshold <= capacity
        weights[cell] += threshold
        weights[entry & (cells - 1)] += capacity - threshold
    return weights


def density(k: int, variance: Fraction) -> mpmath.mpf:
    """P(|X| = k) of the discrete Gaussian. The sum of the densities is an integral but for 2^-400."""
    v = mpmath.mpf(variance.numerator) / variance.denominator
    one = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * v)) / mpmath.sqrt(2 * mpmath.pi * v)
    return one if k == 0 else 2 * one


def mass(k: int, variance: Fraction) -> mpmath.mpf:
    """P(|X| = k) of the rounded Gaussian."""
    deviation = mpmath.sqrt(2 * mpmath.mpf(variance.numerator) / variance.denominator)
    low, high = (mpmath.erfc((k + mpmath.mpf(way) / 2) / deviation) for way in (-1, 1))
    return (low - high) / 2 if k == 0 else low - high


def parts(variance: float) -> list[tuple[Table, bool, Fraction]]:
    """Each table of a variance, whether it is rounded, and its own variance."""
    tables = gaussian_tables(variance)
    if tables.coarse is None:
        return [(tables.fine, True, Fraction(variance))]
    own = Fraction(variance) / (tables.step**2 + 1)
    return [(tables.fine, True, own), (tables.coarse, False, own)]


class TestTables:
    @pytest.mark.parametrize("variance", VARIANCES)
    def test_every_cell_is_the_law_cut_to_95_bits(self, variance: float) -> None:
        """All of them where there are a few hundred, else those of one magnitude in so many, and the last."""
        for table, is_rounded, own in parts(variance):
            weights = weights_of(table)
            assert sum(weights) == WHOLE
            last = max(k for k, weight in enumerate(weights) if weight)
            with mpmath.workprec(400):
                for k in {*range(1, last + 1, 1 + last // 400), last}:
                    exact = WHOLE * (mass if is_rounded else density)(k, own)
                    # of a number of 2^-95 the next lower whole one, but for the series and fixed point
                    assert exact - 1 - 2.0**-10 <= weights[k] <= exact + 2.0**-10, (is_rounded, k)

    @pytest.mark.parametrize("variance", [64.0, 100.3])
    def test_a_table_is_as_far_from_the_law_as_it_says(self, variance: float) -> None:
        ((table, _, own),) = parts(variance)
        with mpmath.workprec(400):
            distance = sum(
                abs(mass(k, own) - mpmath.mpf(each) / WHOLE) for k, each in enumerate(weights_of(table))
            )
            assert distance / 2 <= table.total_variation <= 2 * distance

    def test_the_fine_part_is_rounded_and_the_coarse_one_is_not(self) -> None:
        """No sensible number of samples distinguishes the two laws, but the proof needs one of each."""
        tables = gaussian_tables(2.0**20)
        assert tables.coarse is not None
        assert weights_of(tables.coarse)[:3] != weights_of(tables.fine)[:3]

    def test_no_variance_has_a_sample_further_from_its_law_than_is_charged(self) -> None:
        steps = []
        largest = 4 * 2.0**20 * (2.0**20 + 1) - 1  # of the step 2^9, so with the widest tables
        for variance in (64.0, *(2.0**exponent for exponent in (12, 17, 23, 29, 35)), largest, MAX_VARIANCE):
            tables = gaussian_tables(variance)
            steps.append(tables.step)
            assert tables.total_variation <= SAMPLE_DISTANCE < SAMPLER_DISTANCE
            assert max(tables.fine.index_bits, tables.coarse.index_bits if tables.coarse else 0) <= 16
            if tables.coarse is not None:
                # L A + N against a Gaussian: 2 exp(-2 pi^2 (tau / L)^2), tau of the narrower of the two
                own = variance / (tables.step**2 + 1)
                narrow = own / (1 + 1 / tables.step**2)
                assert 1 - 2 * math.pi**2 * narrow / tables.step**2 / math.log(2) <= -111
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == (0, 1 << 10)

    @pytest.mark.parametrize("variance", [math.nan, 0.0, 63.9, -100.0, math.inf, 2.0**44 + 4096])
    def test_a_variance_out_of_range_is_refused(self, variance: float) -> None:
        message = r"^noise: expected a variance of 64 to 1.75922e\+13 squared units, got "
        with pytest.raises(ConfigError, match=message):
            gaussian_tables(variance)

    def test_tables_are_built_once(self) -> None:
        assert gaussian_tables(1234.5) is gaussian_tables(1234.5)


def rounded_law(variance: float, reach: int) -> Masses:
    """P(round(N) = k) for -reach <= k <= reach, in float64."""
    edges = (np.arange(reach + 1) + 0.5) / math.sqrt(2 * variance)
    beyond = special.erfc(edges)
    halves = (beyond[:-1] - beyond[1:]) / 2
    return np.concatenate([halves[::-1], [1 - beyond[0]], halves])


def discrete_law(variance: float, reach: int) -> Masses:
    densities = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return np.asarray(densities / densities.sum())


def distance(one: Masses, other: Masses) -> float:
    return float(np.abs(one - other).sum() / 2)


class TestTwoLevels:
    """L A + round(N') is the rounding of a Gaussian of variance s^2 (L^2 + 1), where s is 2 L or more."""

    @staticmethod
    def law(fine: Masses, deviation: int, step: int) -> Masses:
        reach = fine.size // 2
        coarse = np.zeros_like(fine)
        ends = reach // step
        coarse[reach - ends * step : reach + ends * step + 1 : step] = discrete_law(deviation**2, ends)
        return np.convolve(coarse, fine, mode="same")

    @pytest.mark.parametrize(("deviation", "step"), [(1, 3), (2, 4), (3, 4), (4, 4), (6, 4)])
    def test_the_sum_of_both_is_one_rounded_gaussian(self, deviation: int, step: int) -> None:
        whole = deviation**2 * (step**2 + 1)
        reach = 12 * math.ceil(math.sqrt(whole))
        found = self.law(rounded_law(deviation**2, reach), deviation, step)
        squared = deviation**2 * step**2 / (step**2 + 1) / step**2  # (tau / L)^2
        claimed = math.exp(-2 * math.pi**2 * squared)  # of 2 exp() as a relative error, half in variation
        assert 0.1 * claimed - 1e-13 < distance(found, rounded_law(whole, reach)) <= 1.01 * claimed + 1e-13

    def test_of_two_discrete_gaussians_it_is_not(self) -> None:
        """They sum up to a discrete Gaussian, which is no post-processing of a continuous one."""
        whole, reach = 36 * 17, 12 * 25
        found = self.law(discrete_law(36, reach), 6, 4)
        assert distance(found, discrete_law(whole, reach)) < 1e-13
        assert distance(found, rounded_law(whole, reach)) > 1e-5


class TestSums:
    """The sum of h rounded Gaussians is the rounding of N + U_2 + ... + U_h, U uniform on +-1/2."""

    @staticmethod
    def rounding(variance: float, silos: int, reach: int, *, uniforms: int | None = None) -> Masses:
        """Its law, from the characteristic function: of N, of the U, and of the cell that rounding takes.

        The trapezoidal rule over all that is not below e^-75.
        """
        grid = np.linspace(0, 2 / math.sqrt(silos * variance), 4 * reach + 1)
        value = np.exp(-2 * math.pi**2 * silos * variance * grid**2) * np.sinc(grid) ** (uniforms or silos)
        value[0] /= 2
        waves = np.cos(2 * math.pi * np.outer(np.arange(reach + 1), grid))
        half = 2 * grid[1] * (waves @ value)
        return np.concatenate([half[:0:-1], half])

    @staticmethod
    def summed(law: Masses, silos: int) -> Masses:
        total = law
        for _ in range(silos - 1):
            total = np.convolve(total, law, mode="same")
        return total

    @pytest.mark.parametrize("silos", [2, 3, 7])
    @pytest.mark.parametrize("variance", [0.5, 1.0, 2.0])
    def test_the_sum_is_one_rounding(self, variance: float, silos: int) -> None:
        reach = math.ceil(12 * math.sqrt(silos * variance)) + silos
        found = self.summed(rounded_law(variance, reach), silos)
        furthest = np.abs(found - self.rounding(variance, silos, reach)).max()
        claimed = 8 * silos * math.exp(-(math.pi**2) * variance)
        assert furthest <= claimed + 1e-15
        if silos == 2:  # where the bound is nearest to the truth
            assert furthest > 1e-3 * claimed

    def test_the_least_noise_is_far_beyond_what_the_sum_needs(self) -> None:
        """Per number of the sum, for a thousand silos and every number up to 2^60: nil beside the tables."""
        log2 = math.log2(8 * 1000) - math.pi**2 * MIN_VARIANCE / math.log(2)
        assert log2 + 61 < -800

    @pytest.mark.parametrize("silos", [2, 5])
    def test_the_tables_of_so_many_silos_sum_up_to_it(self, silos: int) -> None:
        """And to no other: fewer or more silos, or a rounding without the U, are further away."""
        weights = np.array(weights_of(gaussian_tables(64.0).fine), dtype=float) / WHOLE
        law = np.concatenate([weights[:0:-1] / 2, weights[:1], weights[1:] / 2])
        reach = 12 * 8 * silos
        law = np.pad(law, reach - law.size // 2)
        found = self.summed(law, silos)
        assert distance(found, self.rounding(64.0, silos, reach)) < 1e-12
        assert distance(found, self.rounding(64.0, silos, reach, uniforms=1)) > 1e-5
        assert distance(found, self.rounding(64.0, silos - 1, reach)) > 0.02
        assert distance(found, self.rounding(64.0, silos + 1, reach)) > 0.02


class TestTails:
    @pytest.mark.parametrize("silos", [1, 3])
    @pytest.mark.parametrize("deviations", [0.5, 2.0, 4.0, 6.0, 8.0])
    def test_the_tail_bound_is_above_the_tail_and_not_far_above(self, silos: int, deviations: float) -> None:
        reach = 12 * 8 * silos
        law = TestSums.summed(rounded_law(64.0, reach), silos)
        at_least = math.ceil(deviations * math.sqrt(silos * 64.0))
        exact = 2 * law[reach + at_least :].sum()
        claimed = wrap_probability(0, silos * 64.0, 1, at_least - 1)
        assert exact <= claimed <= 40 * exact
        # Chernoff's bound for moments of silos (v + 1/12), which the next test finds in the tables
        assert claimed >= min(1.0, 2 * math.exp(-(at_least**2) / (2 * silos * (64 + 1 / 12))))

    @pytest.mark.parametrize("variance", [64.0, 100.3, 2.0**17])
    def test_moments_are_within_those_that_the_bound_is_made_of(self, variance: float) -> None:
        """Of the tables as they are: E[e^(theta X)] <= e^(theta^2 (v + 1/12) / 2)."""
        tables = gaussian_tables(variance)
        with mpmath.workprec(200):
            for deviations in (0.01, 0.3, 1, 3, 10):
                theta, found = mpmath.mpf(deviations) / mpmath.sqrt(variance), mpmath.mpf(1)
                for table, step in ((tables.fine, 1), (tables.coarse, tables.step)):
                    if table is not None:
                        found *= (
                            sum(w * mpmath.cosh(theta * step * k) for k, w in enumerate(weights_of(table)))
                            / WHOLE
                        )
                assert found <= mpmath.exp(theta**2 * (variance + mpmath.mpf(1) / 12) / 2)

    @pytest.mark.parametrize("count", [1, 1000, 10**8])
    @pytest.mark.parametrize("variance", [64.0, 20 * 2.0**44])
    def test_the_tail_is_passed_as_seldom_as_it_says(self, count: int, variance: float) -> None:
        tail = noise_tail(variance, count)
        assert wrap_probability(0, variance, count, tail) <= 2.0**-48
        assert wrap_probability(0, variance, count, 0.96 * tail) > 2.0**-48

    def test_wrap_is_counted_over_coordinates_and_beyond_the_bound(self) -> None:
        room = 2**15 - 1
        one = wrap_probability(20_000, 2.0**20, 1, room)
        assert one == wrap_probability(0, 2.0**20, 1, room - 20_000)
        assert wrap_probability(20_000, 2.0**20, 1000, room) == pytest.approx(1000 * one)
        assert wrap_probability(25_000, 2.0**20, 1, room) > one
        assert wrap_probability(20_000, 2.0**21, 1, room) > one

    def test_a_wrap_that_is_sure_or_impossible(self) -> None:
        assert wrap_probability(2**15, 100.0, 5, 2**15 - 1) == 1.0
        assert wrap_probability(100, 0.0, 5, 2**15 - 1) == 0.0
        assert wrap_probability(100, 100.0, 0, 2**15 - 1) == 0.0
        assert wrap_probability(100, 2.0**44 * 100, 10**9, 2**63 - 1) == 0.0
        assert wrap_probability(0, 2.0**44 * 100, 10**9, 2**15 - 1) == 1.0

    @pytest.mark.parametrize("place", range(4))
    @pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0])
    def test_a_wrap_of_nonsense_is_refused(self, place: int, odd: float) -> None:
        numbers: list[float] = [1.0, 1.0, 1, 100.0]
        numbers[place] = odd
        with pytest.raises(
            ConfigError, match="noise: bound, variance, count and room are finite and not negative"
        ):
            wrap_probability(*numbers)  # type: ignore[arg-type]
