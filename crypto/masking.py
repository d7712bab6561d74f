"""Adding and removing masks: seeds and signs applied to vectors, block by block, in threads.

A vector of each word size is masked under the same seeds and different keys, and all of them form
one stream of little-endian words in ascending word size. Source: docs/protocol.md 5.4 and 5.6.
"""

# L = words of one vector, B = words of one block

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto import compiled, pipeline, prg, ring
from crypto.compiled import Adding
from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.layout import Layout
from crypto.ring import Words

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
    ) -> Iterator[bytes]:
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

    def _chunk(self, source: Source, lanes: _Lanes, chunk_start: int, chunk_stop: int) -> bytes:
        """Masked bytes from `start` to `stop` of the stream; whole words are masked, then cut."""
        pieces = []
        with lanes.lane() as lane:
            for region in _regions(self._layout, chunk_start, chunk_stop):
                words = lane.buffer(region.word, region.last - region.first)
                lane.seek(region.word, region.first)
                for start, words_B in lane.blocks(words):
                    source.read(region.word, region.first + start, words_B)
                    lane.apply(words_B)
                pieces.append(_little_endian(words)[region.cut].tobytes())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
        self._keys = {
            word: [
                (prg.mask_key(signed.seed, cohort_digest=cohort_digest, word=word), signed.sign)
                for signed in seeds
            ]
            for word in layout.words
        }
        self._adding = {word: _adding(word) if is_compiled else None for word in layout.words}
        self._idle: deque[_Lane] = deque()

    @contextmanager
    def lane(self) -> Iterator[_Lane]:
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = _Lane(self._keys, self._adding)
        yield lane
        self._idle.append(lane)


class _Lane:
    """What one thread needs: the key streams of all seeds, moving on together, and buffers."""

    def __init__(
        self, keys: Mapping[int, Sequence[tuple[bytes, int]]], adding: Mapping[int, Adding | None]
    ) -> None:
        self._keys = keys
        self._adding = adding
        self._streams: dict[int, _Streams] = {}
        shape = (compiled.MASKS, compiled.BLOCK_BYTES) if any(adding.values()) else (1, prg.BLOCK_BYTES)
        self._mask_KB = np.empty(shape, np.uint8)
        self._words = np.empty(0, np.uint8)

    def buffer(self, word: int, size: int) -> Words:
        """Room for words, the same for every call."""
        size_bytes = size * word // 8
        if self._words.size < size_bytes:
            self._words = np.empty(size_bytes, np.uint8)
        return self._words[:size_bytes].view(ring.word_type(word))

    def blocks(self, words: Words) -> Iterator[tuple[int, Words]]:
        """Parts to which every stream is applied before the next one's turn, and where they start."""
        size = self._mask_KB.shape[1] // words.itemsize
        for start in range(0, words.size, size):
            yield start, words[start : start + size]

    def seek(self, word: int, first: int) -> None:
        """Go to that word of the vector of that word size."""
        if word not in self._streams:
            self._streams[word] = _Streams(self._keys[word], word=word, adding=self._adding[word])
        self._streams[word].seek(first * word // 8)

    def apply(self, words_B: Words) -> None:
        """Add or take away the next words of every stream, modulo 2^w."""
        self._streams[8 * words_B.itemsize].apply(words_B, self._mask_KB)


class _Streams:
    """One key stream a seed, for one word size. adding: takes as many as compiled.MASKS at once."""

    def __init__(self, keys: Sequence[tuple[bytes, int]], *, word: int, adding: Adding | None) -> None:
        self._adding, self._mask_type = adding, ring.word_type(word).newbyteorder("<")
        self._streams = [prg.Keystream(key) for key, _ in keys]
        signs = [sign for _, sign in keys]
        together = len(keys) - len(keys) % compiled.MASKS if adding else 0
        flips = np.array([0 if sign > 0 else -1 for sign in signs], np.int64).astype(ring.word_type(word))
        groups = [slice(first, first + compiled.MASKS) for first in range(0, together, compiled.MASKS)]
        self._groups = [(self._streams[group], flips[group]) for group in groups]
        self._alone = [
            (stream, np.add if sign > 0 else np.subtract)
            for stream, sign in zip(self._streams[together:], signs[together:], strict=True)
        ]

    def seek(self, offset_bytes: int) -> None:
        for stream in self._streams:
            stream.seek(offset_bytes)

    def apply(self, words_B: Words, mask_KB: NDArray[np.uint8]) -> None:
        """mask_KB: room for the bytes of masks, one row at least, compiled.MASKS with a compiled loop."""
        zeros = prg.ZEROS[: words_B.nbytes]
        rows = [mask_B[: words_B.nbytes].data for mask_B in mask_KB]
        for streams, flip_K in self._groups:
            for stream, row in zip(streams, rows, strict=True):
                stream.xor_into(zeros, row)
            assert self._adding is not None
            self._adding(words_B, mask_KB.view(words_B.dtype), flip_K)
        mask_B = mask_KB[0, : words_B.nbytes].view(self._mask_type)
        for stream, add in self._alone:
            stream.xor_into(zeros, rows[0])
            add(words_B, mask_B, words_B)


def _adding(word: int) -> Adding | None:
    """Compiled loops read masks as words of this machine's own."""
    return compiled.adding(ring.word_type(word)) if sys.byteorder == "little" else None


def _unmask_part(lanes: _Lanes, words: Words, first: int) -> None:
    with lanes.lane() as lane:
        lane.seek(8 * words.itemsize, first)
        for _, words_B in lane.blocks(words):
            lane.apply(words_B)


def _little_endian(words: Words) -> memoryview:
    return words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
