"""The rounded Gaussian: tables against 400-bit arithmetic, the sum of the two against the law.

Statistical tests draw under a fixed key, so they pass or fail for good; under `soak` they draw under a fresh
key, and each fails a right sampler less than once in 10^9 runs.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from crypto.noise.skellam import MORE_BITS, WEIGHT_BITS, Law, skellam_law
from crypto.noise.skellam_stream import SkellamStream
from numpy.typing import NDArray
from scipy import stats

from chorale.privacy.accountant import SAMPLER_DISTANCE
from crypto.noise import gaussian
from crypto.noise.gaussian import (
    COARSE,
    DEVIATION,
    TOTAL_VARIATION,
    GaussianStream,
    discrete_law,
    rounded_law,
)

KEY = bytes(range(32))
RARE = 1e-9
SAMPLES = 2_000_000
TABLE_DEVIATION = 4096


def probabilities(law: Law) -> dict[int, Fraction]:
    """P(|X| = k) as the table's cells have it, exactly."""
    mask = (1 << law.index_bits) - 1
    capacity = 1 << (WEIGHT_BITS - law.index_bits)
    weights: dict[int, int] = {}
    for cell, (entry, more) in enumerate(zip(law.entries_C.tolist(), law.more_C.tolist(), strict=True)):
        threshold = (entry >> law.index_bits) << MORE_BITS | more
        weights[cell] = weights.get(cell, 0) + threshold
        weights[entry & mask] = weights.get(entry & mask, 0) + capacity - threshold
    return {k: Fraction(weight, 1 << WEIGHT_BITS) for k, weight in weights.items()}


def magnitude(k: int, *, is_rounded: bool) -> Fraction:
    """P(|X| = k) of either law by mpmath."""
    with mpmath.workprec(400):
        s, half = mpmath.mpf(TABLE_DEVIATION), mpmath.mpf(1) / 2
        if is_rounded:
            low, high = ((k + way * half) / s / mpmath.sqrt(2) for way in (-1, 1))
            one = (mpmath.erfc(low) - mpmath.erfc(high)) / 2
        else:
            # the sum over whole numbers is s sqrt(2 pi) but for 2^-400 (Poisson's summation)
            one = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s * s)) / (s * mpmath.sqrt(2 * mpmath.pi))
        scaled = int(mpmath.floor((one if k == 0 else 2 * one) * mpmath.mpf(2) ** 200))
    return Fraction(scaled, 1 << 200)


@pytest.mark.parametrize("is_rounded", [False, True], ids=["discrete", "rounded"])
def test_table_is_the_law_to_its_last_bit(is_rounded: bool) -> None:
    law = rounded_law() if is_rounded else discrete_law()
    found = probabilities(law)
    assert sum(found.values()) == 1
    for k in (*range(1, 8), 100, 4096, 12_345, 20_480, 40_000, 49_152):
        short = magnitude(k, is_rounded=is_rounded) - found[k]
        assert -Fraction(1, 1 << 110) < short < Fraction(1, 1 << (WEIGHT_BITS - 1)), k


def test_laws_differ_where_one_is_rounded() -> None:
    """The proof takes one of each; a discrete Gaussian in place of the rounded one would pass statistics."""
    assert not np.array_equal(rounded_law().more_C, discrete_law().more_C)


def test_distance_to_the_law_is_what_accounting_charges() -> None:
    both = discrete_law().total_variation + rounded_law().total_variation
    # 2^10 A + N against a Gaussian: 2 exp(-2 pi^2 (tau / 2^10)^2), tau of the narrower of the two
    tau = TABLE_DEVIATION / math.sqrt(1 + 1 / COARSE**2)
    log2_theta = 1 - 2 * math.pi**2 * (tau / COARSE) ** 2 / math.log(2)
    assert log2_theta < -400
    assert both < TOTAL_VARIATION <= SAMPLER_DISTANCE


def test_promised_deviation_is_not_above_the_true_one() -> None:
    exact = TABLE_DEVIATION**2 * (COARSE**2 + 1)
    assert Fraction(DEVIATION) ** 2 <= exact <= Fraction(DEVIATION) ** 2 * (1 + Fraction(1, 10**7))


def draw(size: int, *, start: int = 0, key: bytes = KEY) -> NDArray[np.int64]:
    return GaussianStream(key).sample(start, size)


def test_sample_is_coarse_and_fine_table_of_the_same_position() -> None:
    coarse_N, fine_N = np.empty(50, np.int64), np.empty(50, np.int64)
    SkellamStream(discrete_law(), KEY, quantity=0).sample_into(7, coarse_N)
    SkellamStream(rounded_law(), KEY, quantity=1).sample_into(7, fine_N)
    np.testing.assert_array_equal(draw(50, start=7), COARSE * coarse_N + fine_N)


def test_fine_part_is_of_the_rounded_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sensible number of samples distinguishes the two laws, but the proof needs one of each."""
    coarse_N, fine_N = np.empty(100, np.int64), np.empty(100, np.int64)
    SkellamStream(discrete_law(), KEY, quantity=0).sample_into(0, coarse_N)
    SkellamStream(skellam_law(1.0), KEY, quantity=1).sample_into(0, fine_N)
    monkeypatch.setattr(gaussian, "rounded_law", lambda: skellam_law(1.0))
    np.testing.assert_array_equal(draw(100), COARSE * coarse_N + fine_N)


def test_positions_repeat_and_keys_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_N = draw(5000)
    np.testing.assert_array_equal(draw(1000, start=4000), whole_N[4000:])
    monkeypatch.setattr(gaussian, "_BLOCK_SAMPLES", 333)
    np.testing.assert_array_equal(draw(5000), whole_N)
    assert not np.array_equal(draw(5000, key=bytes(32)), whole_N)


def check_law(sample_N: NDArray[np.int64]) -> None:
    z_N = sample_N / DEVIATION
    edges = stats.norm.ppf(np.linspace(0, 1, 1001)[1:-1])
    counts = np.bincount(np.searchsorted(edges, z_N), minlength=1000)
    assert stats.chisquare(counts).pvalue > RARE / 4
    assert abs(stats.norm.sf(abs(z_N.mean()) * math.sqrt(z_N.size))) > RARE / 8
    variance = (z_N**2).sum()
    assert min(stats.chi2.cdf(variance, z_N.size), stats.chi2.sf(variance, z_N.size)) > RARE / 8
    # the last ten bits come from the fine table: even, whatever the rest
    low = np.bincount(sample_N & (COARSE - 1), minlength=COARSE)
    assert stats.chisquare(low).pvalue > RARE / 4


def test_samples_follow_the_gaussian() -> None:
    check_law(draw(SAMPLES))


@pytest.mark.soak
def test_samples_under_a_fresh_key_follow_the_gaussian() -> None:
    check_law(draw(SAMPLES, key=os.urandom(32)))
