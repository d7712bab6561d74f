"""The sampler against its table, exactly, and against the law, by statistics.

Statistical tests draw under a fixed key, so they pass or fail for good; under `soak` they draw under a fresh
key, and each fails a right sampler less than once in 10^9 runs: RARE is the probability below which a
statistic counts as wrong.
"""

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
from crypto.noise.skellam import MORE_BITS, Law, skellam_law
from crypto.noise.skellam_stream import BLOCK_SAMPLES, Pick, SkellamStream, compiled_pick
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from crypto.errors import LocalProtocolError
from crypto.noise import skellam_stream

KEY = bytes(range(32))
QUANTITY = 3
HEAVIEST = 2.0**24
VARIANCES = (0.5, 1.0, 10.0, 1e3, HEAVIEST)
RARE = 1e-9
SAMPLES = 3_000_000


def stream(
    variance: float, *, key: bytes = KEY, quantity: int = QUANTITY, pick: Pick | None = None
) -> SkellamStream:
    return SkellamStream(skellam_law(variance), key, quantity=quantity, pick=pick)


def samples(
    variance: float, size: int, *, start: int = 0, key: bytes = KEY, pick: Pick | None = None
) -> NDArray[np.int32]:
    out_N = np.empty(size, np.int32)
    stream(variance, key=key, pick=pick).sample_into(start, out_N)
    return out_N


def picks() -> list[Pick]:
    compiled = compiled_pick()
    return [skellam_stream.numpy_pick] if compiled is None else [skellam_stream.numpy_pick, compiled]


# The sampler against its table


def key_stream(use: bytes, offset_bytes: int, size: int) -> bytes:
    """As docs/privacy.md says, without the package."""
    info = b"chorale/v1/noise\0" + QUANTITY.to_bytes(4, "big") + use
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(KEY)
    block, skipped = divmod(offset_bytes, 16)
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return encryptor.update(bytes(skipped + size))[skipped:]


def sample_at(law: Law, position: int) -> tuple[int, bool]:
    """The sample of a position by the book, and whether the first word left it open."""
    word = int.from_bytes(key_stream(b"words", 4 * position, 4), "little")
    more = int.from_bytes(key_stream(b"more", 16 * position, 8), "little")
    cell = word >> 1 & ((1 << law.index_bits) - 1)
    first = word >> (1 + law.index_bits)
    entry = int(law.entries_C[cell])
    threshold = (entry >> law.index_bits << MORE_BITS) + int(law.more_C[cell])
    is_own = (first << MORE_BITS) + more < threshold
    magnitude = cell if is_own else entry & ((1 << law.index_bits) - 1)
    return (-magnitude if word & 1 else magnitude), first == entry >> law.index_bits


@pytest.mark.parametrize("variance", [10.0, HEAVIEST])
@pytest.mark.parametrize("start", [0, 12345, 1 << 40])
def test_samples_are_the_tables_on_two_streams_of_aes_ctr(variance: float, start: int) -> None:
    law = skellam_law(variance)
    expected = [sample_at(law, start + place)[0] for place in range(300)]
    for pick in picks():
        assert samples(variance, 300, start=start, pick=pick).tolist() == expected


def test_undecided_words_take_their_positions_further_bits() -> None:
    """One in 2^15 or so: all those among a million samples, which the caller never sees apart."""
    law = skellam_law(HEAVIEST)
    drawn_N = samples(HEAVIEST, 1 << 20)
    word_N = np.frombuffer(key_stream(b"words", 0, 4 << 20), "<u4")
    entry_N = law.entries_C[word_N >> 1 & 0xFFFF]
    open_F = np.flatnonzero(word_N >> 17 == entry_N >> 16)
    assert 10 < open_F.size < 100
    by_the_book = [sample_at(law, int(place)) for place in open_F]
    assert all(is_open for _, is_open in by_the_book)
    assert drawn_N[open_F].tolist() == [sample for sample, _ in by_the_book]


@pytest.mark.parametrize("variance", [0.5, 10.0, HEAVIEST])
def test_every_cell_is_shared_at_its_threshold(variance: float) -> None:
    """Just below it, at it and just above it, for both signs, in both loops."""
    law = skellam_law(variance)
    cells, bits = 1 << law.index_bits, law.index_bits
    cell_C = np.arange(cells, dtype=np.uint64)
    first_C = law.entries_C.astype(np.uint64) >> np.uint64(bits)
    alias_C = (law.entries_C & np.uint32(cells - 1)).astype(np.int64)
    for pick in picks():
        for shift in (-1, 0, 1):
            for sign in (1, -1):
                fraction_C = first_C + np.uint64(shift % (1 << 64))
                there = (fraction_C >> np.uint64(31 - bits)) == 0
                word_B = (fraction_C << np.uint64(bits + 1) | cell_C << np.uint64(1))[there].astype(np.uint32)
                word_B |= np.uint32(sign < 0)
                out_B, open_B = np.empty(word_B.size, np.int32), np.empty(word_B.size, np.int64)
                found = pick(law.entries_C, bits, word_B, out_B, open_B)
                expected_B = cell_C.astype(np.int64)[there] if shift < 0 else alias_C[there]
                np.testing.assert_array_equal(out_B, sign * expected_B)
                assert open_B[:found].tolist() == (list(range(word_B.size)) if shift == 0 else [])


