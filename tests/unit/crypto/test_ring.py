from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import prg
from crypto.errors import LocalProtocolError, QuantizationError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import BLOCK_VALUES, Encoder
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity

MEMBERS = 4


def layout_of(*quantities: Quantity, members: int = MEMBERS) -> Layout:
    return Layout(quantities=quantities, members=members)


def real(
    shape: tuple[int, ...] = (), *, bound: float = 8.0, ring_bits: int = 32, name: str = "delta"
) -> Quantity:
    return Quantity(name=name, shape=shape, bound=bound, ring_bits=ring_bits)


def count(
    shape: tuple[int, ...] = (), *, bound: float = 100, ring_bits: int = 64, name: str = "correct"
) -> Quantity:
    return Quantity(name=name, shape=shape, bound=bound, ring_bits=ring_bits, is_count=True)


COUNTED = Quantity(name=CLIPPED, bound=1000, is_count=True)


@settings(max_examples=80)
@given(
    st.sampled_from([16, 32, 64]),
    st.sampled_from([1e-3, 1.0, 8.0, 1000.0, 2.0**30]),
    st.integers(3, 40),
    st.lists(st.floats(-1, 1), min_size=1, max_size=20),
)
def test_a_value_comes_back_within_one_step(
    ring_bits: int, bound: float, members: int, parts: list[float]
) -> None:
    layout = layout_of(real((len(parts),), bound=bound, ring_bits=ring_bits), members=members)
    value_N = np.array(parts) * bound
    encoded = Encoder({"delta": value_N}, layout=layout).encode()
    step = 1 / layout.quantities[0].scale(members)
    decoded = ring.decode(encoded.vectors, layout=layout)["delta"]
    # half an ulp: 64-bit words hold more digits than the float64 that comes back
    assert np.all(np.abs(decoded - value_N) < step + np.spacing(bound))
    assert encoded.clipped_total == 0


@pytest.mark.parametrize("ring_bits", [16, 32, 64])
@pytest.mark.parametrize("bound", [0.3, 1.0, 8.0, 1000.0])
def test_sums_at_the_bound_do_not_overflow(ring_bits: int, bound: float) -> None:
    members = 10
    layout = layout_of(real((2,), bound=bound, ring_bits=ring_bits), members=members)
    total = ring.zeros(layout)
    for _ in range(members):
        ring.add_into(total, Encoder({"delta": [bound, -bound]}, layout=layout).encode().vectors)
    decoded = ring.decode(total, layout=layout)["delta"]
    step = 1 / layout.quantities[0].scale(members)
    assert np.all(np.abs(decoded - [members * bound, -members * bound]) <= members * step)


@pytest.mark.parametrize("ring_bits", [16, 32, 64])
def test_rounding_never_passes_the_whole_number_above_the_bound(ring_bits: int) -> None:
    quantity = real((5 * BLOCK_VALUES,), bound=0.7, ring_bits=ring_bits)
    layout = layout_of(quantity)
    most = math.ceil(0.7 * quantity.scale(MEMBERS))
    for sign in (1, -1):
        words = (
            Encoder({"delta": np.full(quantity.size, sign * 0.7)}, layout=layout).encode().vectors[ring_bits]
        )
        signed = words.view(f"i{ring_bits // 8}")
        assert set(np.abs(signed).tolist()) <= {most - 1, most}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fraction", [0.02, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("ring_bits", [16, 32])
def test_rounding_is_unbiased(ring_bits: int, fraction: float, dtype: type) -> None:
    """Rounding up is Bernoulli(fraction); alarm at 6 standard deviations, falsely once in 5e8 runs."""
    samples = 200_000
    quantity = real((2 * samples,), bound=1.0, ring_bits=ring_bits)
    step = 1 / quantity.scale(MEMBERS)
    value_N = np.repeat(np.array([(3 + fraction) * step, -(3 + fraction) * step], dtype), samples)
    key = os.urandom(32)
    encoded = Encoder({"delta": value_N}, layout=layout_of(quantity), random=lambda size: key[:size]).encode()
    units = encoded.vectors[ring_bits].view(f"i{ring_bits // 8}").reshape(2, samples)
    exact = float(value_N[0]) / step
    deviation = math.sqrt(fraction * (1 - fraction) / samples)
    for mean, expected in zip(units.mean(axis=1), (exact, -exact), strict=True):
        assert abs(mean - expected) < 6 * deviation, f"key {key.hex()}"


