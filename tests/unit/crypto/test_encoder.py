from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.errors import LocalProtocolError, QuantizationError
from crypto.fixed_point import compiled, encoder, ring
from crypto.fixed_point.encoder import (
    BLOCK_VALUES,
    COMPILED_BLOCK_VALUES,
    ROUNDING_STEPS,
    Encoder,
    round_into,
)
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from crypto.fixed_point.projection import Projection

MEMBERS = 4
KEY = bytes(range(32))
# every word size, blocks that end inside quantities, and exact words between rounded ones
LAYOUT = Layout(
    quantities=(
        Quantity(name="delta", shape=(2 * BLOCK_VALUES + 13,), bound=0.7, ring_bits=32),
        Quantity(name="half", shape=(3, 5), bound=1.0, ring_bits=16),
        Quantity(name="counts", shape=(7,), bound=100, ring_bits=32, is_count=True),
        Quantity(name="buffers", shape=(BLOCK_VALUES + 1,), bound=1000.0, ring_bits=32),
        Quantity(name="weight", bound=1.0, ring_bits=64),
        Quantity(name=CLIPPED, bound=1000, is_count=True),
        Quantity(name="sums", shape=(19,), bound=3.0, ring_bits=64),
    ),
    members=MEMBERS,
)


def normal(shape: tuple[int, ...], *, seed: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.4, shape).astype(dtype)


VALUES: dict[str, Any] = {
    "delta": normal((2 * BLOCK_VALUES + 13,), seed=1),  # one in twelve is clipped
    "half": normal((3, 5), seed=2, dtype=np.float64),
    "counts": np.arange(-3, 4),
    "buffers": normal((BLOCK_VALUES + 1,), seed=3, dtype=np.float64),
    "weight": 0.3,
    "sums": normal((19,), seed=4, dtype=np.float16),
}


def encoder_of(values: dict[str, Any] = VALUES, layout: Layout = LAYOUT, key: bytes = KEY) -> Encoder:
    return Encoder(values, layout=layout, random=lambda size: key[:size])


WHOLE = encoder_of().encode()


def single(value_N: Any, *, ring_bits: int = 32, bound: float = 8.0, key: bytes = KEY) -> Encoder:
    quantity = Quantity(name="delta", shape=np.shape(value_N), bound=bound, ring_bits=ring_bits)
    return encoder_of({"delta": value_N}, Layout(quantities=(quantity,), members=MEMBERS), key)


def words_of(encoded: Encoder, ring_bits: int, start: int = 0, size: int | None = None) -> np.ndarray:
    out = np.empty(
        encoded.layout.length(ring_bits) - start if size is None else size, ring.WORD_TYPES[ring_bits]
    )
    encoded.read(ring_bits, start, out)
    return out


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_piece_is_that_piece_of_the_whole(data: st.DataObject) -> None:
    ring_bits = data.draw(st.sampled_from([16, 32, 64]))
    start = data.draw(st.integers(0, LAYOUT.length(ring_bits)))
    size = data.draw(st.integers(0, LAYOUT.length(ring_bits) - start))
    assert np.array_equal(
        words_of(ENCODER, ring_bits, start, size), WHOLE.vectors[ring_bits][start : start + size]
    )


ENCODER = encoder_of()


@pytest.mark.parametrize("ring_bits", [16, 32, 64])
def test_tag_words_read_as_zeros_behind_the_same_words(ring_bits: int) -> None:
    quantities = (
        Quantity(name="delta", shape=(3,), bound=8.0, ring_bits=ring_bits, is_tagged=True),
        Quantity(name="loss", bound=8.0),
    )
    encoder = encoder_of({"delta": [8.0, -8.0, 0.5], "loss": 0.5}, Layout(quantities=quantities, members=3))
    whole = encoder.encode().vectors[64]
    assert whole[-4:].tolist() == [0, 0, 0, 0]
    assert all(whole[:-4])
    for start in range(whole.size):
        for stop in range(start, whole.size + 1):
            out = np.full(stop - start, 7, np.uint64)
            encoder.read(64, start, out)
            assert np.array_equal(out, whole[start:stop])


