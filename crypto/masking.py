"""Adding and removing masks: seeds and signs applied to vectors, block by block.

A vector of each word size is masked under the same seeds and different keys, and all of them form
one stream of little-endian words in ascending word size. Source: docs/protocol.md 5.4 and 5.6.
"""

# L = words of one vector, B = words of one block

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from crypto import prg, ring
from crypto.errors import LocalProtocolError, RemoteProtocolError
from crypto.layout import Layout
from crypto.ring import Encoded, Words

CHUNK_BYTES = 1 << 20  # one message of an upload


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSeed:
    """A seed and how its key stream is applied: +1 adds it, -1 takes it away."""

    seed: bytes = field(repr=False)
    sign: int

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise LocalProtocolError(f"masking: a sign is 1 or -1, got {self.sign}")


class Masker:
    """Turns one silo's encoded input into the masked stream that leaves it, as often as asked.

    Repeating gives the same bytes, so an upload resumes at any offset. One input only: two inputs
    under the same masks would show their difference.
    """

    def __init__(self, *, layout: Layout, cohort_digest: bytes, seeds: tuple[SignedSeed, ...]) -> None:
        self._layout = layout
        self._cohort_digest = cohort_digest
        self._seeds = seeds

    def stream(
        self, encoded: Encoded, *, offset_bytes: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """The masked stream from an offset on, in chunks of that size; the last may be shorter.

        Holds one chunk and one block beside the input, never a second vector.
        Raises LocalProtocolError if the input is not of this layout or the offset beyond its end.
        """
        ring.check_vectors(encoded.vectors, layout=self._layout)
        if not 0 <= offset_bytes <= self._layout.total_bytes or chunk_bytes < 1:
            raise LocalProtocolError("masking: offset or chunk size out of range")
        return _rechunked(self._blocks(encoded, offset_bytes), chunk_bytes)

    def _blocks(self, encoded: Encoded, offset_bytes: int) -> Iterator[memoryview]:
        region_start = 0
        for word in self._layout.words:
            vector_L = encoded.vectors[word]
            skipped_bytes = max(0, offset_bytes - region_start)
            if skipped_bytes < vector_L.nbytes:
                yield from self._region(vector_L, word, skipped_bytes)
            region_start += vector_L.nbytes

    def _region(self, vector_L: Words, word: int, skipped_bytes: int) -> Iterator[memoryview]:
        """Masked bytes of one vector; the block's buffer is used again for the next one."""
        first, odd_bytes = divmod(skipped_bytes, word // 8)  # whole words are masked, then cut
        streams = _Streams(self._seeds, self._cohort_digest, word, start=first)
        buffer_B = np.empty(prg.BLOCK_BYTES * 8 // word, vector_L.dtype)
        for start in range(first, vector_L.size, buffer_B.size):
            part_B = vector_L[start : start + buffer_B.size]
            masked_B = buffer_B[: part_B.size]
            masked_B[:] = part_B
            streams.apply(masked_B)
            yield _little_endian(masked_B)[odd_bytes:]
            odd_bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskPlan:
    """What takes the masks off the survivors' sum: the masks' seeds with opposite signs.

    survivors: U3, whose inputs the sum then holds.
    """

    layout: Layout
    cohort_digest: bytes
    seeds: tuple[SignedSeed, ...] = field(repr=False)
    survivors: tuple[str, ...]

    def unmask(self, sums: Mapping[int, Words]) -> None:
        """Take the masks off in place, a block at a time."""
        ring.check_vectors(sums, layout=self.layout)
        for word, sum_L in sums.items():
            streams = _Streams(self.seeds, self.cohort_digest, word)
            block_words = prg.BLOCK_BYTES * 8 // word
            for start in range(0, sum_L.size, block_words):
                streams.apply(sum_L[start : start + block_words])


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


class _Streams:
    """The key streams of all seeds for one word size, moving on together."""

    def __init__(
        self, seeds: tuple[SignedSeed, ...], cohort_digest: bytes, word: int, *, start: int = 0
    ) -> None:
        offset_bytes = start * word // 8
        self._streams = [
            (prg.Keystream(self._key(signed, cohort_digest, word), offset_bytes=offset_bytes), signed.sign)
            for signed in seeds
        ]
        self._buffer = np.empty(prg.BLOCK_BYTES, np.uint8)
        self._type = ring.word_type(word).newbyteorder("<")

    def apply(self, words_B: Words) -> None:
        """Add or take away the next words of every stream, modulo 2^w."""
        bytes_B = self._buffer[: words_B.nbytes]
        mask_B = bytes_B.view(self._type)
        for stream, sign in self._streams:
            stream.fill(bytes_B)
            if sign > 0:
                np.add(words_B, mask_B, out=words_B)
            else:
                np.subtract(words_B, mask_B, out=words_B)

    @staticmethod
    def _key(signed: SignedSeed, cohort_digest: bytes, word: int) -> bytes:
        return prg.mask_key(signed.seed, cohort_digest=cohort_digest, word=word)


def _little_endian(words_B: Words) -> memoryview:
    in_order_B = words_B.astype(words_B.dtype.newbyteorder("<"), copy=False)
    return in_order_B.view(np.uint8).data


def _rechunked(blocks: Iterator[memoryview], chunk_bytes: int) -> Iterator[bytes]:
    chunk = bytearray()
    for block in blocks:
        while len(block) > 0:
            taken = block[: chunk_bytes - len(chunk)]
            chunk += taken
            block = block[len(taken) :]
            if len(chunk) == chunk_bytes:
                yield bytes(chunk)
                chunk.clear()
    if chunk:
        yield bytes(chunk)
