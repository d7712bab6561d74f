"""The map itself: against its definition, and what the ring relies on. Statistical tests use fixed seeds."""

# N = values, B = rows of a block, K = blocks, M = words

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from crypto.errors import ConfigError, LocalProtocolError, QuantizationError
from crypto.fixed_point import compiled, ring
from crypto.fixed_point import projection as projection_module
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.projection import MAX_BLOCK, Projection

SIZES = (1, 2, 15, 16, 17, 1000, 9_610, 70_000)


def seed(number: int) -> bytes:
    return hashlib.sha256(f"projection {number}".encode()).digest()


def normal(size: int, number: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(number).normal(size=size).astype(np.float32)


def by_definition(projection: Projection) -> NDArray[np.float64]:
    """The map as a matrix, number by number from docs/protocol.md 4.6. Shapes: (M, N)."""
    block, blocks = projection.block, -(-projection.size // projection.block)
    cipher = Cipher(algorithms.AES256(projection.seed), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(8 * block + (block * blocks + 7) // 8))
    matrix = np.zeros((block * blocks, projection.size))
    for value in range(projection.size):
        byte = stream[8 * block + value // 8]
        sign = -1.0 if byte >> (value % 8) & 1 else 1.0
        row, column = divmod(value, blocks)
        for out in range(block):
            entry = (-1.0) ** (row & out).bit_count() / np.sqrt(block)
            matrix[out * blocks + column, value] = sign * entry
    return matrix


@pytest.mark.parametrize("size", [1, 17, 100, 999])
def test_both_ways_are_as_defined(size: int) -> None:
    projection = Projection.of(size, seed=seed(1))
    matrix_MN = by_definition(projection)
    value_N, sum_M = normal(size), normal(projection.words, 1)
    np.testing.assert_allclose(projection.project(value_N), matrix_MN @ value_N, atol=1e-5)
    np.testing.assert_allclose(projection.expand(sum_M), matrix_MN.T @ sum_M, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_words_give_the_values_back_and_keep_their_length(size: int) -> None:
    projection, value_N = Projection.of(size, seed=seed(2)), normal(size)
    word_M = projection.project(value_N)
    assert word_M.dtype == np.float32
    assert np.linalg.norm(word_M) == pytest.approx(np.linalg.norm(value_N), rel=1e-5)
    np.testing.assert_allclose(projection.expand(word_M), value_N, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "block"),
    [(1, 16), (8_191, 16), (8_192, 32), (262_143, 512), (262_144, 1024), (1_000_000, 1024), (1 << 30, 1024)],
)
def test_block_and_padding_follow_the_size(size: int, block: int) -> None:
    projection = Projection.of(size, seed=seed(0))
    assert projection.block == block
    assert size <= projection.words < size + block
    if size >= 4096:
        assert projection.words <= 1.004 * size


def test_seed_decides_signs() -> None:
    one, other = (Projection.of(5_000, seed=seed(number)) for number in (1, 2))
    value_N = normal(5_000)
    assert not np.allclose(one.project(value_N), other.project(value_N))
    assert np.array_equal(one.project(value_N), replace(one).project(value_N))
    # both ends must hold the same seed
    assert not np.allclose(other.expand(one.project(value_N)), one.expand(one.project(value_N)))


def test_the_map_of_a_sum_is_the_sum_of_the_maps() -> None:
    projection = Projection.of(3_000, seed=seed(3))
    parts = [normal(3_000, number) for number in range(5)]
    total_M = np.sum([projection.project(part) for part in parts], axis=0)
    np.testing.assert_allclose(projection.project(np.sum(parts, axis=0)), total_M, atol=1e-4)


def spiky(size: int) -> dict[str, NDArray[np.float32]]:
    """Vectors that fit no fixed scale: one value alone, one layer alone, a thousandth heavy, equal values."""
    vectors = {name: np.zeros(size, np.float32) for name in ("one", "layer", "heavy", "equal")}
    vectors["one"][size // 3] = 1.0
    vectors["layer"][: size // 50] = normal(size // 50)
    vectors["heavy"][:] = normal(size) * np.where(np.arange(size) % 1000, 1.0, 100.0)
    vectors["equal"][:] = 0.01
    return vectors


@pytest.mark.parametrize("name", ["one", "layer", "heavy", "equal"])
def test_words_of_a_spiky_vector_stay_below_32_times_their_root_mean_square(name: str) -> None:
    size = 1_000_000
    value_N = spiky(size)[name]
    rms = float(np.sqrt(np.mean(value_N.astype(np.float64) ** 2)))
    word_M = Projection.of(size, seed=seed(4)).project(value_N)
    assert np.abs(word_M).max() < 32.0 * rms
    if name != "one":
        assert np.abs(word_M).max() < 12.0 * rms


def test_words_are_nearly_normal() -> None:
    """Of 10^6 normal numbers the largest is 4.9 and above 6 once in 500 seeds; kurtosis is 3 +- 0.005."""
    value_N = np.random.default_rng(5).laplace(size=1_000_000).astype(np.float32)  # kurtosis 6
    word_M = Projection.of(1_000_000, seed=seed(5)).project(value_N).astype(np.float64)
    word_M /= word_M.std()
    assert np.mean(word_M**4) == pytest.approx(3.0, abs=0.05)
    assert np.abs(word_M).max() < 6.5


@pytest.mark.parametrize("shape", [(16, 1), (32, 5), (64, 300), (1024, 3)])
def test_the_compiled_transform_is_numpys(shape: tuple[int, int]) -> None:
    pytest.importorskip("numba")
    loop = compiled.transform()
    assert loop is not None
    work_BK = normal(math.prod(shape)).reshape(shape)
    expected_BK = projection_module._transformed(work_BK.copy())
    for columns in (1, 2, 128):
        out_BK = work_BK.copy()
        loop(out_BK, np.empty(shape[0] * columns, np.float32))
        np.testing.assert_allclose(out_BK, expected_BK, rtol=1e-5, atol=1e-4)


def test_large_vectors_are_projected_alike_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    projection, value_N = Projection.of(600_000, seed=seed(8)), normal(600_000)
    word_M = projection.project(value_N)
    monkeypatch.setattr(compiled, "transform", lambda: None)
    np.testing.assert_allclose(projection.project(value_N), word_M, atol=1e-5)


def test_what_is_not_finite_stays_so_and_the_ring_refuses_it() -> None:
    projection = Projection.of(100, seed=seed(6))
    value_N = normal(100)
    value_N[7] = np.nan
    assert not np.isfinite(projection.project(value_N)).all()
    layout = Layout(quantities=(projected(projection, ring_bits=16),), members=3)
    with pytest.raises(QuantizationError, match="quantity delta: a value is not finite"):
        Encoder({"delta": value_N}, layout=layout).encode()


def projected(projection: Projection, *, ring_bits: int, bound: float = 6.0) -> Quantity:
    return Quantity(
        name="delta", shape=(projection.size,), bound=bound, ring_bits=ring_bits, projection=projection
    )


@pytest.mark.parametrize(("ring_bits", "tolerance"), [(16, 1.5e-2), (32, 1e-5), (64, 1e-5)])
def test_the_decoded_sum_is_that_of_the_values(ring_bits: int, tolerance: float) -> None:
    """In 16 bits the step is 2^-9, an error's standard deviation 0.0025: six of them."""
    silos, size = 10, 9_610
    layout = Layout(
        quantities=(projected(Projection.of(size, seed=seed(7)), ring_bits=ring_bits),), members=silos
    )
    parts = [normal(size, number) for number in range(silos)]
    total = ring.zeros(layout)
    for part in parts:
        encoded = Encoder({"delta": part}, layout=layout).encode()
        assert encoded.clipped_total == 0
        ring.add_into(total, encoded.vectors)
    decoded_N = ring.decode(total, layout=layout)["delta"]
    assert decoded_N.dtype == np.float64
    np.testing.assert_allclose(decoded_N, np.sum(parts, axis=0, dtype=np.float64), atol=tolerance)


def test_half_the_bytes_of_float32_for_a_million_values() -> None:
    quantity = projected(Projection.of(1_000_000, seed=seed(0)), ring_bits=16)
    assert Layout(quantities=(quantity,), members=10).total_bytes <= 0.504 * 4_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": bytes(31)}, "expected a seed of 32 bytes, got 31"),
        ({"size": 0}, "expected at least one value, got 0"),
        ({"block": 8}, "a block is a power of two of 16 to 1024, got 8"),
        ({"block": 48}, "a block is a power of two of 16 to 1024, got 48"),
        ({"block": 2 * MAX_BLOCK}, "a block is a power of two of 16 to 1024, got 2048"),
    ],
)
def test_a_projection_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(Projection.of(1_000, seed=seed(0)), **change)  # type: ignore[arg-type]


def test_arrays_of_another_size_are_refused() -> None:
    projection = Projection.of(1_000, seed=seed(0))
    with pytest.raises(LocalProtocolError, match="expected 1000 values, got 999"):
        projection.project(normal(999))
    with pytest.raises(LocalProtocolError, match="expected 1008 words, got 1007"):
        projection.expand(normal(1_007))