@pytest.mark.parametrize("variance", [0.5, 10.0])
def test_an_undecided_word_is_decided_at_the_thresholds_rest(variance: float) -> None:
    law = skellam_law(variance)
    for cell in range(1 << law.index_bits):
        entry, rest = int(law.entries_C[cell]), int(law.more_C[cell])
        alias = entry & ((1 << law.index_bits) - 1)
        word = (entry >> law.index_bits << law.index_bits | cell) << 1
        assert skellam_stream.decided(law, word, rest) == alias
        assert skellam_stream.decided(law, word | 1, rest) == -alias
        if rest:
            assert skellam_stream.decided(law, word, rest - 1) == cell
            assert skellam_stream.decided(law, word | 1, rest - 1) == -cell


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("number_type", [np.int32, np.int64])
def test_the_compiled_loop_gives_the_same_samples(variance: float, number_type: type) -> None:
    compiled = compiled_pick()
    if compiled is None:
        pytest.skip("no numba")
    size = 10 * BLOCK_SAMPLES + 77
    out_N, reference_N = np.empty(size, number_type), np.empty(size, number_type)
    stream(variance, pick=compiled).sample_into(5, out_N)
    stream(variance, pick=skellam_stream.numpy_pick).sample_into(5, reference_N)
    np.testing.assert_array_equal(out_N, reference_N)


def test_without_numba_the_numpy_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = samples(10.0, 1000)
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled_pick.cache_clear()
    try:
        assert compiled_pick() is None
        np.testing.assert_array_equal(samples(10.0, 1000), expected)
    finally:
        compiled_pick.cache_clear()


# Positions


@settings(max_examples=40)
@given(st.data())
def test_a_position_has_one_sample_however_the_vector_is_cut(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 3 * BLOCK_SAMPLES))
    first = data.draw(st.integers(0, 1 << 34))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    drawn = stream(HEAVIEST)
    whole_N, pieces_N = np.empty(size, np.int32), np.empty(size, np.int64)
    drawn.sample_into(first, whole_N)
    for start, stop in reversed(list(zip([0, *cuts], [*cuts, size], strict=True))):
        drawn.sample_into(first + start, pieces_N[start:stop])
    np.testing.assert_array_equal(whole_N, pieces_N)


def test_undecided_positions_do_not_depend_on_the_cut() -> None:
    drawn, size = stream(HEAVIEST), 1 << 20
    whole_N, pieces_N = np.empty(size, np.int32), np.empty(size, np.int32)
    drawn.sample_into(0, whole_N)
    for start in range(0, size, 10_007):
        drawn.sample_into(start, pieces_N[start : start + 10_007])
    np.testing.assert_array_equal(whole_N, pieces_N)


def test_threads_may_share_a_stream() -> None:
    drawn, size = stream(HEAVIEST), 1 << 20
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
    expected_N = word_N + samples(HEAVIEST, size, start=9).astype(word_type)
    stream(HEAVIEST).add_into(9, word_N)
    np.testing.assert_array_equal(word_N, expected_N)


def test_streams_of_other_inputs_and_quantities_are_others() -> None:
    mine_N = samples(HEAVIEST, 1000)
    theirs_N, next_N = np.empty(1000, np.int32), np.empty(1000, np.int32)
    stream(HEAVIEST, key=bytes(32)).sample_into(0, theirs_N)
    stream(HEAVIEST, quantity=QUANTITY + 1).sample_into(0, next_N)
    for other_N in (theirs_N, next_N):
        assert np.count_nonzero(mine_N == other_N) < 5
        assert np.count_nonzero(mine_N == -other_N) < 5


# The sampler against the law

FINE, COARSE = 50.0, SAMPLES / 50  # samples expected of a cell
CELLS = [(0.5, 10), (1.0, 11), (10.0, 25), (1e3, 240), (HEAVIEST, 15_000)]


def fixed_key(_: str) -> bytes:
    return KEY


def fresh_key(name: str) -> bytes:
    key = os.urandom(32)
    logging.getLogger(__name__).warning("%s: key %s", name, key.hex())  # shown if the test fails
    return key


KEYS = [pytest.param(fixed_key, id="fixed"), pytest.param(fresh_key, id="fresh", marks=pytest.mark.soak)]


