"""Tags: four words that a silo sums with its input, so that every holder of the cohort's sum key can check
the revealed sum.

tag_j(u) = <a_j, x(u)> + beta_j(u) modulo 2^64, over the tagged words sign-extended to 64 bits; a_j and
beta_j(u) are key streams of the sum key. Tags 1 and 2 run over all tagged words, 3 and 4 over those of 64
bits. Source: docs/protocol.md 5.9.
"""

# B = tagged words of one block

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from crypto import encoding, prg
from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import TAG_WORDS, TAGGED_ROOM_BITS, Layout
from crypto.fixed_point.ring import Encoded, Words
from crypto.masking import pipeline

Tags = tuple[int, ...]  # TAG_WORDS numbers modulo 2^64
Read = Callable[[int, int, Words], None]  # ring_bits, the first word's index among its tagged ones, out

BLOCK_WORDS: Final = 1 << 17  # 1 MiB of each key stream: each call of the cipher is a turn of the lock
MAX_MAGNITUDE: Final = (1 << TAGGED_ROOM_BITS) - 1  # of a tagged 64-bit word of a sum
_MODULUS: Final = 1 << 64
_OVER_ALL: Final = (1, 2)  # tags over all tagged words; the others over those of 64 bits


class Tagger:
    """The tags of one silo's input, computed in one pass and kept for the next time they are asked for."""

    def __init__(self, *, layout: Layout, sum_key: bytes, name: str) -> None:
        tagged = layout.tagged
        if tagged is None:
            raise LocalProtocolError("tags: no quantity of the layout is tagged")
        self._layout = layout
        self._tagged = tagged
        self._sum_key = sum_key
        self._name = name
        self._lock = threading.Lock()
        self._kept: tuple[Encoder | Encoded, Words] | None = None

    def tags(self, source: Encoder | Encoded, *, workers: int | None = None) -> Words:
        """The four words, (4,) uint64, in as many threads as there are cores, or `workers`."""
        with self._lock:
            if self._kept is None or self._kept[0] is not source:
                self._kept = source, self._computed(source, workers)
            return self._kept[1]

    def _computed(self, source: Encoder | Encoded, workers: int | None) -> Words:
        products = _Products(self._tagged, self._sum_key).over(self._read(source), workers=workers)
        return np.array(_sum([products, offsets(self._sum_key, self._name)]), np.uint64)

    def _read(self, source: Encoder | Encoded) -> Read:
        """Tagged words of the input, from wherever its layout has them."""
        places = {ring_bits: _places(self._layout, ring_bits) for ring_bits in self._tagged.ring_sizes}

        def read(ring_bits: int, start: int, out: Words) -> None:
            for first, place in places[ring_bits]:
                size = place.stop - place.start
                begin, end = max(start, first), min(start + out.size, first + size)
                if begin < end:
                    source.read(ring_bits, place.start + begin - first, out[begin - start : end - start])

        return read


def check(
    sums: Mapping[int, Words],
    *,
    layout: Layout,
    sum_key: bytes,
    survivors: Sequence[str],
    workers: int | None = None,
) -> None:
    """Check the tagged words of a revealed sum against the tag words behind them.

    layout: the tagged quantities alone (Layout.tagged). survivors: U3, whose inputs the sum must hold, and
    nothing else. The vectors are read block by block, so they may be mapped from a file.
    Raises RemoteProtocolError(code=SUM). Source: docs/protocol.md 5.9.
    """

    def read(ring_bits: int, start: int, out: Words) -> None:
        out[:] = sums[ring_bits][start : start + out.size]
        if ring_bits == 64:
            signed_B = out.view(np.int64)
            if int(signed_B.max()) > MAX_MAGNITUDE or int(signed_B.min()) < -MAX_MAGNITUDE:
                raise RemoteProtocolError(
                    f"sum: a tagged word of 64 bits is beyond 2^{TAGGED_ROOM_BITS} - 1", code=Refusal.SUM
                )

    ring.check_vectors(sums, layout=layout)
    shown = tuple(int(word) for word in sums[64][layout.values_end(64) :])
    products = _Products(layout, sum_key).over(read, workers=workers)
    expected = _sum([products, *(offsets(sum_key, name) for name in survivors)])
    if shown != expected:
        raise RemoteProtocolError(
            f"sum: its tags are not those of {len(survivors)} survivors' inputs", code=Refusal.SUM
        )


