"""The sampler against its tables, exactly, and against the law, by statistics.

Statistical tests draw under a fixed key, so they pass or fail for good; under `soak` they draw under a fresh
key, and each fails a right sampler less than once in 10^9 runs: RARE is the probability below which a
statistic counts as wrong.
"""

# C = cells, N = samples

from __future__ import annotations

import ast
import logging
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from crypto.errors import LocalProtocolError
from crypto.noise import table_stream
from crypto.noise.gaussian import MAX_VARIANCE, GaussianStream, gaussian_tables
from crypto.noise.table import MORE_BITS, Table
from crypto.noise.table_stream import BLOCK_SAMPLES, Pick, compiled_pick, numpy_pick

KEY = bytes(range(32))
QUANTITY = 3
LIGHT, ONE_TABLE, TWO_TABLES = 64.0, 2.0**16, 2.0**24  # variances
VARIANCES = (LIGHT, 1e3, TWO_TABLES, MAX_VARIANCE)
RARE = 1e-9
SAMPLES = 3_000_000


def stream(
    variance: float, *, key: bytes = KEY, quantity: int = QUANTITY, pick: Pick | None = None
) -> GaussianStream:
    return GaussianStream(variance, key, quantity=quantity, pick=pick)


def samples(
    variance: float, size: int, *, start: int = 0, key: bytes = KEY, pick: Pick | None = None
) -> NDArray[np.int32]:
    out_N = np.empty(size, np.int32)
    stream(variance, key=key, pick=pick).sample_into(start, out_N)
    return out_N


def picks() -> list[Pick]:
    compiled = compiled_pick()
    return [numpy_pick] if compiled is None else [numpy_pick, compiled]


# The sampler against its tables


def key_stream(use: bytes, offset_bytes: int, size: int) -> bytes:
    """As docs/privacy.md says, without the package."""
    info = b"chorale/v1/noise\0" + QUANTITY.to_bytes(4, "big") + use
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(KEY)
    block, skipped = divmod(offset_bytes, 16)
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return encryptor.update(bytes(skipped + size))[skipped:]


def table_sample_at(table: Table, position: int, level: bytes = b"") -> tuple[int, bool]:
    """The sample of a position by the book, and whether the first word left it open."""
    word = int.from_bytes(key_stream(level + b"words", 4 * position, 4), "little")
    more = int.from_bytes(key_stream(level + b"more", 16 * position, 8), "little")
    cell = word >> 1 & ((1 << table.index_bits) - 1)
    first = word >> (1 + table.index_bits)
    entry = int(table.entries_C[cell])
    threshold = (entry >> table.index_bits << MORE_BITS) + int(table.more_C[cell])
    is_own = (first << MORE_BITS) + more < threshold
    magnitude = cell if is_own else entry & ((1 << table.index_bits) - 1)
    return (-magnitude if word & 1 else magnitude), first == entry >> table.index_bits


def sample_at(variance: float, position: int) -> int:
    """X = L A + B, both tables at that position."""
    tables = gaussian_tables(variance)
    fine, _ = table_sample_at(tables.fine, position)
    if tables.coarse is None:
        return fine
    return tables.step * table_sample_at(tables.coarse, position, b"coarse ")[0] + fine


@pytest.mark.parametrize("variance", [LIGHT, TWO_TABLES, MAX_VARIANCE])
@pytest.mark.parametrize("start", [0, 12345, 1 << 40])
def test_samples_are_those_of_the_tables_on_streams_of_aes_ctr(variance: float, start: int) -> None:
    expected = [sample_at(variance, start + place) for place in range(200)]
    for pick in picks():
        assert samples(variance, 200, start=start, pick=pick).tolist() == expected