def test_rounding_of_neighbors_is_independent() -> None:
    """Products of neighboring residuals, each of mean 0 and deviation 1/4 at one half; alarm at 6
    standard deviations, falsely once in 5e8 runs. Blocks must not share their random numbers."""
    size = 8 * BLOCK_VALUES
    quantity = real((size,), bound=1.0)
    value_N = np.full(size, 0.5 / quantity.scale(MEMBERS))
    up = Encoder({"delta": value_N}, layout=layout_of(quantity)).encode().vectors[32] - 0.5
    for lag in (1, BLOCK_VALUES):
        assert abs(np.mean(up[:-lag] * up[lag:])) < 6 * 0.25 / math.sqrt(size - lag)


def test_whole_units_are_encoded_exactly() -> None:
    quantity = real((3,), bound=8.0, ring_bits=16)
    step = 1 / quantity.scale(MEMBERS)
    encoded = Encoder({"delta": [5 * step, 0.0, -7 * step]}, layout=layout_of(quantity)).encode()
    assert encoded.vectors[16].tolist() == [5, 0, 2**16 - 7]


def test_the_random_bytes_decide_the_rounding_and_only_a_key_is_drawn() -> None:
    layout = layout_of(real((1000,)))
    drawn: list[int] = []

    def random(size: int) -> bytes:
        drawn.append(size)
        return bytes(size)

    value_N = np.linspace(-8, 8, 1000) / 3
    first, again = (Encoder({"delta": value_N}, layout=layout, random=random).encode() for _ in range(2))
    other = Encoder({"delta": value_N}, layout=layout, random=os.urandom).encode()
    assert drawn == [prg.KEY_BYTES] * 2
    assert np.array_equal(first.vectors[32], again.vectors[32])
    assert not np.array_equal(first.vectors[32], other.vectors[32])


def test_values_beyond_the_bound_are_clipped_and_counted_across_blocks() -> None:
    size = 2 * BLOCK_VALUES + 3
    layout = layout_of(real((size,)), COUNTED)
    value_N = np.zeros(size)
    places = [0, 5, 6, BLOCK_VALUES, size - 1]
    value_N[places] = [8.5, -1e300, -8.0, 8.0, np.nextafter(8.0, 9)]
    encoded = Encoder({"delta": value_N}, layout=layout).encode()
    decoded = ring.decode(encoded.vectors, layout=layout)
    assert encoded.clipped_total == 3
    assert decoded[CLIPPED] == 3
    assert decoded["delta"][places].tolist() == [8.0, -8.0, -8.0, 8.0, 8.0]
    assert value_N[0] == 8.5  # the caller's array is left alone


def test_the_clipped_count_saturates_and_is_optional() -> None:
    few = Quantity(name=CLIPPED, bound=2, is_count=True)
    values = {"delta": np.full(5, 9.0)}
    layout = layout_of(few, real((5,)))
    encoded = Encoder(values, layout=layout).encode()
    assert encoded.clipped_total == 5
    assert ring.decode(encoded.vectors, layout=layout)[CLIPPED] == 2
    assert Encoder(values, layout=layout_of(real((5,)))).encode().clipped_total == 5


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, BLOCK_VALUES + 1])
def test_a_value_that_is_not_finite_is_refused(odd: float, place: int) -> None:
    value_N = np.zeros(BLOCK_VALUES + 2, np.float32)
    value_N[place] = odd
    with pytest.raises(QuantizationError, match="quantity delta: a value is not finite"):
        Encoder({"delta": value_N}, layout=layout_of(real(value_N.shape))).encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "not a whole number"),
        (math.nan, "not a whole number"),
        (math.inf, "not a whole number"),
        (101, "beyond its bound 100"),
        (101.0, "beyond its bound 100"),
        (-101, "beyond its bound 100"),
        (np.int64(-(2**63)), "beyond its bound 100"),
        (np.uint64(2**64 - 1), "beyond its bound 100"),
    ],
)
def test_a_count_is_whole_and_within_its_bound(value: object, message: str) -> None:
    with pytest.raises(
        QuantizationError, match=f"quantity correct: a count is .*{message.split('count ')[-1]}"
    ):
        Encoder({"correct": value}, layout=layout_of(count())).encode()


