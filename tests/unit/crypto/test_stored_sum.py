"""A revealed sum on disk: decoded a quantity at a time, and its tagged part as silos fetch it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.projection import Projection
from crypto.masking.masks import SignedSeed, UnmaskPlan, tagged_stream
from crypto.masking.stored_sum import StoredParts, StoredSum

LAYOUT = Layout(
    members=3,
    quantities=(
        Quantity(name="half", shape=(70_001,), bound=1.0, ring_bits=16),
        Quantity(name="delta", shape=(300_003,), bound=1.0, ring_bits=32, is_tagged=True),
        Quantity(name="total", shape=(14_001,), bound=1.0, ring_bits=64),
        Quantity(name="mean", shape=(5, 2), bound=4.0, ring_bits=64, is_tagged=True),
        Quantity(
            name="rotated",
            shape=(100,),
            bound=1.0,
            ring_bits=16,
            projection=Projection.of(100, seed=bytes(32)),
            is_tagged=True,
        ),
        Quantity(name="tested", bound=100.0, is_count=True),
        Quantity(name="samples", bound=100.0, is_count=True, is_tagged=True),
    ),
)


def random_vectors(layout: Layout, seed: int) -> dict[int, ring.Words]:
    rng = np.random.default_rng(seed)
    return {
        bits: np.frombuffer(rng.bytes(layout.length(bits) * bits // 8), ring.WORD_TYPES[bits])
        for bits in layout.ring_sizes
    }


def stored(path: Path, vectors: dict[int, ring.Words]) -> Path:
    path.write_bytes(b"".join(vectors[bits].astype(f"<u{bits // 8}").tobytes() for bits in sorted(vectors)))
    return path


def test_stored_sum_decodes_each_quantity_as_the_ring_does_and_holds_none(tmp_path: Path) -> None:
    vectors = random_vectors(LAYOUT, 8)
    decoded = ring.decode(vectors, layout=LAYOUT)

    found = StoredSum(stored(tmp_path / "sum", vectors), layout=LAYOUT)

    assert list(found) == [quantity.name for quantity in LAYOUT.quantities]
    for name, value in found.items():
        assert value.dtype == decoded[name].dtype
        np.testing.assert_array_equal(value, decoded[name])
        value[...] = 0  # the copy is the caller's own
        np.testing.assert_array_equal(found[name], decoded[name])


def test_stored_sum_takes_no_memory_until_it_is_asked_and_then_one_decoded_quantity(tmp_path: Path) -> None:
    path = stored(tmp_path / "sum", random_vectors(LAYOUT, 9))
    tracemalloc.start()
    found = StoredSum(path, layout=LAYOUT)
    opened_bytes, _ = tracemalloc.get_traced_memory()
    decoded_bytes = found["delta"].nbytes
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened_bytes < 100_000
    assert peak_bytes < decoded_bytes + 100_000


def test_pieces_of_a_quantity_are_those_of_the_whole_and_hold_no_more(tmp_path: Path) -> None:
    found = StoredSum(stored(tmp_path / "sum", random_vectors(LAYOUT, 11)), layout=LAYOUT)
    for name, value in found.items():
        whole_N, pieces = value.reshape(-1), found.pieces(name)
        for place in (slice(0, 1), slice(whole_N.size // 3, whole_N.size), slice(0, whole_N.size)):
            assert pieces(place).dtype == whole_N.dtype
            np.testing.assert_array_equal(pieces(place), whole_N[place])
    delta = found.pieces("delta")
    tracemalloc.start()
    delta(slice(100_000, 101_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20_000  # of 2.4 MB


def test_the_tagged_part_is_a_stream_of_its_own_layout_with_the_same_values(tmp_path: Path) -> None:
    vectors = random_vectors(LAYOUT, 10)
    assert LAYOUT.tagged is not None

    stream = b"".join(tagged_stream(LAYOUT, vectors))
    (tmp_path / "tagged").write_bytes(stream)
    found = StoredSum(tmp_path / "tagged", layout=LAYOUT.tagged)

    assert len(stream) == LAYOUT.tagged.total_bytes
    expected = ring.decode(vectors, layout=LAYOUT)
    assert sorted(found) == ["delta", "mean", "rotated", "samples"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])


def test_what_stands_behind_the_last_quantity_of_a_vector_is_the_tagged_streams_end(tmp_path: Path) -> None:
    vectors = random_vectors(LAYOUT, 11)
    stream = b"".join(tagged_stream(LAYOUT, vectors))
    behind_L = vectors[64][sum(each.size for each in LAYOUT.quantities if each.ring_bits == 64) :]
    last_L = vectors[64][LAYOUT.slices(64)["samples"]]
    end = last_L.tobytes() + behind_L.tobytes()
    assert stream.endswith(end)


def test_a_sum_of_another_length_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "sum", random_vectors(LAYOUT, 12))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RemoteProtocolError, match=f"expected {LAYOUT.total_bytes} bytes"):
        StoredSum(path, layout=LAYOUT)


def plan_for(layout: Layout) -> UnmaskPlan:
    seeds = tuple(SignedSeed(seed=bytes([place]) * 32, sign=sign) for place, sign in enumerate((-1, 1, -1)))
    return UnmaskPlan(layout=layout, cohort_digest=bytes(32), seeds=seeds, survivors=("a",))


def test_both_parts_of_an_unmasked_stream_are_the_sum_that_is_unmasked_in_place(tmp_path: Path) -> None:
    masked = random_vectors(LAYOUT, 13)
    before = {bits: vector_L.copy() for bits, vector_L in masked.items()}
    unmasked = {bits: vector_L.copy() for bits, vector_L in masked.items()}
    plan_for(LAYOUT).unmask(unmasked)
    expected = ring.decode(unmasked, layout=LAYOUT)

    paths = {True: tmp_path / "tagged", False: tmp_path / "untagged"}
    for tagged, path in paths.items():
        path.write_bytes(b"".join(plan_for(LAYOUT).stream(masked, tagged=tagged)))
    found = StoredParts(layout=LAYOUT, tagged=paths[True], untagged=paths[False])

    assert paths[True].read_bytes() == b"".join(tagged_stream(LAYOUT, unmasked))
    assert list(found) == [quantity.name for quantity in LAYOUT.quantities]
    assert "tags" not in found
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
    for bits, vector_L in before.items():
        np.testing.assert_array_equal(masked[bits], vector_L)


@pytest.mark.parametrize("is_tagged", [True, False])
def test_a_sum_that_is_tagged_whole_or_not_at_all_is_one_part(tmp_path: Path, is_tagged: bool) -> None:
    quantity = Quantity(name="delta", shape=(5,), bound=1.0, ring_bits=32, is_tagged=is_tagged)
    layout = Layout(quantities=(quantity,), members=3)
    masked = random_vectors(layout, 14)
    (tmp_path / "part").write_bytes(b"".join(plan_for(layout).stream(masked, tagged=is_tagged)))
    assert list(plan_for(layout).stream(masked, tagged=not is_tagged)) == []

    found = StoredParts(layout=layout, tagged=tmp_path / "part", untagged=tmp_path / "part")

    unmasked = {bits: vector_L.copy() for bits, vector_L in masked.items()}
    plan_for(layout).unmask(unmasked)
    np.testing.assert_array_equal(found["delta"], ring.decode(unmasked, layout=layout)["delta"])
