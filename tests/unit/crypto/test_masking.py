from __future__ import annotations

import os
import threading
import tracemalloc
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import prg
from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import Encoded
from crypto.masking.masks import CHUNK_BYTES, Masker, SignedSeed, UnmaskPlan, vectors_from_stream

COHORT = bytes(range(32))
# 3 words of 16 bits put the later vectors at odd places; the 32-bit one spans several blocks
LAYOUT = Layout(
    quantities=(
        Quantity(name="half", shape=(3,), bound=1.0, ring_bits=16),
        Quantity(name="delta", shape=(3 * prg.BLOCK_BYTES // 4 + 11,), bound=8.0, ring_bits=32),
        Quantity(name="weight", shape=(5,), bound=1.0, ring_bits=64),
    ),
    members=4,
)
SEEDS = tuple(SignedSeed(seed=bytes([i]) * 32, sign=1 if i % 2 else -1) for i in range(1, 5))


def arbitrary_input() -> Encoded:
    rng = np.random.default_rng(7)
    words = {16: np.uint16, 32: np.uint32, 64: np.uint64}
    vectors = {
        ring_bits: rng.integers(0, 2**ring_bits - 1, LAYOUT.length(ring_bits), dtype=kind, endpoint=True)
        for ring_bits, kind in words.items()
    }
    return Encoded(vectors=vectors, clipped_total=0)


ENCODED = arbitrary_input()


def masker(seeds: tuple[SignedSeed, ...] = SEEDS, cohort_digest: bytes = COHORT) -> Masker:
    return Masker(layout=LAYOUT, cohort_digest=cohort_digest, seeds=seeds)


WHOLE = b"".join(masker().stream(ENCODED))


def keystream(seed: bytes, ring_bits: int) -> np.ndarray:
    out = np.empty(LAYOUT.length(ring_bits) * ring_bits // 8, np.uint8)
    prg.Keystream(prg.mask_key(seed, cohort_digest=COHORT, ring_bits=ring_bits)).fill(out)
    return out.view(f"<u{ring_bits // 8}")


def test_the_stream_is_input_plus_signed_keystreams_in_ascending_word_size() -> None:
    expected = b""
    for ring_bits in (16, 32, 64):
        masked = ENCODED.vectors[ring_bits].copy()
        for signed in SEEDS:
            masked = (
                masked + keystream(signed.seed, ring_bits)
                if signed.sign > 0
                else masked - keystream(signed.seed, ring_bits)
            )
        expected += masked.astype(f"<u{ring_bits // 8}").tobytes()
    assert expected == WHOLE


@settings(max_examples=60, deadline=None)
@given(st.integers(0, LAYOUT.total_bytes), st.integers(10_000, LAYOUT.total_bytes + 1))
def test_a_stream_resumes_at_any_offset_in_chunks_of_any_size(offset: int, chunk_bytes: int) -> None:
    chunks = list(masker().stream(ENCODED, offset_bytes=offset, chunk_bytes=chunk_bytes))
    assert b"".join(chunks) == WHOLE[offset:]
    assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    assert not chunks or 0 < len(chunks[-1]) <= chunk_bytes


@pytest.mark.parametrize(
    "offset", [*range(16), prg.BLOCK_BYTES + 5, prg.BLOCK_BYTES + 6, prg.BLOCK_BYTES + 7]
)
def test_a_stream_resumes_inside_words_and_at_the_seams(offset: int) -> None:
    for start in (offset, LAYOUT.total_bytes - offset - 1):
        assert b"".join(masker().stream(ENCODED, offset_bytes=start)) == WHOLE[start:]


def test_small_chunks_are_cut_from_one_block() -> None:
    start = LAYOUT.total_bytes - 45
    chunks = list(masker().stream(ENCODED, offset_bytes=start, chunk_bytes=7))
    assert [len(chunk) for chunk in chunks] == [7] * 6 + [3]
    assert b"".join(chunks) == WHOLE[start:]


def test_nothing_follows_the_end_of_the_stream() -> None:
    assert list(masker().stream(ENCODED, offset_bytes=LAYOUT.total_bytes)) == []
    last = list(masker().stream(ENCODED, offset_bytes=LAYOUT.total_bytes - 40, chunk_bytes=20))
    assert [len(chunk) for chunk in last] == [20, 20]


def test_the_input_is_left_alone() -> None:
    before = {ring_bits: vector.copy() for ring_bits, vector in ENCODED.vectors.items()}
    list(masker().stream(ENCODED))
    assert all(np.array_equal(before[ring_bits], ENCODED.vectors[ring_bits]) for ring_bits in before)


@pytest.mark.parametrize(
    ("offset", "chunk_bytes"), [(-1, 1024), (LAYOUT.total_bytes + 1, 1024), (0, 0), (0, -5)]
)
def test_offsets_and_chunk_sizes_out_of_range_are_our_own_mistake(offset: int, chunk_bytes: int) -> None:
    with pytest.raises(LocalProtocolError, match="offset or chunk size out of range"):
        masker().stream(ENCODED, offset_bytes=offset, chunk_bytes=chunk_bytes)


def test_an_input_of_another_layout_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="expected word sizes"):
        masker().stream(Encoded(vectors={32: ENCODED.vectors[32]}, clipped_total=0))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, prg.BLOCK_BYTES + 3, 999_983])