def test_pieces_of_odd_sizes_make_the_whole_in_any_order() -> None:
    for ring_bits in LAYOUT.ring_sizes:
        out = np.zeros(LAYOUT.length(ring_bits), ring.WORD_TYPES[ring_bits])
        cuts = [*range(0, out.size, 4099), out.size]
        for start, stop in reversed(list(itertools.pairwise(cuts))):
            ENCODER.read(ring_bits, start, out[start:stop])
        assert np.array_equal(out, WHOLE.vectors[ring_bits])


def test_reading_in_threads_gives_the_same_words() -> None:
    barrier = threading.Barrier(4)

    def read(key: bytes) -> np.ndarray:
        barrier.wait()
        return np.concatenate([words_of(encoder_of(key=key), 32) for _ in range(3)])

    with ThreadPoolExecutor(4) as pool:
        first, other, again, third = pool.map(read, [KEY, bytes(32), KEY, KEY])
    expected = np.tile(WHOLE.vectors[32], 3)
    assert all(np.array_equal(words, expected) for words in (first, again, third))
    assert not np.array_equal(other, expected)


def test_what_was_encoded_at_once_is_read_in_pieces() -> None:
    encoded = Encoder(VALUES, layout=LAYOUT, random=lambda size: KEY[:size]).encode()
    assert encoded.clipped_total == ENCODER.clipped_total > 0
    assert all(
        np.array_equal(encoded.vectors[ring_bits], WHOLE.vectors[ring_bits])
        for ring_bits in LAYOUT.ring_sizes
    )
    for ring_bits in LAYOUT.ring_sizes:
        out = np.empty(3, ring.WORD_TYPES[ring_bits])
        encoded.read(ring_bits, 2, out)
        assert np.array_equal(out, encoded.vectors[ring_bits][2:5])


