"""Sums of streams, block by block and over a file."""

from __future__ import annotations

import numpy as np

from coordinator.jobs import aggregate
from coordinator.jobs.aggregate import MaskedSum, store_vectors, unmask_stored
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import SignedSeed, UnmaskPlan, vectors_from_stream

# longer than one block in each word size, and no multiple of it
LAYOUT = Layout(
    members=3,
    quantities=(
        Quantity(name="half", shape=(700_001,), bound=1.0, ring_bits=16),
        Quantity(name="delta", shape=(300_003,), bound=1.0, ring_bits=32),
        Quantity(name="total", shape=(140_001,), bound=1.0, ring_bits=64),
    ),
)


def random_vectors(seed):
    rng = np.random.default_rng(seed)
    return {
        ring_bits: rng.integers(
            0, 1 << ring_bits, LAYOUT.length(ring_bits), dtype=ring.WORD_TYPES[ring_bits], endpoint=False
        )
        if ring_bits < 64
        else rng.integers(0, np.iinfo(np.uint64).max, LAYOUT.length(ring_bits), dtype=np.uint64)
        for ring_bits in LAYOUT.ring_sizes
    }


def stored_vectors(path):
    return vectors_from_stream(LAYOUT, path.read_bytes())


def test_sum_of_spooled_streams_is_their_sum_modulo_each_word(tmp_path):
    parts = [random_vectors(seed) for seed in range(3)]
    total = MaskedSum(LAYOUT)
    for place, part in enumerate(parts):
        path = tmp_path / f"{place}.part"
        path.write_bytes(b"".join(part[ring_bits].tobytes() for ring_bits in LAYOUT.ring_sizes))
        assert path.stat().st_size == LAYOUT.total_bytes > aggregate.BLOCK_BYTES
        total.add(path)
    total.store(tmp_path / "sum")

    loaded = stored_vectors(tmp_path / "sum")
    for ring_bits in LAYOUT.ring_sizes:
        expected = sum(part[ring_bits].astype(object) for part in parts) % (1 << ring_bits)
        assert (loaded[ring_bits].astype(object) == expected).all()


def test_masks_are_taken_off_a_copy_of_the_stored_sum(tmp_path):
    vectors, seed = random_vectors(7), b"s" * 32
    store_vectors(tmp_path / "sum", vectors, layout=LAYOUT)

    def unmask(source, target, sign):
        seeds = (SignedSeed(seed=seed, sign=sign),)
        plan = UnmaskPlan(layout=LAYOUT, cohort_digest=bytes(32), seeds=seeds, survivors=("a",))
        unmask_stored(tmp_path / source, tmp_path / target, plan=plan)
        return stored_vectors(tmp_path / target)

    once = unmask("sum", "once", 1)
    back = unmask("once", "back", -1)
    for ring_bits in LAYOUT.ring_sizes:
        assert (once[ring_bits] != vectors[ring_bits]).any()
        np.testing.assert_array_equal(back[ring_bits], vectors[ring_bits])
        np.testing.assert_array_equal(stored_vectors(tmp_path / "sum")[ring_bits], vectors[ring_bits])