def test_undecided_words_take_their_positions_further_bits() -> None:
    """One in 2^15 of a large table: all those among a million samples, of both tables."""
    tables = gaussian_tables(MAX_VARIANCE)
    drawn_N = samples(MAX_VARIANCE, 1 << 20)
    for table, level in ((tables.fine, b""), (tables.coarse, b"coarse ")):
        assert table is not None
        assert table.index_bits == 16
        word_N = np.frombuffer(key_stream(level + b"words", 0, 4 << 20), "<u4")
        entry_N = table.entries_C[word_N >> 1 & 0xFFFF]
        open_F = np.flatnonzero(word_N >> 17 == entry_N >> 16)
        assert 10 < open_F.size < 100
        assert all(table_sample_at(table, int(place), level)[1] for place in open_F)
        assert drawn_N[open_F].tolist() == [sample_at(MAX_VARIANCE, int(place)) for place in open_F]


@pytest.mark.parametrize("variance", [LIGHT, ONE_TABLE, MAX_VARIANCE])
def test_every_cell_is_shared_at_its_threshold(variance: float) -> None:
    """Just below it, at it and just above it, for both signs, in both loops."""
    table = gaussian_tables(variance).fine
    cells, bits = 1 << table.index_bits, table.index_bits
    cell_C = np.arange(cells, dtype=np.uint64)
    first_C = table.entries_C.astype(np.uint64) >> np.uint64(bits)
    alias_C = (table.entries_C & np.uint32(cells - 1)).astype(np.int64)
    for pick in picks():
        for shift in (-1, 0, 1):
            for sign in (1, -1):
                fraction_C = first_C + np.uint64(shift % (1 << 64))
                there = (fraction_C >> np.uint64(31 - bits)) == 0
                word_B = (fraction_C << np.uint64(bits + 1) | cell_C << np.uint64(1))[there].astype(np.uint32)
                word_B |= np.uint32(sign < 0)
                expected_B = cell_C.astype(np.int64)[there] if shift < 0 else alias_C[there]
                for block in (slice(0, BLOCK_SAMPLES), slice(BLOCK_SAMPLES, 2 * BLOCK_SAMPLES)):
                    size = word_B[block].size
                    out_B, open_B = np.empty(size, np.int32), np.empty(size, np.int64)
                    found = pick(table.entries_C, bits, word_B[block], out_B, open_B)
                    np.testing.assert_array_equal(out_B, sign * expected_B[block])
                    assert open_B[:found].tolist() == (list(range(size)) if shift == 0 else [])


def test_an_undecided_word_is_decided_at_the_thresholds_rest() -> None:
    table = gaussian_tables(LIGHT).fine
    for cell in range(1 << table.index_bits):
        entry, rest = int(table.entries_C[cell]), int(table.more_C[cell])
        alias = entry & ((1 << table.index_bits) - 1)
        word = (entry >> table.index_bits << table.index_bits | cell) << 1
        assert table_stream.decided(table, word, rest) == alias
        assert table_stream.decided(table, word | 1, rest) == -alias
        if rest:
            assert table_stream.decided(table, word, rest - 1) == cell
            assert table_stream.decided(table, word | 1, rest - 1) == -cell


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("number_type", [np.int32, np.int64])
def test_the_compiled_loop_gives_the_same_samples(variance: float, number_type: type) -> None:
    compiled = compiled_pick()
    if compiled is None:
        pytest.skip("no numba")
    size = 10 * BLOCK_SAMPLES + 77
    out_N, reference_N = np.empty(size, number_type), np.empty(size, number_type)
    stream(variance, pick=compiled).sample_into(5, out_N)
    stream(variance, pick=numpy_pick).sample_into(5, reference_N)
    np.testing.assert_array_equal(out_N, reference_N)


def test_without_numba_the_numpy_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = samples(LIGHT, 1000)
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled_pick.cache_clear()
    try:
        assert compiled_pick() is None
        np.testing.assert_array_equal(samples(LIGHT, 1000), expected)
    finally:
        compiled_pick.cache_clear()


# Positions


