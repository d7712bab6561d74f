from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import encoding, prg
from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import TAG_WORDS, Layout, Quantity
from crypto.fixed_point.ring import SIGNED_TYPES, Encoded
from crypto.masking import tags
from crypto.masking.masks import Masker, SignedSeed, UnmaskPlan, tagged_stream, vectors_from_stream
from crypto.masking.tags import BLOCK_WORDS, MAX_MAGNITUDE, Tagger
from tests.support.soak import examples

KEY = bytes(range(32))
NAMES = ("a", "b", "c", "d")
# tagged quantities of every word size, out of order and between others; the 32-bit one spans three blocks
LAYOUT = Layout(
    quantities=(
        Quantity(name="n", shape=(2,), bound=1000, is_count=True, is_tagged=True),
        Quantity(name="half", shape=(3,), bound=1.0, ring_bits=16),
        Quantity(name="small", shape=(5,), bound=1.0, ring_bits=16, is_tagged=True),
        Quantity(name="loss", shape=(7,), bound=8.0),
        Quantity(name="delta", shape=(2 * BLOCK_WORDS + 11,), bound=8.0, ring_bits=32, is_tagged=True),
        Quantity(name="moments", shape=(2, 3), bound=64.0, is_tagged=True),
        Quantity(name="rest", shape=(4,), bound=8.0, ring_bits=32),
        Quantity(name="small-too", shape=(2,), bound=1.0, ring_bits=16, is_tagged=True),
    ),
    members=4,
)
SMALL = Layout(
    quantities=tuple(
        Quantity(name=f"w{ring_bits}", shape=(3,), bound=2.0, ring_bits=ring_bits, is_tagged=True)
        for ring_bits in (16, 32, 64)
    ),
    members=4,
)
TAGGED = SMALL.tagged
assert TAGGED is not None


def some_values(layout: Layout, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        each.name: rng.integers(-1000, 1000, each.shape)
        if each.is_count
        else rng.uniform(-each.bound, each.bound, each.shape)
        for each in layout.quantities
    }


def encoders(layout: Layout) -> dict[str, Encoder]:
    return {
        name: Encoder(
            some_values(layout, seed), layout=layout, random=lambda size, seed=seed: bytes([seed]) * size
        )
        for seed, name in enumerate(NAMES)
    }


def tagger(layout: Layout, name: str, key: bytes = KEY) -> Tagger:
    return Tagger(layout=layout, sum_key=key, name=name)


def summed(layout: Layout, names: tuple[str, ...] = NAMES, key: bytes = KEY) -> dict[int, ring.Words]:
    """The sum of these silos' inputs and tags."""
    total = ring.zeros(layout)
    for name, encoder in encoders(layout).items():
        if name in names:
            ring.add_into(total, encoder.encode().vectors)
            total[64][-TAG_WORDS:] += tagger(layout, name, key).tags(encoder)
    return total


def tagged_part(layout: Layout, sums: dict[int, ring.Words]) -> dict[int, ring.Words]:
    assert layout.tagged is not None
    stream = b"".join(tagged_stream(layout, sums))
    return {bits: words.copy() for bits, words in vectors_from_stream(layout.tagged, stream).items()}


def check(
    sums: dict[int, ring.Words], names: tuple[str, ...] = NAMES, *, layout: Layout = TAGGED, key: bytes = KEY
) -> None:
    tags.check(sums, layout=layout, sum_key=key, survivors=names)


def assert_refused(sums: dict[int, ring.Words], names: tuple[str, ...] = NAMES, key: bytes = KEY) -> None:
    with pytest.raises(RemoteProtocolError, match="sum: its tags are not those of") as caught:
        check(sums, names, key=key)
    assert caught.value.code is Refusal.SUM


def reference(words: list[int], wide: list[int], key: bytes, name: str) -> list[int]:
    """docs/protocol.md 5.9 in whole numbers. words: all that are tagged, sign-extended; wide: of 64 bits."""
    total = []
    for number, over in enumerate((words, words, wide, wide), start=1):
        factor = np.zeros(len(over), "<u8")
        prg.Keystream(tags._derive(key, encoding.encode("tag-factors", number))).fill(factor.view(np.uint8))
        total.append(sum(int(a) * x for a, x in zip(factor, over, strict=True)))
    return [(one + beta) % 2**64 for one, beta in zip(total, tags.offsets(key, name), strict=True)]