def test_any_number_of_workers_makes_the_same_stream(workers: int, chunk_bytes: int) -> None:
    for offset in (0, 5, prg.BLOCK_BYTES + 7):
        chunks = masker().stream(ENCODED, offset_bytes=offset, chunk_bytes=chunk_bytes, workers=workers)
        assert b"".join(chunks) == WHOLE[offset:]


class Recording:
    """Says which words were asked for, and holds up all from the `gate` on until it is opened."""

    def __init__(self, source: Encoded, *, gate: int = 1 << 60) -> None:
        self._source = source
        self._gate = gate
        self.opened = threading.Event()
        self.asked: list[tuple[int, int, int]] = []

    def check_layout(self, layout: Layout) -> None:
        self._source.check_layout(layout)

    def read(self, ring_bits: int, start: int, out: np.ndarray) -> None:
        self.asked.append((ring_bits, start, out.size))
        if ring_bits == 32 and start >= self._gate:
            assert self.opened.wait(30)
        self._source.read(ring_bits, start, out)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_chunk_leaves_before_the_last_is_masked(workers: int) -> None:
    source = Recording(ENCODED, gate=LAYOUT.length(32) - 10)
    stream = masker().stream(source, chunk_bytes=1 << 15, workers=workers)
    assert source.asked == []
    chunk_bytes = 1 << 15
    assert next(stream) == WHOLE[:chunk_bytes]  # and would never end if it needed the last
    read_bytes = sum(ring_bits * size // 8 for ring_bits, _, size in source.asked)
    assert read_bytes <= (workers + 2) * (chunk_bytes + 16)
    source.opened.set()
    assert b"".join(stream) == WHOLE[chunk_bytes:]


def test_a_stream_that_is_closed_early_reads_no_further() -> None:
    source = Recording(ENCODED)
    stream = masker().stream(source, chunk_bytes=1 << 15, workers=2)
    next(stream)
    stream.close()
    asked = len(source.asked)
    assert asked <= 4 + 1  # the first chunk reads two vectors
    assert next(stream, None) is None
    assert len(source.asked) == asked


def test_an_error_of_the_source_ends_the_stream() -> None:
    class Broken(Recording):
        def read(self, ring_bits: int, start: int, out: np.ndarray) -> None:
            raise LocalProtocolError("broken source")

    with pytest.raises(LocalProtocolError, match="broken source"):
        list(masker().stream(Broken(ENCODED), workers=2))


def test_masking_an_encoder_is_masking_what_it_encodes() -> None:
    rng = np.random.default_rng(3)
    values = {q.name: rng.normal(0, 0.3, q.shape).astype(np.float32) for q in LAYOUT.quantities}
    encoder = Encoder(values, layout=LAYOUT)
    expected = b"".join(masker().stream(encoder.encode()))
    for workers in (1, 2, 3):
        for chunk_bytes in (1 << 20, 77_777):
            stream = masker().stream(encoder, chunk_bytes=chunk_bytes, workers=workers)
            assert b"".join(stream) == expected
    other = Layout(quantities=LAYOUT.quantities, members=5)
    with pytest.raises(LocalProtocolError, match="the values are of another layout"):
        Masker(layout=other, cohort_digest=COHORT, seeds=SEEDS).stream(encoder)


def test_no_second_vector_is_made() -> None:
    """A few chunks and blocks in addition to the input, whether it is words or values."""
    size = 1 << 21
    quantity = Quantity(name="delta", shape=(size,), bound=8.0, ring_bits=32)
    layout = Layout(quantities=(quantity,), members=4)
    some = Masker(layout=layout, cohort_digest=COHORT, seeds=SEEDS)
    encoder = Encoder({"delta": np.zeros(size, np.float32)}, layout=layout)
    plan = UnmaskPlan(layout=layout, cohort_digest=COHORT, seeds=SEEDS, survivors=("a",))
    sums = ring.zeros(layout)
    chunk_bytes = 1 << 18
    for step in (
        lambda: deque(some.stream(encoder, chunk_bytes=chunk_bytes, workers=2), maxlen=0),
        lambda: deque(some.stream(ring.Encoded(vectors=sums, clipped_total=0), workers=2), maxlen=0),
        lambda: plan.unmask(sums, workers=2),
    ):
        tracemalloc.start()
        step()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < layout.total_bytes


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_any_number_of_workers_unmasks(workers: int) -> None:
    size = 2 * CHUNK_BYTES // 4 + 5
    quantities = tuple(
        Quantity(name=f"w{ring_bits}", shape=(size,), bound=8.0, ring_bits=ring_bits)
        for ring_bits in (16, 32)
    )
    layout = Layout(quantities=quantities, members=4)
    plan = UnmaskPlan(layout=layout, cohort_digest=COHORT, seeds=SEEDS, survivors=("a",))
    sums = ring.zeros(layout)
    plan.unmask(sums, workers=workers)
    empty = Encoded(vectors=ring.zeros(layout), clipped_total=0)
    stream = b"".join(Masker(layout=layout, cohort_digest=COHORT, seeds=SEEDS).stream(empty))
    for ring_bits, expected in vectors_from_stream(layout, stream).items():
        assert np.array_equal(sums[ring_bits], expected)


def test_a_plan_with_opposite_signs_unmasks_in_place() -> None:
    sums = {ring_bits: vector.copy() for ring_bits, vector in vectors_from_stream(LAYOUT, WHOLE).items()}
    same = dict(sums)
    opposite = tuple(SignedSeed(seed=signed.seed, sign=-signed.sign) for signed in SEEDS)
    plan = UnmaskPlan(layout=LAYOUT, cohort_digest=COHORT, seeds=opposite, survivors=("a",))
    plan.unmask(sums)
    assert all(sums[ring_bits] is same[ring_bits] for ring_bits in sums)
    assert all(np.array_equal(sums[ring_bits], ENCODED.vectors[ring_bits]) for ring_bits in sums)
    with pytest.raises(LocalProtocolError, match="expected word sizes"):
        plan.unmask({32: sums[32]})


def test_pairwise_masks_cancel_in_the_sum() -> None:
    pair, self_a, self_b = os.urandom(32), os.urandom(32), os.urandom(32)
    plus, minus = SignedSeed(seed=pair, sign=1), SignedSeed(seed=pair, sign=-1)
    total = ring.zeros(LAYOUT)
    for seeds in ((plus, SignedSeed(seed=self_a, sign=1)), (minus, SignedSeed(seed=self_b, sign=1))):
        stream = b"".join(masker(seeds).stream(ENCODED))
        ring.add_into(total, vectors_from_stream(LAYOUT, stream))
    own = tuple(SignedSeed(seed=seed, sign=-1) for seed in (self_a, self_b))
    UnmaskPlan(layout=LAYOUT, cohort_digest=COHORT, seeds=own, survivors=("a", "b")).unmask(total)
    for ring_bits, vector in ENCODED.vectors.items():
        assert np.array_equal(total[ring_bits], vector + vector)


def test_one_seed_gives_unrelated_streams_under_two_word_sizes() -> None:
    """One key stream for two vectors would show their difference. Of 2^20 bits half agree by chance,
    with a standard deviation of 512; alarm at 6 of them, falsely once in 5e8 keys."""
    zeros = Layout(
        quantities=tuple(
            Quantity(name=f"w{ring_bits}", shape=((1 << 20) // ring_bits,), bound=1.0, ring_bits=ring_bits)
            for ring_bits in (16, 32, 64)
        ),
        members=4,
    )
    seed = SignedSeed(seed=os.urandom(32), sign=1)
    empty = Encoded(vectors=ring.zeros(zeros), clipped_total=0)
    stream = b"".join(Masker(layout=zeros, cohort_digest=COHORT, seeds=(seed,)).stream(empty))
    vectors = [vector.view(np.uint8) for vector in vectors_from_stream(zeros, stream).values()]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        equal_bits = (1 << 20) - int(np.bitwise_count(vectors[one] ^ vectors[other]).sum())
        assert abs(equal_bits - (1 << 19)) < 6 * 512


def test_another_cohort_gives_another_stream() -> None:
    assert b"".join(masker(cohort_digest=bytes(32)).stream(ENCODED)) != WHOLE


def test_without_seeds_the_stream_is_the_input() -> None:
    vectors = vectors_from_stream(LAYOUT, b"".join(masker(()).stream(ENCODED)))
    assert all(np.array_equal(vectors[ring_bits], ENCODED.vectors[ring_bits]) for ring_bits in vectors)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_vectors_are_views_of_the_stream(kind: type) -> None:
    data = kind(WHOLE)
    vectors = vectors_from_stream(LAYOUT, data)
    assert all(not vector.flags.owndata for vector in vectors.values())
    assert list(vectors) == [16, 32, 64]


@pytest.mark.parametrize("size", [0, LAYOUT.total_bytes - 1, LAYOUT.total_bytes + 1])
def test_a_stream_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"expected {LAYOUT.total_bytes} bytes, got {size}"):
        vectors_from_stream(LAYOUT, bytes(size))


def test_a_sign_is_one_or_minus_one() -> None:
    with pytest.raises(LocalProtocolError, match="expected a sign of 1 or -1, got 0"):
        SignedSeed(seed=bytes(32), sign=0)


def test_seeds_show_in_no_repr() -> None:
    seed = SignedSeed(seed=b"planted-seed-planted-seed-plante", sign=1)
    plan = UnmaskPlan(layout=LAYOUT, cohort_digest=COHORT, seeds=(seed,), survivors=("a",))
    for shown in (repr(seed), repr(plan), repr(masker((seed,))), str(plan)):
        assert "planted" not in shown
        assert seed.seed.hex() not in shown
