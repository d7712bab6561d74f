"""Adding and removing masks: seeds and signs applied to vectors, block by block, in threads.

A vector of each word size is masked under the same seeds and different keys, and all of them form
one stream of little-endian words in ascending word size. Source: docs/protocol.md 5.4 and 5.6.
"""

# L = words of one vector, B = words of one block

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from crypto import prg
from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.fixed_point import compiled, ring
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Words
from crypto.masking import pipeline
from crypto.masking.mask_streams import MaskStreams, SignedKey, mask_streams

CHUNK_BYTES = 1 << 20  # one message of an upload


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSeed:
    """A seed and how its key stream is applied: +1 adds it, -1 takes it away."""

    seed: bytes = field(repr=False)
    sign: int

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise LocalProtocolError(f"masking: a sign is 1 or -1, got {self.sign}")


class Source(Protocol):
    """One input's words: the same in whatever pieces they are read, by several threads at once."""

    def check_layout(self, layout: Layout) -> None: ...

    def read(self, word: int, start: int, out: Words) -> None: ...


class Masker:
    """Turns one silo's input into the masked stream that leaves it, as often as asked.

    Repeating gives the same bytes, so an upload resumes at any offset. One input only: two inputs
    under the same masks would show their difference.
    """

    def __init__(self, *, layout: Layout, cohort_digest: bytes, seeds: tuple[SignedSeed, ...]) -> None:
        self._layout = layout
        self._cohort_digest = cohort_digest
        self._seeds = seeds

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
        chunk at a time and one more ready: memory is that of these chunks. Close the iterator to stop
        before its end. Raises LocalProtocolError if the input is not of this layout or the offset
        beyond its end.
        """
        source.check_layout(self._layout)
        total_bytes = self._layout.total_bytes
        if not 0 <= offset_bytes <= total_bytes or chunk_bytes < 1:
            raise LocalProtocolError("masking: offset or chunk size out of range")
        is_compiled = total_bytes - offset_bytes >= compiled.WORTH_VALUES * 4
        lanes = _Lanes(self._layout, self._seeds, self._cohort_digest, is_compiled=is_compiled)
        starts = range(offset_bytes, total_bytes, chunk_bytes)
        tasks = (partial(self._chunk, source, lanes, start, start + chunk_bytes) for start in starts)
        return pipeline.in_order(tasks, workers=pipeline.workers_for(len(starts), workers))

    def _chunk(self, source: Source, lanes: _Lanes, chunk_start: int, chunk_stop: int) -> memoryview:
        """Masked bytes from `start` to `stop` of the stream; whole words are masked, then cut."""
        pieces = []
        with lanes.lane() as lane:
            for region in _regions(self._layout, chunk_start, chunk_stop):
                words = np.empty(region.last - region.first, ring.word_type(region.word))
                for start, words_B in lane.blocks(words, region.first):
                    source.read(region.word, start, words_B)
                    lane.apply(words_B)
                pieces.append(_little_endian(words)[region.cut])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskPlan:
    """What takes the masks off the survivors' sum: the masks' seeds with opposite signs.

    survivors: U3, whose inputs the sum then holds.
    """

    layout: Layout
    cohort_digest: bytes
    seeds: tuple[SignedSeed, ...] = field(repr=False)
    survivors: tuple[str, ...]

    def unmask(self, sums: Mapping[int, Words], *, workers: int | None = None) -> None:
        """Take the masks off in place, in as many threads as there are cores, or `workers`."""
        ring.check_vectors(sums, layout=self.layout)
        lanes = _Lanes(self.layout, self.seeds, self.cohort_digest)
        tasks = [
            partial(_unmask_part, lanes, sum_L[first : first + CHUNK_BYTES * 8 // word], first)
            for word, sum_L in sums.items()
            for first in range(0, sum_L.size, CHUNK_BYTES * 8 // word)
        ]
        for _ in pipeline.in_order(tasks, workers=pipeline.workers_for(len(tasks), workers)):
            pass


def vectors_from_stream(layout: Layout, data: bytes | bytearray | memoryview) -> dict[int, Words]:
    """The vectors in an uploaded stream, without a copy.

    Raises RemoteProtocolError unless the stream has exactly the layout's length.
    """
    size = memoryview(data).nbytes
    if size != layout.total_bytes:
        raise RemoteProtocolError(f"masked vector: expected {layout.total_bytes} bytes, got {size}")
    vectors: dict[int, Words] = {}
    start = 0
    for word in layout.words:
        little_endian = ring.word_type(word).newbyteorder("<")
        vectors[word] = np.frombuffer(data, little_endian, count=layout.length(word), offset=start)
        start += layout.length(word) * word // 8
    return vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """What a piece of the stream holds of one vector. cut: its bytes within those whole words."""

    word: int
    first: int
    last: int
    cut: slice


def _regions(layout: Layout, start: int, stop: int) -> Iterator[_Region]:
    place = 0
    for word in layout.words:
        word_bytes, end = word // 8, place + layout.length(word) * word // 8
        if start < end and place < stop:
            first_byte, last_byte = max(start, place) - place, min(stop, end) - place
            first, last = first_byte // word_bytes, -(-last_byte // word_bytes)
            cut = slice(first_byte - first * word_bytes, last_byte - first * word_bytes)
            yield _Region(word=word, first=first, last=last, cut=cut)
        place = end


class _Lanes:
    """The keys of all streams, and lanes that threads apply them in: made when needed, used again."""

    def __init__(
        self,
        layout: Layout,
        seeds: tuple[SignedSeed, ...],
        cohort_digest: bytes,
        *,
        is_compiled: bool = False,
    ) -> None:
        self._is_compiled = is_compiled
        self._keys = {
            word: [
                SignedKey(
                    key=prg.mask_key(signed.seed, cohort_digest=cohort_digest, word=word), sign=signed.sign
                )
                for signed in seeds
            ]
            for word in layout.words
        }
        self._idle: deque[_Lane] = deque()

    @contextmanager
    def lane(self) -> Iterator[_Lane]:
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = _Lane(self._keys, is_compiled=self._is_compiled)
        yield lane
        self._idle.append(lane)


class _Lane:
    """What one thread needs: the streams of every word size that it came to."""

    def __init__(self, keys: Mapping[int, Sequence[SignedKey]], *, is_compiled: bool) -> None:
        self._keys = keys
        self._is_compiled = is_compiled
        self._streams: dict[int, MaskStreams] = {}

    def blocks(self, words: Words, first: int) -> Iterator[tuple[int, Words]]:
        """Parts to apply the streams to, one after the other, and where in the vector each starts.

        first: where in the vector of that word size the words start.
        """
        streams = self._at(8 * words.itemsize, first)
        size = streams.block_bytes // words.itemsize
        for start in range(0, words.size, size):
            yield first + start, words[start : start + size]

    def apply(self, words_B: Words) -> None:
        """Add or take away the next words of every stream, modulo 2^w."""
        self._streams[8 * words_B.itemsize].apply(words_B)

    def _at(self, word: int, first: int) -> MaskStreams:
        if word not in self._streams:
            self._streams[word] = mask_streams(self._keys[word], word=word, is_compiled=self._is_compiled)
        self._streams[word].seek(first * word // 8)
        return self._streams[word]


def _unmask_part(lanes: _Lanes, words: Words, first: int) -> None:
    with lanes.lane() as lane:
        for _, words_B in lane.blocks(words, first):
            lane.apply(words_B)


def _little_endian(words: Words) -> memoryview:
    return words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