def test_tags_are_products_of_sign_extended_words_and_an_offset_of_the_silo() -> None:
    encoder = encoders(LAYOUT)["b"]
    vectors = encoder.encode().vectors
    words: list[int] = []
    for ring_bits in (16, 32, 64):
        signed = vectors[ring_bits].view(SIGNED_TYPES[ring_bits])
        before = len(words)
        for quantity in LAYOUT.quantities:
            if quantity.is_tagged and quantity.ring_bits == ring_bits:
                words += signed[LAYOUT.slices(ring_bits)[quantity.name]].tolist()
        wide = words[before:]
    assert len(wide) == 8
    assert min(words) < 0 < max(words)
    assert tagger(LAYOUT, "b").tags(encoder).tolist() == reference(words, wide, KEY, "b")


@pytest.mark.parametrize("ring_bits", [16, 32, 64])
@pytest.mark.parametrize("value", [-2.0, -1.0, 2.0])
def test_a_negative_word_is_extended_with_its_sign(ring_bits: int, value: float) -> None:
    layout = Layout(
        quantities=(Quantity(name="x", bound=2.0, ring_bits=ring_bits, is_tagged=True),), members=4
    )
    encoder = Encoder({"x": value}, layout=layout)
    number = int(value * layout.quantities[0].scale(4))
    wide = [number] if ring_bits == 64 else []
    assert tagger(layout, "a").tags(encoder).tolist() == reference([number], wide, KEY, "a")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_words_and_values_have_the_same_tags_in_any_number_of_threads(workers: int) -> None:
    encoder = encoders(LAYOUT)["a"]
    expected = tagger(LAYOUT, "a").tags(encoder).tolist()
    assert tagger(LAYOUT, "a").tags(encoder.encode(), workers=workers).tolist() == expected
    assert tagger(LAYOUT, "a").tags(encoder, workers=workers).tolist() == expected
    assert tagger(LAYOUT, "b").tags(encoder, workers=workers).tolist() != expected
    assert tagger(LAYOUT, "a", bytes(32)).tags(encoder, workers=workers).tolist() != expected


def test_a_true_sum_passes_and_decodes_like_the_whole() -> None:
    for names in (NAMES, NAMES[:3], NAMES[1:2]):
        sums = summed(LAYOUT, names)
        part = tagged_part(LAYOUT, sums)
        assert LAYOUT.tagged is not None
        check(part, names, layout=LAYOUT.tagged)
        whole = ring.decode(sums, layout=LAYOUT)
        for name, value in ring.decode(part, layout=LAYOUT.tagged).items():
            assert np.array_equal(value, whole[name])


def test_words_that_are_not_tagged_do_not_matter() -> None:
    sums = summed(LAYOUT)
    sums[16][:3] += np.uint16(1)
    sums[64][LAYOUT.slices(64)["loss"]] += np.uint64(1)
    assert LAYOUT.tagged is not None
    check(tagged_part(LAYOUT, sums), layout=LAYOUT.tagged)


def add_one(sums: dict[int, ring.Words], ring_bits: int, place: int) -> None:
    sums[ring_bits][place] += ring.WORD_TYPES[ring_bits].type(1)


def test_every_changed_word_is_found() -> None:
    true = summed(SMALL)
    check(tagged_part(SMALL, true))
    for ring_bits in (16, 32, 64):
        for place in range(SMALL.length(ring_bits)):  # tag words, too
            sums = tagged_part(SMALL, true)
            add_one(sums, ring_bits, place)
            assert_refused(sums)


def test_the_first_and_the_last_word_of_every_block_are_covered() -> None:
    true = tagged_part(LAYOUT, summed(LAYOUT))
    assert LAYOUT.tagged is not None
    for place in (
        0,
        BLOCK_WORDS - 1,
        BLOCK_WORDS,
        2 * BLOCK_WORDS - 1,
        2 * BLOCK_WORDS,
        2 * BLOCK_WORDS + 10,
    ):
        sums = {ring_bits: words.copy() for ring_bits, words in true.items()}
        add_one(sums, 32, place)
        with pytest.raises(RemoteProtocolError, match="sum: its tags"):
            check(sums, layout=LAYOUT.tagged)


def swap(sums: dict[int, ring.Words]) -> None:
    sums[32][[0, 1]] = sums[32][[1, 0]]


def scale(sums: dict[int, ring.Words]) -> None:
    for words in sums.values():
        words *= words.dtype.type(2)


def negate(sums: dict[int, ring.Words]) -> None:
    for words in sums.values():
        np.negative(words, out=words)


def drop_one(sums: dict[int, ring.Words]) -> None:
    """The coordinator takes one silo's input out of the sum, and cannot know its tags."""
    for ring_bits, words in tagged_part(SMALL, {**encoders(SMALL)["c"].encode().vectors}).items():
        sums[ring_bits] -= words