@settings(max_examples=40)
@given(st.data())
def test_a_position_has_one_sample_however_the_vector_is_cut(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 3 * BLOCK_SAMPLES))
    first = data.draw(st.integers(0, 1 << 34))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    drawn = stream(MAX_VARIANCE)
    whole_N, pieces_N = np.empty(size, np.int32), np.empty(size, np.int64)
    drawn.sample_into(first, whole_N)
    for start, stop in reversed(list(zip([0, *cuts], [*cuts, size], strict=True))):
        drawn.sample_into(first + start, pieces_N[start:stop])
    np.testing.assert_array_equal(whole_N, pieces_N)


def test_undecided_positions_do_not_depend_on_the_cut() -> None:
    drawn, size = stream(MAX_VARIANCE), 1 << 20
    whole_N, pieces_N = np.empty(size, np.int32), np.empty(size, np.int32)
    drawn.sample_into(0, whole_N)
    for start in range(0, size, 10_007):
        drawn.sample_into(start, pieces_N[start : start + 10_007])
    np.testing.assert_array_equal(whole_N, pieces_N)


def test_threads_may_share_a_stream() -> None:
    drawn, size = stream(MAX_VARIANCE), 1 << 20
    whole_N, pieces_N = np.empty(size, np.int32), np.empty(size, np.int32)
    drawn.sample_into(0, whole_N)
    with ThreadPoolExecutor(4) as pool:
        parts = [(start, pieces_N[start : start + 65_521]) for start in range(0, size, 65_521)]
        list(pool.map(lambda part: drawn.sample_into(*part), parts))
    np.testing.assert_array_equal(whole_N, pieces_N)


@pytest.mark.parametrize("word_type", [np.uint16, np.uint32, np.uint64])
def test_noise_is_added_modulo_the_word(word_type: type) -> None:
    size = (1 << 18) + 5
    word_N = np.random.default_rng(5).integers(0, np.iinfo(word_type).max, size, word_type)
    expected_N = word_N + samples(MAX_VARIANCE, size, start=9).astype(word_type)
    stream(MAX_VARIANCE).add_into(9, word_N)
    np.testing.assert_array_equal(word_N, expected_N)


def test_streams_of_other_inputs_and_quantities_are_others() -> None:
    mine_N = samples(MAX_VARIANCE, 1000)
    theirs_N, next_N = np.empty(1000, np.int32), np.empty(1000, np.int32)
    stream(MAX_VARIANCE, key=bytes(32)).sample_into(0, theirs_N)
    stream(MAX_VARIANCE, quantity=QUANTITY + 1).sample_into(0, next_N)
    for other_N in (theirs_N, next_N):
        assert np.count_nonzero(mine_N == other_N) < 5
        assert np.count_nonzero(mine_N == -other_N) < 5


# The sampler against the law

FINE, COARSE = 1000, 40  # cells of the same probability, as nearly as whole numbers allow


def fixed_key(_: str) -> bytes:
    return KEY


def fresh_key(name: str) -> bytes:
    key = os.urandom(32)
    logging.getLogger(__name__).warning("%s: key %s", name, key.hex())  # shown if the test fails
    return key


KEYS = [pytest.param(fixed_key, id="fixed"), pytest.param(fresh_key, id="fresh", marks=pytest.mark.soak)]


