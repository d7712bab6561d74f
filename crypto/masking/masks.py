"""Adding and removing masks: seeds and signs applied to vectors, chunk by chunk, in threads.

A vector of each word size is masked under the same seeds and different keys, and all of them form
one stream of little-endian words in ascending word size. Source: docs/protocol.md 5.4 and 5.6.
"""

# L = words of one vector, B = words of one chunk

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from crypto import prg
from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Encoded, Words
from crypto.masking import pipeline
from crypto.masking.tags import Tagger

# one message of an upload, and what is drawn of one key stream at a time: 256 KiB would stay in the cache,
# but each call of the cipher is a turn of the interpreter's lock, docs/performance.md
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSeed:
    """A seed and how its key stream is applied: +1 adds it, -1 takes it away."""

    seed: bytes = field(repr=False)
    sign: int

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise LocalProtocolError(f"masking: expected a sign of 1 or -1, got {self.sign}")


# one input's words: the same in whatever pieces they are read, by several threads at once
Source: TypeAlias = Encoder | Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Masker:
    """Turns one silo's input into the masked stream that leaves it, as often as asked.

    Repeating gives the same bytes, so an upload resumes at any offset. One input only: two inputs
    under the same masks would show their difference. tagger: where the layout has tag words.
    """

    layout: Layout
    cohort_digest: bytes
    seeds: tuple[SignedSeed, ...] = field(repr=False)
    tagger: Tagger | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.tagger is not None) != bool(self.layout.tag_words):
            raise LocalProtocolError("masking: there are tags where a quantity is tagged, and only there")

    def stream(
        self,
        source: Source,
        *,
        offset_bytes: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        workers: int | None = None,
    ) -> Iterator[memoryview]:
        """The masked stream from an offset on, in chunks of that size; the last may be shorter.

        Chunks are read and masked in as many threads as there are cores, or `workers`, each thread one
        chunk at a time and one more ready: memory is that of these chunks. Tags take one pass over the
        input before the first chunk of the first stream. Close the iterator to stop
        before its end.
        Raises LocalProtocolError if the input is not of this layout or the offset beyond its end.
        """
        source.check_layout(self.layout)
        total_bytes = self.layout.total_bytes
        if not 0 <= offset_bytes <= total_bytes or chunk_bytes < 1:
            raise LocalProtocolError("masking: offset or chunk size out of range")
        masks = _masks(self.layout, self.seeds, self.cohort_digest)
        return self._chunks(source, masks, range(offset_bytes, total_bytes, chunk_bytes), workers)

    def _chunks(
        self, source: Source, masks: Mapping[int, _Masks], starts: range, workers: int | None
    ) -> Iterator[memoryview]:
        tags = np.empty(0, np.uint64)
        if self.tagger is not None and starts:
            tags = self.tagger.tags(source, workers=workers)
        tasks = (partial(self._chunk, source, masks, tags, start, start + starts.step) for start in starts)
        yield from pipeline.in_order(tasks, workers=pipeline.workers_for(len(starts), workers))

    def _chunk(
        self, source: Source, masks: Mapping[int, _Masks], tags: Words, start: int, stop: int
    ) -> memoryview:
        """Masked bytes from `start` to `stop` of the stream; whole words are masked, then cut."""
        pieces = []
        for region in _regions(self.layout, start, stop):
            words_B = np.empty(region.last - region.first, ring.WORD_TYPES[region.ring_bits])
            source.read(region.ring_bits, region.first, words_B)
            values_end = self.layout.values_end(region.ring_bits)
            if region.last > values_end:
                first = max(region.first, values_end)
                words_B[first - region.first :] = tags[first - values_end : region.last - values_end]
            masks[region.ring_bits].apply(words_B, region.first)
            little_endian_B = words_B.astype(words_B.dtype.newbyteorder("<"), copy=False)
            pieces.append(little_endian_B.view(np.uint8).data[region.cut])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskPlan:
    """What unmasks the survivors' sum: the masks' seeds with opposite signs.

    survivors: U3, whose inputs the sum then holds.
    """

    layout: Layout
    cohort_digest: bytes
    seeds: tuple[SignedSeed, ...] = field(repr=False)
    survivors: tuple[str, ...]

    @property
    def self_mask_seeds(self) -> dict[str, bytes]:
        """b by survivor; they come first among the seeds, in order of name."""
        return {name: signed.seed for name, signed in zip(self.survivors, self.seeds, strict=False)}

    def unmask(self, sums: Mapping[int, Words], *, workers: int | None = None) -> None:
        """Remove the masks in place, in as many threads as there are cores, or `workers`."""
        ring.check_vectors(sums, layout=self.layout)
        masks = _masks(self.layout, self.seeds, self.cohort_digest)
        tasks = [
            partial(masks[ring_bits].apply, sum_L[first : first + CHUNK_BYTES * 8 // ring_bits], first)
            for ring_bits, sum_L in sums.items()
            for first in range(0, sum_L.size, CHUNK_BYTES * 8 // ring_bits)
        ]
        deque(pipeline.in_order(tasks, workers=pipeline.workers_for(len(tasks), workers)), maxlen=0)

    def stream(
        self, sums: Mapping[int, Words], *, tagged: bool, workers: int | None = None
    ) -> Iterator[memoryview]:
        """The unmasked sum without a copy of it: the stream of the tagged part, or of the rest, in blocks.

        sums: as they were added, also as `vectors_from_stream` maps them from a file. Memory is that of a
        few blocks. Raises LocalProtocolError if the vectors are not of this layout.
        """
        masks = _masks(self.layout, self.seeds, self.cohort_digest)
        tasks = [
            partial(masks[ring_bits].unmasked, sums[ring_bits][first:last], first)
            for ring_bits, place in _places(self.layout, tagged=tagged)
            for first, last in _blocks(place, CHUNK_BYTES * 8 // ring_bits)
        ]
        yield from pipeline.in_order(tasks, workers=pipeline.workers_for(len(tasks), workers))


def vectors_from_stream(layout: Layout, data: bytes | bytearray | memoryview) -> dict[int, Words]:
    """The vectors in an uploaded stream, without a copy.

    Raises RemoteProtocolError unless the stream has exactly the layout's length.
    """
    size = memoryview(data).nbytes
    if size != layout.total_bytes:
        raise RemoteProtocolError(f"masked vector: expected {layout.total_bytes} bytes, got {size}")
    vectors: dict[int, Words] = {}
    start = 0
    for ring_bits in layout.ring_sizes:
        little_endian = ring.WORD_TYPES[ring_bits].newbyteorder("<")
        vectors[ring_bits] = np.frombuffer(data, little_endian, count=layout.length(ring_bits), offset=start)
        start += layout.length(ring_bits) * ring_bits // 8
    return vectors


def tagged_stream(layout: Layout, sums: Mapping[int, Words]) -> Iterator[memoryview]:
    """What silos fetch of a sum: the stream of `layout.tagged`, in pieces, without a copy.

    Raises LocalProtocolError if the vectors are not of this layout or it has no tags.
    """
    ring.check_vectors(sums, layout=layout)
    if layout.tagged is None:
        raise LocalProtocolError("masking: no quantity of the layout is tagged")
    for ring_bits, place in _places(layout, tagged=True):
        word_B = sums[ring_bits][place]
        yield word_B.astype(word_B.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def _places(layout: Layout, *, tagged: bool) -> Iterator[tuple[int, slice]]:
    """Where the tagged words of a sum lie, or the others, in the order of their stream. Tags are tagged."""
    for ring_bits in layout.ring_sizes:
        slices = layout.slices(ring_bits)
        for quantity in layout.quantities:
            if quantity.ring_bits == ring_bits and quantity.is_tagged is tagged:
                yield ring_bits, slices[quantity.name]
        if ring_bits == 64 and layout.tag_words and tagged:
            yield ring_bits, slice(layout.values_end(64), layout.length(64))


def _blocks(place: slice, size: int) -> Iterator[tuple[int, int]]:
    for first in range(place.start, place.stop, size):
        yield first, min(first + size, place.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """What a piece of the stream holds of one vector. cut: its bytes within those whole words."""

    ring_bits: int
    first: int
    last: int
    cut: slice


def _regions(layout: Layout, start: int, stop: int) -> Iterator[_Region]:
    place = 0
    for ring_bits in layout.ring_sizes:
        word_bytes, end = ring_bits // 8, place + layout.length(ring_bits) * ring_bits // 8
        if start < end and place < stop:
            first_byte, last_byte = max(start, place) - place, min(stop, end) - place
            first, last = first_byte // word_bytes, -(-last_byte // word_bytes)
            cut = slice(first_byte - first * word_bytes, last_byte - first * word_bytes)
            yield _Region(ring_bits=ring_bits, first=first, last=last, cut=cut)
        place = end


class _Masks:
    """The masks of one vector: a key stream a seed, applied anywhere in it by several threads at once."""

    def __init__(self, seeds: tuple[SignedSeed, ...], cohort_digest: bytes, ring_bits: int) -> None:
        self._keys = [
            prg.mask_key(signed.seed, cohort_digest=cohort_digest, ring_bits=ring_bits) for signed in seeds
        ]
        self._operations = [np.add if signed.sign > 0 else np.subtract for signed in seeds]
        self._idle: deque[list[prg.Keystream]] = deque()  # opened streams of all keys, in no thread's hands

    def apply(self, words_B: Words, first: int) -> None:
        """Add or take away the words of every stream from index `first` on, modulo 2^w."""
        try:
            streams = self._idle.pop()
        except IndexError:
            streams = [prg.Keystream(key) for key in self._keys]
        mask_B = np.empty(words_B.size, words_B.dtype.newbyteorder("<"))
        for stream, operation in zip(streams, self._operations, strict=True):
            stream.seek(first * words_B.itemsize)
            stream.fill(mask_B.view(np.uint8))
            operation(words_B, mask_B, out=words_B)
        self._idle.append(streams)

    def unmasked(self, words_B: Words, first: int) -> memoryview:
        """A copy of these words with every stream applied, as little-endian bytes."""
        words_B = words_B.astype(ring.WORD_TYPES[words_B.itemsize * 8])
        self.apply(words_B, first)
        return words_B.astype(words_B.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def _masks(layout: Layout, seeds: tuple[SignedSeed, ...], cohort_digest: bytes) -> dict[int, _Masks]:
    return {ring_bits: _Masks(seeds, cohort_digest, ring_bits) for ring_bits in layout.ring_sizes}
