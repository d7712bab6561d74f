"""Samples of a table as a function of a key and of the position, from AES-256-CTR alone.

A sample takes a 32-bit word of the key stream: sign, cell of the table (crypto/noise/table.py), first bits
of a fraction. Once in 2^15 draws at most these do not decide, and 64 bits of a second stream do.
Source: docs/privacy-proofs.md "The noise".

The table is looked up by a compiled loop where numba, of the extra `silo`, is there and finds a folder for
what it compiled (next to this file, NUMBA_CACHE_DIR, the user's cache), else in numpy, with the same
samples: compiling in every process would cost more than it saves.

Security: not constant in time. A process that shares the machine's caches and measures them sees which
cells of the table were read, hence roughly how large which sample was, and how often a sample was
undecided; never the key. The noise protects against those who see the sums, not against the silo's own
machine.
"""

# B = samples of one block, C = cells of the table

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from crypto import prg
from crypto.noise.table import MORE_BITS, Table

BLOCK_SAMPLES: Final = 1 << 15  # words and samples stay in the cache with the table
_WORD: Final = np.dtype("<u4")
_CIPHER_BLOCK_BYTES: Final = 16

Integers: TypeAlias = NDArray[np.signedinteger[Any]]
Pick: TypeAlias = Callable[
    [NDArray[np.uint32], int, NDArray[np.uint32], Integers, NDArray[np.int64]],
    int,
]


def numpy_pick(
    entries_C: NDArray[np.uint32],
    index_bits: int,
    word_B: NDArray[np.uint32],
    out_B: Integers,
    undecided_B: NDArray[np.int64],
) -> int:
    """Write the sample of every word, the alias where the word does not decide, and list those places.

    Returns how many there are. Takes BLOCK_SAMPLES words at most. The reference: the compiled loop gives the
    same.
    """
    mask, size = np.uint32((1 << index_bits) - 1), word_B.size
    drawn_B, entry_B, magnitude_B, sign_B = _scratch.words[:, :size]
    own_B, is_true_B = _scratch.own[:size], _scratch.is_true[:size]
    np.right_shift(word_B, np.uint32(1), out=drawn_B)
    np.bitwise_and(drawn_B, mask, out=own_B)
    np.take(entries_C, own_B, out=entry_B, mode="clip")  # a cell is always there; clip skips the check
    np.bitwise_and(entry_B, mask, out=magnitude_B)  # the alias
    np.subtract(entry_B, magnitude_B, out=sign_B)  # the threshold, for a moment
    np.less(drawn_B, sign_B, out=is_true_B)
    np.copyto(magnitude_B, own_B, where=is_true_B, casting="unsafe")
    np.bitwise_and(word_B, np.uint32(1), out=sign_B)
    np.negative(sign_B, out=sign_B)  # 0 or all ones: both zeros are the same
    magnitude_B ^= sign_B
    magnitude_B -= sign_B
    np.copyto(out_B, magnitude_B.view(np.int32))
    drawn_B ^= entry_B
    np.less_equal(drawn_B, mask, out=is_true_B)
    places = np.flatnonzero(is_true_B)
    undecided_B[: places.size] = places
    return places.size


class _Scratch(threading.local):
    """Buffers of a thread: fresh ones for every block would cost more than what is done in them."""

    def __init__(self) -> None:
        self.words = np.empty((4, BLOCK_SAMPLES), np.uint32)
        self.own = np.empty(BLOCK_SAMPLES, np.intp)
        self.is_true = np.empty(BLOCK_SAMPLES, np.bool_)


_scratch = _Scratch()


@cache
def compiled_pick() -> Pick | None:
    """The same as a compiled loop, or None. The first call imports numba, half a second and 60 MB."""
    if sys.byteorder != "little":  # which the loop reads words in
        return None
    try:
        import numba

        compiled: Pick = numba.njit(nogil=True, cache=True)(_pick)
    except (ImportError, RuntimeError):  # RuntimeError: no folder to keep the compiled code in
        return None
    return compiled


class TableStream:
    """The same sample at the same position, however a vector is cut. Threads may share a stream.

    word_key, more_key: 32 bytes each, used for nothing else.
    """

    def __init__(self, table: Table, *, word_key: bytes, more_key: bytes, pick: Pick | None = None) -> None:
        self._table = table
        self._pick = pick or compiled_pick() or numpy_pick
        self._word_key, self._more_key = word_key, more_key

    def blocks(
        self, start: int, size: int, room: Callable[[int, int], Integers]
    ) -> Iterator[tuple[int, Integers]]:
        """Samples of positions start to start + size, block by block, each with its first place.

        room: a contiguous vector of int32 or int64 for so many samples from that place on.
        """
        table = self._table
        keystream = prg.Keystream(self._word_key, offset_bytes=start * _WORD.itemsize)
        buffer_B = np.empty(min(BLOCK_SAMPLES, size), _WORD)
        place_B = np.empty(buffer_B.size, np.int64)
        further: Callable[[bytes], bytes] | None = None
        for first in range(0, size, BLOCK_SAMPLES):
            word_B = buffer_B[: size - first]
            out_B = room(first, word_B.size)
            keystream.fill(word_B.view(np.uint8))
            found = self._pick(table.entries_C, table.index_bits, word_B, out_B, place_B)
            if found and further is None:
                # block p of AES-256-CTR is AES of p: ECB of distinct numbers, without a stream for each
                further = Cipher(algorithms.AES256(self._more_key), modes.ECB()).encryptor().update
            for place in place_B[:found]:
                assert further is not None
                position = (start + first + int(place)).to_bytes(_CIPHER_BLOCK_BYTES, "big")
                more = int.from_bytes(further(position)[: MORE_BITS // 8], "little")
                out_B[place] = decided(table, int(word_B[place]), more)
            yield first, out_B


def decided(table: Table, word: int, more: int) -> int:
    """The sample of an undecided word: the cell's own magnitude if `more` is below the threshold's rest."""
    mask = (1 << table.index_bits) - 1
    own = word >> 1 & mask
    magnitude = own if more < int(table.more_C[own]) else int(table.entries_C[own]) & mask
    return -magnitude if word & 1 else magnitude


def _pick(
    entries_C: NDArray[np.uint32],
    index_bits: int,
    word_B: NDArray[np.uint32],
    out_B: Integers,
    undecided_B: NDArray[np.int64],
) -> int:
    """As `numpy_pick`; every step says its 32 bits, because numba widens sums of mixed types."""
    one = np.uint32(1)
    mask = np.uint32((1 << index_bits) - 1)
    found = 0
    for place in range(word_B.size):
        word = word_B[place]
        drawn = np.uint32(word >> one)
        own = np.uint32(drawn & mask)
        entry = entries_C[own]
        alias = np.uint32(entry & mask)
        magnitude = own if drawn < np.uint32(entry - alias) else alias
        sign = -np.int32(word & one)
        out_B[place] = np.int32(np.int32(np.int32(magnitude) ^ sign) - sign)
        if np.uint32(drawn ^ entry) <= mask:
            undecided_B[found] = place
            found += 1
    return found
