"""Bounds on what one input moves, tried out on rounded vectors, and the terms as a layout carries them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.projection import Projection
from crypto.noise.sensitivity import (
    CLIP_REDRAW,
    CLIP_SPREAD,
    RECORD_FAILURE,
    RECORD_SPREAD,
    ROTATED_BEYOND,
    Noise,
    Sensitivity,
    clipped_sensitivity,
    record_sensitivity,
    rotated_bound,
    whole_sensitivity,
)

NOISE = Noise(variance=100.0, scale=8.0, clip_l2=0.5)
DELTA = Quantity(name="delta", shape=(4,), bound=0.5, ring_bits=32, noise=NOISE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"variance": value}, "expected finite numbers above 0")
            for value in (0.0, -1.0, math.nan, math.inf)
        ),
        *(({"scale": value}, "expected finite numbers above 0") for value in (0.0, -2.0, math.nan, math.inf)),
        *(
            ({"clip_l2": value}, "expected finite numbers above 0")
            for value in (0.0, -1.0, math.nan, math.inf)
        ),
        ({"scale": 3.0}, "the scale is a power of two, got 3.0"),
        ({"variance": 2.0**44 + 4096}, "standard deviation of 8 to 4.1943e.06 units, got 4.1943e.06"),
        ({"variance": 63.0}, "standard deviation of 8 to 4.1943e.06 units, got 7.9"),
    ],
)
def test_odd_noise_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(NOISE, **fields)


def test_the_constants_are_rounded_up() -> None:
    for spread, beta in ((RECORD_SPREAD, RECORD_FAILURE), (CLIP_SPREAD, CLIP_REDRAW)):
        assert 0 < spread - math.sqrt(2 * math.log(1 / beta)) < 1e-4


@pytest.mark.parametrize(
    "changed",
    [
        None,
        replace(NOISE, variance=101.0),
        replace(NOISE, scale=4.0),
        replace(NOISE, clip_l2=0.25),
        replace(NOISE, clip_l2=None),
    ],
)
def test_every_term_of_the_noise_makes_another_layout(changed: Noise | None) -> None:
    one, other = (Layout(quantities=(replace(DELTA, noise=noise),), members=4) for noise in (NOISE, changed))
    assert one.digest != other.digest


def test_the_scale_under_noise_is_the_noises() -> None:
    assert DELTA.scale(4) == DELTA.scale(9) == 8.0
    assert replace(DELTA, noise=None).scale(4) != 8.0


def test_a_count_carries_no_noise() -> None:
    with pytest.raises(ConfigError, match="quantity n: expected no noise on a count"):
        Quantity(name="n", bound=5, is_count=True, noise=NOISE)


def test_whole_units_have_a_digest_of_their_own() -> None:
    whole = replace(DELTA, is_whole_units=True, noise=replace(NOISE, clip_l2=None))
    plain = replace(whole, is_whole_units=False)
    digests = {Layout(quantities=(each,), members=4).digest for each in (whole, plain, DELTA)}
    assert len(digests) == 3


def test_whole_units_are_those_of_noise() -> None:
    with pytest.raises(ConfigError, match="quantity delta: whole units need noise"):
        Layout(quantities=(replace(DELTA, is_whole_units=True, noise=None),), members=4)
    for fields in ({"is_count": True, "noise": None}, {"projection": Projection.of(4, seed=bytes(32))}):
        with pytest.raises(ConfigError, match="quantity d: whole units are neither a count nor projected"):
            Quantity(name="d", shape=(4,), bound=1.0, is_whole_units=True, **fields)  # type: ignore[arg-type]


def test_a_layout_whose_noise_may_leave_its_word_is_refused() -> None:
    loud = Noise(variance=2.0**24, scale=8.0)
    narrow = Quantity(name="delta", shape=(4,), bound=0.5, ring_bits=16, noise=loud)
    with pytest.raises(ConfigError, match="a probability of at most 2.-40, got .* for delta"):
        Layout(quantities=(narrow,), members=4)
    assert Layout(quantities=(replace(narrow, ring_bits=32),), members=4).wrap_probability < 2.0**-100


def test_whole_counts_are_not_rounded() -> None:
    assert whole_sensitivity(1.0, scale=256.0) == Sensitivity(squared_l2=1 << 16)


def test_few_values_have_a_bound_that_never_fails() -> None:
    assert record_sensitivity(1.0, scale=256.0, coordinates=1).failure == 0.0
    many = record_sensitivity(1.0, scale=256.0, coordinates=10_000)
    assert many.failure == RECORD_FAILURE
    assert many.squared_l2 < (256 + 100) ** 2


@pytest.mark.parametrize("coordinates", [1, 3, 50, 2_000])
@pytest.mark.parametrize("norm", [0.3, 4.0, 300.0])
def test_one_record_moves_rounded_sums_by_no_more(coordinates: int, norm: float) -> None:
    """With the same fractions for both sums, as the proof has it. Fails falsely with 200 * 2^-40 at most."""
    generator = np.random.default_rng(7)
    bound = record_sensitivity(norm, scale=1.0, coordinates=coordinates)
    largest = 0
    for _ in range(200):
        before = generator.normal(scale=1000.0, size=coordinates)
        change = generator.normal(size=coordinates)
        change *= norm / np.linalg.norm(change)
        fractions = generator.random(coordinates)
        moved = np.floor(before + change + fractions) - np.floor(before + fractions)
        largest = max(largest, int(moved @ moved))
    assert 0 < largest <= bound.squared_l2
    assert bound.squared_l2 <= (norm + math.sqrt(coordinates) + 1e-3) ** 2 + 1


@pytest.mark.parametrize("coordinates", [1, 50, 2_000])
@pytest.mark.parametrize("norm", [0.3, 4.0, 300.0])
def test_a_clipped_array_is_seldom_rounded_again(coordinates: int, norm: float) -> None:
    """Each of 200 roundings passes the bound with at most 2^-20: false alarms below 2 in 10,000."""
    generator = np.random.default_rng(8)
    bound = clipped_sensitivity(norm, scale=1.0, coordinates=coordinates)
    for _ in range(200):
        value = generator.normal(size=coordinates)
        value *= norm / np.linalg.norm(value)
        rounded = np.floor(value + generator.random(coordinates))
        assert rounded @ rounded <= bound.squared_l2


@pytest.mark.parametrize("block", [128, 256, 512, 1024])
@pytest.mark.parametrize("words", [1, 1000, 10**6, 10**9])
def test_a_rotated_bound_is_passed_no_more_often_than_it_says(words: int, block: int) -> None:
    """Hoeffding's bound at it, with the logarithm that the bound itself goes without."""
    bound = rotated_bound(2.0, block=block, words=words)
    if bound < 2.0:
        assert words * 2 * math.exp(-(bound**2) * block / (2 * 2.0**2)) <= ROTATED_BEYOND
        smaller = bound * 0.97
        assert words * 2 * math.exp(-(smaller**2) * block / (2 * 2.0**2)) > ROTATED_BEYOND / 2


def test_without_a_rotation_the_bound_is_the_norm() -> None:
    assert rotated_bound(0.7, block=1, words=10**9) == rotated_bound(0.7, block=16, words=1) == 0.7


def test_rotated_updates_stay_within_their_bound() -> None:
    """The worst for a word: a whole column of equal values. Fails falsely with 2^-41."""
    size = 1 << 18
    projection = Projection.of(size, seed=bytes(range(32)))
    value_N = np.zeros(size, np.float32)
    value_N[:: projection.blocks] = 1.0 / math.sqrt(projection.block)
    word_M = projection.project(value_N)
    bound = rotated_bound(1.0, block=projection.block, words=projection.words)
    assert projection.block == 1024
    assert 0.08 < np.abs(word_M).max() <= bound < 0.3