def chi_square_probability(drawn_N: NDArray[Any], variance: float, *, least: float) -> tuple[float, int]:
    """How probable a chi-square so large is under Skellam(variance), and over how many cells.

    A cell is one value where `least` samples are expected of it, else the values up to where they are.
    """
    reach = math.ceil(12 * math.sqrt(variance)) + 40
    expected_K = special.ive(np.abs(np.arange(-reach, reach + 1)), variance) * drawn_N.size
    seen_K = np.bincount(drawn_N + reach, minlength=expected_K.size)
    filled_K = np.floor(np.cumsum(expected_K) / least)
    starts = np.flatnonzero(np.diff(filled_K, prepend=-1.0))[:-1]
    starts[0] = 0
    expected_M, seen_M = np.add.reduceat(expected_K, starts), np.add.reduceat(seen_K, starts)
    statistic = float(((seen_M - expected_M) ** 2 / expected_M).sum())
    return float(stats.chi2.sf(statistic, starts.size - 1)), starts.size


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize(("variance", "min_cells"), CELLS)
def test_samples_follow_the_law_over_many_cells(make_key: Any, variance: float, min_cells: int) -> None:
    drawn_N = samples(variance, SAMPLES, key=make_key(f"chi {variance}"))
    probability, cells = chi_square_probability(drawn_N, variance, least=FINE)
    assert cells >= min_cells
    assert probability > RARE
    assert chi_square_probability(drawn_N, variance, least=COARSE)[0] > RARE


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_chi_square_sees_a_variance_one_percent_off(variance: float) -> None:
    """Else the test above would prove little. Many cells show a few odd ones, few cells a wrong width."""
    drawn_N = samples(variance, SAMPLES)
    assert chi_square_probability(drawn_N, variance * 1.01, least=COARSE)[0] < RARE
    assert chi_square_probability(drawn_N, variance * 0.99, least=COARSE)[0] < RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_mean_and_variance_are_the_laws(make_key: Any, variance: float) -> None:
    """Within 6.2 standard errors: less than RARE by chance. The fourth moment is 3 v^2 + v."""
    drawn_N = samples(variance, SAMPLES, key=make_key(f"moments {variance}")).astype(np.float64)
    assert abs(drawn_N.mean()) < 6.2 * math.sqrt(variance / SAMPLES)
    error = math.sqrt((2 * variance**2 + variance) / SAMPLES)
    assert abs((drawn_N**2).mean() - variance) < 6.2 * error


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("variance", VARIANCES)
def test_both_signs_are_as_frequent(make_key: Any, variance: float) -> None:
    drawn_N = samples(variance, SAMPLES, key=make_key(f"signs {variance}"))
    above, below = int((drawn_N > 0).sum()), int((drawn_N < 0).sum())
    assert stats.binomtest(above, above + below).pvalue > RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("deviations", [2, 3, 4, 5])
def test_tails_are_as_heavy_as_the_laws(make_key: Any, variance: float, deviations: int) -> None:
    drawn_N = samples(variance, SAMPLES, key=make_key(f"tails {variance}"))
    at_least = math.ceil(deviations * math.sqrt(variance))
    magnitudes = np.arange(at_least, at_least + math.ceil(12 * math.sqrt(variance)) + 40)
    probability = 2 * float(special.ive(magnitudes, variance).sum())
    beyond = int((np.abs(drawn_N) >= at_least).sum())
    assert stats.binomtest(beyond, SAMPLES, probability).pvalue > RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize(("variance", "silos"), [(0.5, 3), (10.0, 7), (1e3, 10)])
def test_sums_of_silos_follow_the_law_of_the_summed_variance(
    make_key: Any, variance: float, silos: int
) -> None:
    total_N = np.zeros(1_000_000, np.int64)
    for silo in range(silos):
        key = bytes([silo]) + make_key(f"sum {variance}, silo {silo}")[1:]
        total_N += samples(variance, total_N.size, key=key)
    assert chi_square_probability(total_N, silos * variance, least=FINE)[0] > RARE
    assert chi_square_probability(total_N, silos * variance, least=COARSE)[0] > RARE
    assert chi_square_probability(total_N, (silos - 1) * variance, least=COARSE)[0] < RARE


@pytest.mark.parametrize("make_key", KEYS)
@pytest.mark.parametrize("distance", [1, 2, 4, 16, BLOCK_SAMPLES])
def test_samples_of_two_positions_are_not_correlated(make_key: Any, distance: int) -> None:
    """Products of independent samples have mean 0 and variance v^2; 6.2 standard errors."""
    drawn_N = samples(HEAVIEST, SAMPLES, key=make_key("correlation")).astype(np.float64)
    products = drawn_N[distance:] * drawn_N[:-distance]
    assert abs(products.mean()) < 6.2 * HEAVIEST / math.sqrt(products.size)


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
        stream(10.0).sample_into(0, out)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="noise: a position is not negative, got -1"):
        stream(10.0).sample_into(-1, np.empty(4, np.int32))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="noise: expected a key of 32 bytes, got 31"):
        stream(10.0, key=bytes(31))


def test_noise_comes_from_no_other_generator() -> None:
    """In every module of crypto/: numpy's generators and `random` can be foretold from what they gave."""
    used = set()
    for path in Path(skellam_stream.__file__).parents[1].rglob("*.py"):
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