def chi_square_probability(drawn_N: NDArray[Any], variance: float, *, cells: int = COARSE) -> float:
    """How probable a chi-square so large is under a rounded Gaussian.

    A cell ends half way between two whole numbers, where rounding does. Many cells show a few odd ones, few
    cells a wrong width.
    """
    deviation = math.sqrt(variance)
    edges = np.unique(np.floor(deviation * stats.norm.ppf(np.arange(1, cells) / cells)) + 0.5)
    expected = np.diff(stats.norm.cdf(edges / deviation), prepend=0.0, append=1.0) * drawn_N.size
    seen = np.bincount(np.searchsorted(edges, drawn_N), minlength=expected.size)
    return float(stats.chisquare(seen, expected).pvalue)


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_samples_follow_the_law(make_key: Any, variance: float) -> None:
    """Over up to 1000 cells; mean and variance; the tails; and the last bits of two tables."""
    drawn_N = samples(variance, SAMPLES, key=make_key(f"law {variance}"))
    assert chi_square_probability(drawn_N, variance) > RARE
    assert chi_square_probability(drawn_N, variance, cells=FINE) > RARE
    real_N = drawn_N.astype(np.float64)
    assert abs(real_N.mean()) < 6.2 * math.sqrt(variance / SAMPLES)
    # rounding adds 1/12
    assert (real_N**2).mean() == pytest.approx(variance + 1 / 12, rel=6.2 * math.sqrt(2 / SAMPLES))
    for deviations in (2, 3, 4, 5):
        at_least = math.ceil(deviations * math.sqrt(variance))
        beyond = int((np.abs(drawn_N) >= at_least).sum())
        probability = 2 * stats.norm.sf((at_least - 0.5) / math.sqrt(variance))
        assert stats.binomtest(beyond, SAMPLES, probability).pvalue > RARE
    step = gaussian_tables(variance).step
    if step:  # the fine table's alone, and even whatever the rest
        assert stats.chisquare(np.bincount(drawn_N & (step - 1), minlength=step)).pvalue > RARE


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_chi_square_sees_a_variance_one_percent_off(variance: float) -> None:
    """Else the test above would prove little."""
    drawn_N = samples(variance, SAMPLES)
    assert chi_square_probability(drawn_N, variance * 1.01) < RARE
    assert chi_square_probability(drawn_N, variance * 0.99) < RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize(("variance", "silos"), [(LIGHT, 7), (TWO_TABLES, 3)])
def test_sums_of_silos_follow_the_law_of_the_summed_variance(
    make_key: Any, variance: float, silos: int
) -> None:
    total_N = np.zeros(1_000_000, np.int64)
    for silo in range(silos):
        key = bytes([silo]) + make_key(f"sum {variance}, silo {silo}")[1:]
        total_N += samples(variance, total_N.size, key=key)
    # N + U_2 + ... + U_h, rounded: the uniforms add 1/12 each
    assert chi_square_probability(total_N, silos * variance + (silos - 1) / 12) > RARE
    assert chi_square_probability(total_N, (silos - 1) * variance) < RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("distance", [1, 2, 4, 16, BLOCK_SAMPLES])
def test_samples_of_two_positions_are_not_correlated(make_key: Any, distance: int) -> None:
    """Products of independent samples have mean 0 and variance v^2; 6.2 standard errors."""
    drawn_N = samples(MAX_VARIANCE, SAMPLES, key=make_key("correlation")).astype(np.float64)
    products = drawn_N[distance:] * drawn_N[:-distance]
    assert abs(products.mean()) < 6.2 * MAX_VARIANCE / math.sqrt(products.size)


# What is refused


@pytest.mark.parametrize(
    "out",
    [
        np.empty(4, np.float64),
        np.empty(4, np.int16),
        np.empty(4, np.uint32),
        np.empty((2, 2), np.int32),
        np.empty(8, np.int32)[::2],
        np.empty(4, np.dtype(np.int32).newbyteorder("S")),
    ],
)
def test_only_vectors_that_hold_every_sample_are_filled(out: NDArray[Any]) -> None:
    with pytest.raises(LocalProtocolError, match="noise: expected a contiguous vector of int32 or int64"):
        stream(LIGHT).sample_into(0, out)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="noise: a position is not negative, got -1"):
        stream(LIGHT).sample_into(-1, np.empty(4, np.int32))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="noise: expected a key of 32 bytes, got 31"):
        stream(LIGHT, key=bytes(31))


def test_noise_comes_from_no_other_generator() -> None:
    """In every module of crypto/: numpy's generators and `random` can be foretold from what they gave."""
    used = set()
    for path in Path(table_stream.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
            if isinstance(node, ast.Attribute):
                used.add(ast.unparse(node))
    assert {"os.urandom", "np.uint32"} <= used  # it does read them
    generators = ("random", "np.random", "numpy.random", "scipy")
    assert [name for name in used if f"{name}.".startswith(tuple(f"{one}." for one in generators))] == []