@pytest.mark.parametrize(
    "value_N", [[100, -100, 0], [100.0, -100.0, 0.0], np.array([100, -100, 0], np.int8), [True, True, False]]
)
def test_counts_are_exact(value_N: object) -> None:
    for ring_bits in (16, 32, 64):
        layout = layout_of(count((3,), ring_bits=ring_bits))
        decoded = ring.decode(Encoder({"correct": value_N}, layout=layout).encode().vectors, layout=layout)[
            "correct"
        ]
        assert decoded.dtype == np.int64
        assert decoded.tolist() == np.asarray(value_N).astype(int).tolist()


def test_large_counts_do_not_pass_through_floats() -> None:
    layout = layout_of(count(bound=2.0**60))
    value = 2**53 + 1
    encoded = Encoder({"correct": value}, layout=layout).encode()
    assert ring.decode(encoded.vectors, layout=layout)["correct"] == value


def test_counts_are_checked_in_every_block() -> None:
    count_N = np.zeros(BLOCK_VALUES + 1, np.int64)
    count_N[-1] = 101
    with pytest.raises(QuantizationError, match="beyond its bound"):
        Encoder({"correct": count_N}, layout=layout_of(count(count_N.shape))).encode()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "missing or surplus quantities delta"),
        ({"delta": [1.0, 2.0], "more": 1}, "missing or surplus quantities more"),
        ({"delta": [1.0, 2.0], CLIPPED: 0}, "missing or surplus quantities clipped"),
        ({"delta": 1.0}, r"expected shape \(2,\), got \(\)"),
        ({"delta": [[1.0, 2.0]]}, r"expected shape \(2,\), got \(1, 2\)"),
        ({"delta": [1.0, [2.0]]}, "is no array of numbers"),
        ({"delta": ["a", "b"]}, "holds <U1, expected numbers"),
        ({"delta": [1j, 2]}, "holds complex128, expected numbers"),
        ({"delta": [None, 1]}, "holds object, expected numbers"),
        ({"delta": [10**400, 1]}, "holds object, expected numbers"),
    ],
)
def test_odd_inputs_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        Encoder(values, layout=layout_of(real((2,)), COUNTED)).encode()


def test_shapes_come_back_and_vectors_hold_the_declared_order() -> None:
    layout = layout_of(real((2, 3), ring_bits=16), count((2,)), real(name="weight", ring_bits=64, bound=1.0))
    values = {"weight": 0.5, "correct": [3, 4], "delta": np.arange(6.0).reshape(3, 2).T}
    encoded = Encoder(values, layout=layout).encode()
    assert encoded.vectors[64][:2].tolist() == [3, 4]
    decoded = ring.decode(encoded.vectors, layout=layout)
    assert list(decoded) == ["delta", "correct", "weight"]
    assert decoded["delta"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert decoded["weight"].shape == ()
    assert decoded["weight"] == 0.5


def test_the_encoded_repr_shows_no_values() -> None:
    encoded = Encoder({"correct": 77}, layout=layout_of(count())).encode()
    assert repr(encoded) == "Encoded(clipped_total=0)"


def test_add_wraps_and_refuses_other_vectors() -> None:
    total = {16: np.array([2**16 - 1, 1], np.uint16)}
    ring.add_into(total, {16: np.array([2, 3], np.uint16)})
    assert total[16].tolist() == [1, 4]
    with pytest.raises(LocalProtocolError, match="different word sizes"):
        ring.add_into(total, {32: np.zeros(2, np.uint32)})
    with pytest.raises(LocalProtocolError, match="expected 2 words, got 3"):
        ring.add_into(total, {16: np.zeros(3, np.uint16)})


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ({}, r"expected word sizes \(32,\), got \(\)"),
        ({32: np.zeros(2, np.uint32), 64: np.zeros(1, np.uint64)}, r"got \(32, 64\)"),
        ({32: np.zeros(3, np.uint32)}, "expected 2 words of 32 bits, got 3 uint32"),
        ({32: np.zeros(2, np.int32)}, "expected 2 words of 32 bits, got 2 int32"),
        ({32: np.zeros((2, 1), np.uint32)}, "expected 2 words of 32 bits, got 2 uint32"),
    ],
)
def test_decode_refuses_vectors_of_another_layout(vectors, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        ring.decode(vectors, layout=layout_of(real((2,))))