def drop_one_with_its_tags(sums: dict[int, ring.Words]) -> None:
    drop_one(sums)
    sums[64][-TAG_WORDS:] -= tagger(SMALL, "c").tags(encoders(SMALL)["c"])


def clear(sums: dict[int, ring.Words]) -> None:
    for words in sums.values():
        words[:] = 0


@pytest.mark.parametrize("tamper", [swap, scale, negate, drop_one, drop_one_with_its_tags, clear])
def test_a_tampered_sum_is_refused(tamper: Callable[[dict[int, ring.Words]], None]) -> None:
    sums = tagged_part(SMALL, summed(SMALL))
    check(sums)  # the control
    tamper(sums)
    if tamper is scale:
        assert abs(sums[64][:3].view(np.int64)).max() <= MAX_MAGNITUDE  # the bound is not what finds it
    assert_refused(sums)


def test_survivors_other_than_those_of_the_sum_are_found() -> None:
    sums = tagged_part(SMALL, summed(SMALL, NAMES[:3]))
    check(sums, NAMES[:3])
    for names in (NAMES, NAMES[:2], (), ("a", "b", "d"), ("a", "b", "c", "c")):
        assert_refused(sums, names)
    assert_refused(sums, NAMES[:3], key=bytes(32))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("place", [0, 2])
def test_a_64_bit_word_beyond_its_room_is_refused_before_its_tags_are(sign: int, place: int) -> None:
    """True tags, so that the bound alone is what refuses; a silo may have sent such a word."""
    for magnitude, is_true in ((MAX_MAGNITUDE, True), (MAX_MAGNITUDE + 1, False), (1 << 62, False)):
        sums = tagged_part(SMALL, summed(SMALL))
        sums[64][place] = np.int64(sign * magnitude).view(np.uint64)
        tag = Encoded(vectors=sums, clipped_total=0)
        offsets = [tags.offsets(KEY, name) for name in NAMES[1:]]
        words = [int(word) for word in tagger(SMALL, "a").tags(tag)]
        total = [sum(each) % 2**64 for each in zip(words, *offsets, strict=True)]
        sums[64][-TAG_WORDS:] = total
        if is_true:
            check(sums)
            continue
        with pytest.raises(
            RemoteProtocolError, match=r"sum: a tagged word of 64 bits is beyond 2\^47 - 1"
        ) as caught:
            check(sums)
        assert caught.value.code is Refusal.SUM


def test_no_sum_of_inputs_at_their_bound_leaves_its_room() -> None:
    """Both bounds, all silos at once, in every word size: the sign of the sum is that of the inputs."""
    for value in (-2.0, 2.0):
        total = ring.zeros(SMALL)
        for name in NAMES:
            encoder = Encoder({each.name: np.full(3, value) for each in SMALL.quantities}, layout=SMALL)
            ring.add_into(total, encoder.encode().vectors)
            total[64][-TAG_WORDS:] += tagger(SMALL, name).tags(encoder)
        check(tagged_part(SMALL, total))


@given(st.data())
@examples(60)
def test_no_difference_passes_however_many_times_two_divides_it(data: st.DataObject) -> None:
    """The worst differences are high powers of two; even of those one in 2^66 passes."""
    sums = tagged_part(SMALL, summed(SMALL))
    is_changed = False
    for ring_bits in (16, 32, 64):
        for place in range(3):
            most = 47 if ring_bits == 64 else ring_bits - 1
            power = data.draw(st.sampled_from([None, *range(most + 1)]))
            odd = data.draw(st.sampled_from([1, 3, -1]))
            if power is None:
                continue
            before = int(sums[ring_bits][place])
            after = (before + (odd << power)) % 2**ring_bits
            signed = after - 2**64 if after >= 2**63 else after
            if ring_bits == 64 and abs(signed) > MAX_MAGNITUDE:
                continue
            is_changed |= after != before
            sums[ring_bits][place] = after
    shifts = [data.draw(st.sampled_from([0, 0, 1 << 63, 1 << 62, 1])) for _ in range(TAG_WORDS)]
    sums[64][-TAG_WORDS:] += np.array(shifts, np.uint64)
    if is_changed or any(shifts):
        assert_refused(sums)
    else:
        check(sums)


