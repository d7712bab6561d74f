"""Sums of uploads, and their masks taken off over files."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from coordinator.jobs.aggregate import MaskedSum, revealed_file, unmask_stored
from coordinator.storage.sum_files import SumFiles
from crypto.errors import RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import SignedSeed, UnmaskPlan, tagged_stream, vectors_from_stream
from crypto.masking.stored_sum import StoredParts

# longer than one block in each word size, and no multiple of it
LAYOUT = Layout(
    members=3,
    quantities=(
        Quantity(name="half", shape=(700_001,), bound=1.0, ring_bits=16, is_tagged=True),
        Quantity(name="delta", shape=(300_003,), bound=1.0, ring_bits=32),
        Quantity(name="total", shape=(140_001,), bound=1.0, ring_bits=64, is_tagged=True),
    ),
)
SESSION = b"what UNMASK resumes from"


def random_vectors(seed):
    rng = np.random.default_rng(seed)
    return {
        bits: np.frombuffer(rng.bytes(LAYOUT.length(bits) * bits // 8), ring.WORD_TYPES[bits])
        for bits in LAYOUT.ring_sizes
    }


def stream_of(vectors):
    return b"".join(vectors[ring_bits].tobytes() for ring_bits in LAYOUT.ring_sizes)


@pytest.fixture
def files(tmp_path):
    files = SumFiles(tmp_path / "sums", sequence=7, attempt=2)
    files.store([b"sum"], SESSION)
    return files


def test_sum_of_uploads_is_their_sum_modulo_each_word(files):
    parts = [random_vectors(seed) for seed in range(3)]
    total = MaskedSum(LAYOUT)
    for part in parts:
        total.add(memoryview(stream_of(part)))
    files.store(total.parts(), SESSION)

    loaded = vectors_from_stream(LAYOUT, files.masked.read_bytes())
    for ring_bits in LAYOUT.ring_sizes:
        expected = sum(part[ring_bits].astype(object) for part in parts) % (1 << ring_bits)
        assert (loaded[ring_bits].astype(object) == expected).all()


def test_session_is_read_by_the_digest_under_which_it_was_stored(files):
    digest = files.store([b"sum"], SESSION)
    assert digest == hashlib.sha256(SESSION).digest()
    assert files.read_session(digest) == SESSION
    files.session.write_bytes(SESSION + b"!")
    with pytest.raises(RemoteProtocolError, match="7-2.session: damaged"):
        files.read_session(digest)


def test_masks_are_taken_off_into_two_files_and_the_stored_sum_stays(files):
    masked, seed = random_vectors(7), b"s" * 32
    files.store([stream_of(masked)], SESSION)
    seeds = (SignedSeed(seed=seed, sign=-1),)
    plan = UnmaskPlan(layout=LAYOUT, cohort_digest=bytes(32), seeds=seeds, survivors=("a",))

    shown = unmask_stored(files, plan)

    expected = {ring_bits: vector_L.copy() for ring_bits, vector_L in masked.items()}
    plan.unmask(expected)
    assert shown == revealed_file(files, LAYOUT)
    assert shown.path.read_bytes() == b"".join(tagged_stream(LAYOUT, expected))
    assert shown.digest == hashlib.sha256(shown.path.read_bytes()).digest()
    found = StoredParts(layout=LAYOUT, tagged=files.tagged, untagged=files.untagged)
    for name, values in ring.decode(expected, layout=LAYOUT).items():
        np.testing.assert_array_equal(found[name], values)
    assert files.masked.read_bytes() == stream_of(masked)


@pytest.mark.parametrize("keeps_tagged", [True, False])
def test_what_silos_are_asked_to_fetch_stays_when_the_rest_is_removed(files, keeps_tagged):
    for path in (files.masked, files.session, files.tagged, files.untagged):
        path.write_bytes(b"x")
    for _ in range(2):
        files.remove(keeps_tagged=keeps_tagged)
        left = [path.name for path in files.masked.parent.iterdir()]
        assert left == (["7-2.tagged"] if keeps_tagged else [])


@pytest.mark.parametrize(
    ("keeps_tagged", "left"), [(False, {"70-1.masked"}), (True, {"70-1.masked", "7-2.tagged"})]
)
def test_end_of_a_phase_removes_what_a_restart_left_of_its_earlier_attempt(keeps_tagged, left, tmp_path):
    # a restart during the store of attempt 1 kept its sum, and attempt 2 removed its own alone
    for sequence, attempt in ((7, 1), (7, 2), (70, 1)):
        files = SumFiles(tmp_path, sequence=sequence, attempt=attempt)
        files.store([b"masked"], b"session")
    files.session.unlink()
    ended = SumFiles(tmp_path, sequence=7, attempt=2)
    ended.tagged.write_bytes(b"sum")

    ended.remove(keeps_tagged=keeps_tagged)

    assert {path.name for path in tmp_path.iterdir()} == left
