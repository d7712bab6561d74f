"""Sums that honest silos could have given, and sums that none could."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crypto.errors import Refusal
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.plausible import ImplausibleSum, check_plausible, largest_word
from crypto.fixed_point.projection import Projection
from crypto.noise.sensitivity import Noise

MEMBERS = 4
SIZE = 1000
NOISE = Noise(variance=400.0, scale=64.0)
QUANTITIES = {
    "plain": Quantity(name="x", shape=(SIZE,), bound=0.75, ring_bits=32),
    "narrow": Quantity(name="x", shape=(SIZE,), bound=3.0, ring_bits=16),
    "wide": Quantity(name="x", shape=(SIZE,), bound=1e3, ring_bits=64),
    "rotated": Quantity(
        name="x", shape=(SIZE,), bound=0.75, ring_bits=16, projection=Projection.of(SIZE, seed=b"p" * 32)
    ),
    "noised": Quantity(name="x", shape=(SIZE,), bound=0.75, ring_bits=32, noise=NOISE),
    "count": Quantity(name="x", shape=(SIZE,), bound=9.0, is_count=True),
}


def layout_of(*quantities: Quantity) -> Layout:
    return Layout(quantities=quantities, members=MEMBERS)


def summed(layout: Layout, *inputs: dict[str, Any]) -> dict[int, ring.Words]:
    total = ring.zeros(layout)
    for values in inputs:
        arrays = {name: np.asarray(value) for name, value in values.items()}
        ring.add_into(total, Encoder(arrays, layout=layout).encode().vectors)
    return total


@pytest.mark.parametrize("kind", QUANTITIES)
@pytest.mark.parametrize("survivors", [3, 4])
def test_the_largest_honest_inputs_are_plausible(kind: str, survivors: int) -> None:
    """Every value beyond its bound, where that is clipped; all of the same sign."""
    quantity = QUANTITIES[kind]
    layout = layout_of(quantity)
    values = np.full(SIZE, quantity.bound * (1 if quantity.is_count else 50))
    for sign in (1,) if quantity.is_count else (1, -1):
        values_N = (sign * values).astype(np.int64 if quantity.is_count else np.float64)
        sums = summed(layout, *[{"x": values_N}] * survivors)
        check_plausible(sums, layout=layout, survivors=survivors)


@pytest.mark.parametrize("kind", QUANTITIES)
@pytest.mark.parametrize("place", [0, 7])
def test_one_word_beyond_what_silos_can_give_is_found(kind: str, place: int) -> None:
    quantity = QUANTITIES[kind]
    layout, most = layout_of(quantity), largest_word(quantity, members=MEMBERS, survivors=3)
    signed = ring.SIGNED_TYPES[quantity.ring_bits]
    sums = ring.zeros(layout)
    word_N = sums[quantity.ring_bits].view(signed)
    for at, lie in (
        (most, most + 1),
        (0 if quantity.is_count else -most, -1 if quantity.is_count else -most - 1),
    ):
        word_N[place] = at
        check_plausible(sums, layout=layout, survivors=3)
        word_N[place] = lie
        with pytest.raises(ImplausibleSum, match="quantity x: no 3 honest silos have this sum") as caught:
            check_plausible(sums, layout=layout, survivors=3)
        assert caught.value.code is Refusal.SUM
        check_plausible(sums, layout=layout, survivors=4) if lie > 0 else None


def test_noise_widens_the_box_by_its_tail_alone() -> None:
    """False alarms: 2^-48 a quantity. Four silos deviate by 40 units, and the tail is some eight of it."""
    clean = MEMBERS * 48
    tail = largest_word(QUANTITIES["noised"], members=MEMBERS, survivors=MEMBERS) - clean
    assert 7 * 40 < tail < 10 * 40


def test_more_correct_answers_than_tested_ones_are_found() -> None:
    correct = Quantity(name="correct", bound=100.0, is_count=True, at_most="tested")
    tested = Quantity(name="tested", bound=100.0, is_count=True)
    layout = layout_of(correct, tested)
    honest = {"correct": 5, "tested": 5}
    check_plausible(summed(layout, honest, honest, honest), layout=layout, survivors=3)
    sums = summed(layout, honest, honest, {"correct": 6, "tested": 5})
    with pytest.raises(ImplausibleSum, match="quantity correct: its sum is above that of tested"):
        check_plausible(sums, layout=layout, survivors=3)
    alone = layout_of(correct)
    check_plausible(summed(alone, {"correct": 6}), layout=alone, survivors=3)


def test_noised_counts_may_be_negative_and_in_any_order() -> None:
    noised = [
        Quantity(name="correct", bound=100.0, noise=NOISE, at_most="tested"),
        Quantity(name="tested", bound=100.0, noise=NOISE),
    ]
    layout = layout_of(*noised)
    sums = ring.zeros(layout)
    sums[64].view(np.int64)[:] = (5, -5)
    check_plausible(sums, layout=layout, survivors=3)