def offsets(sum_key: bytes, name: str) -> Tags:
    """beta_1 to beta_4 of one silo: the first words of a key stream of its own."""
    word_B = np.empty(TAG_WORDS, np.dtype("<u8"))
    prg.Keystream(_derive(sum_key, encoding.encode("tag-offset", name))).fill(word_B.view(np.uint8))
    return tuple(int(word) for word in word_B)


class _Products:
    """<a_j, x> modulo 2^64 for j = 1 to 4, block by block in threads."""

    def __init__(self, tagged: Layout, sum_key: bytes) -> None:
        self._words = {ring_bits: tagged.values_end(ring_bits) for ring_bits in tagged.ring_sizes}
        self._keys = [
            _derive(sum_key, encoding.encode("tag-factors", number)) for number in range(1, TAG_WORDS + 1)
        ]
        self._idle: deque[list[prg.Keystream]] = deque()  # opened streams of all keys, in no thread's hands

    def over(self, read: Read, *, workers: int | None) -> Tags:
        tasks: list[Callable[[], Tags]] = []
        before = 0  # tagged words of smaller sizes
        for ring_bits, words in self._words.items():
            for first in range(0, words, BLOCK_WORDS):
                size = min(BLOCK_WORDS, words - first)
                tasks.append(partial(self._block, read, ring_bits, before, first, size))
            before += words
        return _sum(pipeline.in_order(tasks, workers=pipeline.workers_for(len(tasks), workers)))

    def _block(self, read: Read, ring_bits: int, before: int, first: int, size: int) -> Tags:
        try:
            streams = self._idle.pop()
        except IndexError:
            streams = [prg.Keystream(key) for key in self._keys]
        word_B = np.empty(size, ring.WORD_TYPES[ring_bits])
        read(ring_bits, first, word_B)
        extended_B = word_B.view(ring.SIGNED_TYPES[ring_bits]).astype(np.int64).view(np.uint64)
        factor_B = np.empty(size, np.dtype("<u8"))
        products = []
        for number, stream in enumerate(streams, start=1):
            if number in _OVER_ALL:
                place = before + first
            elif ring_bits == 64:
                place = first
            else:
                products.append(0)
                continue
            stream.seek(factor_B.itemsize * place)
            stream.fill(factor_B.view(np.uint8))
            products.append(_product(factor_B, extended_B))
        self._idle.append(streams)
        return tuple(products)


def _product(factor_B: NDArray[np.uint64], word_B: NDArray[np.uint64]) -> int:
    return int(np.dot(factor_B, word_B))  # whole numbers: it wraps modulo 2^64


def _places(layout: Layout, ring_bits: int) -> list[tuple[int, slice]]:
    """Of each tagged quantity, its first index among the tagged words of that size, and where it lies."""
    places, first, slices = [], 0, layout.slices(ring_bits)
    for quantity in layout.quantities:
        if quantity.is_tagged and quantity.ring_bits == ring_bits:
            places.append((first, slices[quantity.name]))
            first += quantity.size
    return places


def _sum(parts: Iterable[Tags]) -> Tags:
    total = [0] * TAG_WORDS
    for part in parts:
        total = [(one + other) % _MODULUS for one, other in zip(total, part, strict=True)]
    return tuple(total)


def _derive(sum_key: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=prg.KEY_BYTES, salt=None, info=info).derive(sum_key)