@settings(deadline=None)
@given(st.integers(0, SMALL.total_bytes), st.integers(1, SMALL.total_bytes))
def test_a_masked_stream_carries_the_tags_wherever_it_is_cut(offset: int, chunk_bytes: int) -> None:
    encoder, seed = encoders(SMALL)["a"], SignedSeed(seed=bytes(32), sign=1)
    masker = Masker(layout=SMALL, cohort_digest=bytes(32), seeds=(seed,), tagger=tagger(SMALL, "a"))
    whole = b"".join(masker.stream(encoder))
    assert b"".join(masker.stream(encoder, offset_bytes=offset, chunk_bytes=chunk_bytes)) == whole[offset:]
    sums = {bits: words.copy() for bits, words in vectors_from_stream(SMALL, whole).items()}
    opposite = (SignedSeed(seed=seed.seed, sign=-1),)
    UnmaskPlan(layout=SMALL, cohort_digest=bytes(32), seeds=opposite, survivors=("a",)).unmask(sums)
    check(tagged_part(SMALL, sums), ("a",))


class Counting:
    """An input that counts how many of its words were read."""

    def __init__(self, source: Encoder) -> None:
        self._source = source
        self.read_words = 0

    def check_layout(self, layout: Layout) -> None:
        self._source.check_layout(layout)

    def read(self, ring_bits: int, start: int, out: ring.Words) -> None:
        self.read_words += out.size
        self._source.read(ring_bits, start, out)


def test_a_resumed_stream_does_not_compute_its_tags_again() -> None:
    source: Any = Counting(encoders(SMALL)["a"])
    seeds = (SignedSeed(seed=bytes(32), sign=1),)
    masker = Masker(layout=SMALL, cohort_digest=bytes(32), seeds=seeds, tagger=tagger(SMALL, "a"))
    assert list(masker.stream(source, offset_bytes=SMALL.total_bytes)) == []
    stream = masker.stream(source)
    assert source.read_words == 0  # nothing is computed before the first chunk is asked for
    list(stream)
    words = sum(SMALL.length(ring_bits) for ring_bits in SMALL.ring_sizes)
    assert source.read_words == words + 9
    list(masker.stream(source))
    assert source.read_words == 2 * words + 9
    list(masker.stream(encoders(SMALL)["b"]))  # of another input they are others
    assert masker.tagger is not None
    other = tagger(SMALL, "a").tags(encoders(SMALL)["b"])
    assert np.array_equal(masker.tagger.tags(encoders(SMALL)["b"]), other)


def test_tags_stand_where_a_quantity_is_tagged_and_only_there() -> None:
    plain = Layout(quantities=(Quantity(name="x", bound=1.0),), members=4)
    with pytest.raises(LocalProtocolError, match="masking: there are tags where a quantity is tagged"):
        Masker(layout=SMALL, cohort_digest=bytes(32), seeds=())
    with pytest.raises(LocalProtocolError, match="masking: there are tags where a quantity is tagged"):
        Masker(layout=plain, cohort_digest=bytes(32), seeds=(), tagger=tagger(SMALL, "a"))
    with pytest.raises(LocalProtocolError, match="tags: no quantity of the layout is tagged"):
        tagger(plain, "a")
    with pytest.raises(LocalProtocolError, match="masking: no quantity of the layout is tagged"):
        list(tagged_stream(plain, ring.zeros(plain)))


def test_a_sum_mapped_from_a_file_is_checked_block_by_block(tmp_path: Path) -> None:
    size = 1 << 21
    layout = Layout(
        quantities=(Quantity(name="delta", shape=(size,), bound=8.0, ring_bits=32, is_tagged=True),),
        members=4,
    )
    assert layout.tagged == layout
    encoder = Encoder({"delta": np.full(size, 0.3, np.float32)}, layout=layout)
    vectors = encoder.encode().vectors
    tracemalloc.start()
    vectors[64][:] = tagger(layout, "a").tags(encoder, workers=2)
    assert tracemalloc.get_traced_memory()[1] < layout.total_bytes
    tracemalloc.stop()
    (tmp_path / "sum").write_bytes(b"".join(tagged_stream(layout, vectors)))
    mapped = np.memmap(tmp_path / "sum", np.uint8, mode="r")
    tracemalloc.start()
    sums = vectors_from_stream(layout, mapped.data)
    tags.check(sums, layout=layout, sum_key=KEY, survivors=("a",), workers=2)
    assert tracemalloc.get_traced_memory()[1] < layout.total_bytes
    tracemalloc.stop()


def test_nothing_shows_the_key() -> None:
    seeds = (SignedSeed(seed=bytes(32), sign=1),)
    masker = Masker(layout=SMALL, cohort_digest=bytes(32), seeds=seeds, tagger=tagger(SMALL, "a"))
    for shown in (repr(masker), repr(masker.tagger), str(masker.tagger)):
        assert KEY.hex() not in shown
        assert repr(KEY)[2:20] not in shown