def test_a_word_is_its_value_in_units_rounded_by_the_bits_of_its_place() -> None:
    """The definition, in exact integers: 2 bytes of the key stream for each word of the upload."""
    rounding_bits = np.empty(sum(LAYOUT.length(ring_bits) for ring_bits in LAYOUT.ring_sizes), "<u2")
    encoder.prg.Keystream(KEY).fill(rounding_bits.view(np.uint8))
    places = {16: 0, 32: LAYOUT.length(16), 64: LAYOUT.length(16) + LAYOUT.length(32)}
    for quantity in LAYOUT.quantities:
        if quantity.is_count:
            continue
        place = LAYOUT.slices(quantity.ring_bits)[quantity.name]
        signed = WHOLE.vectors[quantity.ring_bits][place].view(f"i{quantity.ring_bits // 8}")
        value_N = np.asarray(VALUES[quantity.name]).reshape(-1)
        first = places[quantity.ring_bits] + place.start
        for i in range(0, value_N.size, max(1, value_N.size // 500)):
            inside = max(-quantity.bound, min(quantity.bound, float(value_N[i])))
            if value_N.dtype == np.float32 and abs(inside) == quantity.bound:
                continue  # float32 has no 0.7: a test of its own
            units = inside * quantity.scale(MEMBERS)
            up = int(rounding_bits[first + i]) < (units - math.floor(units)) * ROUNDING_STEPS
            assert int(signed[i]) == math.floor(units) + up


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rounding_bits", "expected"), [(0, [3, 4, -3, -2, 0, 0]), (ROUNDING_STEPS - 1, [3, 3, -3, -3, 0, 0])]
)
def test_a_whole_number_stays_whatever_the_rounding_bits(
    rounding_bits: int, expected: list[int], dtype: Any
) -> None:
    """A zero that rounded whole numbers up would pass the bound once in 2^16 values."""
    value_B = np.array([3.0, 3.5, -3.0, -2.5, 0.0, -0.0], dtype)
    for loop in loops(dtype, np.int16):
        out_B = np.zeros(6, np.int16)
        loop(
            value_B,
            np.full(6, rounding_bits, np.uint16),
            out_B,
            dtype(1),
            dtype(np.inf),
            dtype(ROUNDING_STEPS),
            dtype(1),
        )
        assert out_B.tolist() == expected


def test_a_bound_that_float32_does_not_have_is_not_passed() -> None:
    """float32 rounds 0.3 up: to clip to that would leave the sum of 2^31 - 1 units no room."""
    bound = 0.3
    assert float(np.float32(bound)) > bound
    for ring_bits in (16, 32, 64):
        encoded = single(
            np.array([0.5, -0.5, np.float32(bound)], np.float32), ring_bits=ring_bits, bound=bound
        )
        scale = encoded.layout.quantities[0].scale(MEMBERS)
        signed = words_of(encoded, ring_bits).view(f"i{ring_bits // 8}")
        assert encoded.clipped_total == 3
        assert np.abs(signed).max() <= math.ceil(bound * scale)


def loops(value: Any, ring_bits: Any) -> list[Any]:
    kernel = compiled.rounding(np.dtype(value), np.dtype(ring_bits))
    return [round_into] if kernel is None else [round_into, kernel]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ring_bits", [16, 32, 64])
@pytest.mark.parametrize("size", [BLOCK_VALUES + 1, COMPILED_BLOCK_VALUES + 3])
def test_the_compiled_loop_gives_the_same_words(
    ring_bits: int, dtype: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    value_N = np.random.default_rng(ring_bits).normal(0, 3.0, size).astype(dtype)
    # around whole numbers, the bound and nothing, where one rounding step more would show
    step = dtype(1 / single(value_N, ring_bits=ring_bits).layout.quantities[0].scale(MEMBERS))
    edges = np.array([0.0, -0.0, 1e-30, -1e-30, 8.0, -8.0, 9.0, -9.0, 1.0, -1.0], dtype)
    value_N[:10], value_N[10:20] = edges, edges * step
    value_N[20:1020] = np.arange(-500, 500, dtype=dtype) / dtype(256) * step
    reference = single(value_N, ring_bits=ring_bits)
    monkeypatch.setattr(compiled, "WORTH_VALUES", 1)
    faster = single(value_N, ring_bits=ring_bits)
    part = faster._parts[ring_bits][0][1]
    assert isinstance(part, encoder._Rounded)
    assert part.round_into is not round_into
    assert faster.clipped_total == reference.clipped_total > 0
    assert np.array_equal(words_of(faster, ring_bits), words_of(reference, ring_bits))
    assert np.array_equal(words_of(faster, ring_bits, 17, 1000), words_of(reference, ring_bits, 17, 1000))


@pytest.mark.parametrize("broken", [ImportError("no numba"), RuntimeError("no locator available")])
def test_numpy_serves_where_numba_is_missing_or_keeps_nothing(
    broken: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Numba:
        @staticmethod
        def njit(*_: object, **__: object) -> None:
            raise broken

    monkeypatch.setitem(sys.modules, "numba", None if isinstance(broken, ImportError) else Numba)
    monkeypatch.setattr(compiled, "WORTH_VALUES", 1)
    compiled.rounding.cache_clear()
    try:
        assert np.array_equal(words_of(encoder_of(), 32), WHOLE.vectors[32])
        assert compiled.rounding(np.dtype(np.float32), np.dtype(np.int32)) is None
    finally:
        compiled.rounding.cache_clear()


def test_numpy_serves_where_compiling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError("disk full")

    class Numba:
        @staticmethod
        def njit(**_: object) -> object:
            return lambda _: failing

    monkeypatch.setitem(sys.modules, "numba", Numba)
    monkeypatch.setattr(compiled, "WORTH_VALUES", 1)
    compiled.rounding.cache_clear()
    try:
        assert np.array_equal(words_of(encoder_of(), 64), WHOLE.vectors[64])
    finally:
        compiled.rounding.cache_clear()


def test_numba_is_not_imported_for_a_small_input_nor_by_the_coordinator() -> None:
    code = (
        "import sys, numpy as np, coordinator.server\n"
        "from crypto.fixed_point import encoder, layout\n"
        "quantity = layout.Quantity(name='delta', shape=(1000,), bound=1.0, ring_bits=32)\n"
        "made = encoder.Encoder({'delta': np.zeros(1000, np.float32)},"
        " layout=layout.Layout(quantities=(quantity,), members=3))\n"
        "made.encode()\n"
        "sys.exit('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_values_are_held_and_read_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the caller's array: neither a copy of it nor its words."""
    monkeypatch.setattr(compiled, "WORTH_VALUES", 1 << 60)  # loading numba takes memory
    value_N = np.zeros(1 << 20, np.float32)
    out = np.empty(1 << 14, np.uint32)
    single(np.zeros(10, np.float32)).read(32, 0, out[:10])  # the thread's buffers
    tracemalloc.start()
    try:
        encoded = single(value_N)
        for start in range(0, value_N.size, out.size):
            encoded.read(32, start, out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < value_N.nbytes // 8


def test_values_of_other_types_and_orders_are_encoded_alike() -> None:
    value_N = np.arange(-12, 12).reshape(4, 6) / 4
    expected = words_of(single(value_N), 32)
    for other in (
        value_N.astype(np.float16),
        value_N.astype(np.longdouble),
        value_N.astype(">f8"),
        np.asfortranarray(value_N),
        np.repeat(value_N, 2, axis=1)[:, ::2],
        value_N.tolist(),
    ):
        assert np.array_equal(words_of(single(other), 32), expected)
    assert np.array_equal(
        words_of(single(np.array([True, False])), 32), words_of(single(np.array([1.0, 0.0])), 32)
    )


def test_a_tiny_bound_is_scaled_without_overflow_in_float32() -> None:
    """2^62 / 1e-30 is no float32."""
    value_N = np.array([1e-30, -1e-30, 0.25e-30], np.float32)
    encoded = single(value_N, ring_bits=64, bound=1.1e-30)
    decoded = ring.decode(encoded.encode().vectors, layout=encoded.layout)["delta"]
    assert np.allclose(decoded, value_N.astype(np.float64), rtol=1e-12, atol=0)


def test_large_finite_values_are_clipped_without_a_warning() -> None:
    encoded = single(np.array([3e38, -3e38, 1.0], np.float32), ring_bits=32)
    assert encoded.clipped_total == 2
    assert ring.decode(encoded.encode().vectors, layout=encoded.layout)["delta"][:2].tolist() == [8.0, -8.0]


def test_a_projected_quantity_is_encoded_as_its_numbers() -> None:
    value_N = normal((1000,), seed=9)
    projection = Projection.of(1000, seed=bytes(32))
    quantity = Quantity(name="delta", shape=(10, 100), bound=8.0, ring_bits=32, projection=projection)
    encoded = encoder_of({"delta": value_N.reshape(10, 100)}, Layout(quantities=(quantity,), members=4))
    assert encoded.layout.length(32) == projection.words == 1008
    assert np.array_equal(words_of(encoded, 32), words_of(single(projection.project(value_N)), 32))


@pytest.mark.parametrize("place", [0, BLOCK_VALUES, encoder.CHECKED_VALUES])
def test_every_value_is_checked_before_any_word_is_read(place: int) -> None:
    value_N = np.zeros(encoder.CHECKED_VALUES + 1, np.float32)
    value_N[place] = np.nan
    with pytest.raises(QuantizationError, match="quantity delta: a value is not finite"):
        single(value_N)
    value_N[place] = 9.0
    assert single(value_N).clipped_total == 1


def test_a_layout_other_than_its_own_is_our_own_mistake() -> None:
    encoded = single(np.zeros(3))
    encoded.check_layout(encoded.layout)
    with pytest.raises(LocalProtocolError, match="encoder: the values are of another layout"):
        encoded.check_layout(LAYOUT)


def test_values_show_in_no_repr() -> None:
    encoded = encoder_of({"delta": np.full(3, 0.77)}, single(np.zeros(3)).layout)
    assert "0.77" not in repr(encoded)
    assert "0.77" not in repr(encoded._parts)


def test_another_key_rounds_otherwise() -> None:
    value_N = normal((1000,), seed=5)
    assert not np.array_equal(
        words_of(single(value_N, ring_bits=16), 16),
        words_of(single(value_N, ring_bits=16, key=os.urandom(32)), 16),
    )
