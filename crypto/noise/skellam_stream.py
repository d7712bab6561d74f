"""Skellam noise as a function of a fresh key and of the position, from AES-256-CTR alone.

A sample takes a 32-bit word of the key stream: sign, cell of the table (crypto/noise/skellam.py), first bits
of a fraction. Once in 2^15 draws at most these do not decide, and 64 bits of a second stream do.
Source: docs/protocol.md 4, docs/privacy.md "The noise".

The table is looked up by a compiled loop where numba, of the extra `silo`, is there and finds a folder for
what it compiled (next to this file, NUMBA_CACHE_DIR, the user's cache), else in numpy, with the same
samples: compiling in every process would cost more than it saves.

Security: not constant in time. A process that shares the machine's caches and measures them sees which
cells of the table were read, hence roughly how large which sample was, and how often a sample was
undecided; never the key. The noise protects against those who see the sums, not against the silo's own
machine.
"""

# B = samples of one block, C = cells of the table, N = samples asked for

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from crypto import prg
from crypto.errors import LocalProtocolError
from crypto.noise.skellam import MORE_BITS, Law

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

    Returns how many there are. The reference: the compiled one gives the same.
    """
    mask = np.uint32((1 << index_bits) - 1)
    drawn_B = word_B >> np.uint32(1)
    own_B = drawn_B & mask
    entry_B = entries_C.take(own_B)
    alias_B = entry_B & mask
    magnitude_B = np.where(drawn_B < entry_B - alias_B, own_B, alias_B)
    sign_B = -(word_B & np.uint32(1)).astype(np.int32)  # 0 or -1: both zeros are the same
    np.subtract(magnitude_B.astype(np.int32) ^ sign_B, sign_B, out=out_B)
    places = np.flatnonzero((drawn_B ^ entry_B) <= mask)
    undecided_B[: places.size] = places
    return places.size


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


class SkellamStream:
    """The noise of one quantity in one silo's input: the same sample at the same position, however cut.

    key: 32 fresh bytes from the system's CSPRNG for each input, used for nothing else. quantity: its
    place in the layout. Threads may share a stream.
    """

    def __init__(self, law: Law, key: bytes, *, quantity: int, pick: Pick | None = None) -> None:
        if len(key) != prg.KEY_BYTES:
            raise LocalProtocolError(f"noise: expected a key of {prg.KEY_BYTES} bytes, got {len(key)}")
        self._law = law
        self._pick = pick or compiled_pick() or numpy_pick
        self._word_key = _derived(key, quantity, b"words")
        self._more_key = _derived(key, quantity, b"more")

    def sample_into(self, start: int, out_N: Integers) -> None:
        """Write the samples of positions start, start + 1, ... into a contiguous int32 or int64 vector.

        Raises LocalProtocolError for another vector or a negative start.
        """
        if out_N.dtype not in (np.int32, np.int64) or out_N.ndim != 1 or not out_N.flags.c_contiguous:
            raise LocalProtocolError("noise: expected a contiguous vector of int32 or int64")
        if start < 0:
            raise LocalProtocolError(f"noise: a position is not negative, got {start}")
        deque(self._drawn(start, out_N.size, lambda first, size: out_N[first : first + size]), maxlen=0)

    def add_into(self, start: int, word_N: NDArray[np.unsignedinteger[Any]]) -> None:
        """Add the samples of positions start, start + 1, ... to ring words, modulo 2^w."""
        signed_N = word_N.view(f"i{word_N.itemsize}")
        buffer_B = np.empty(min(BLOCK_SAMPLES, word_N.size), np.int32)
        for first, sample_B in self._drawn(start, word_N.size, lambda _, size: buffer_B[:size]):
            part_B = signed_N[first : first + sample_B.size]
            np.add(part_B, sample_B, out=part_B, casting="same_kind")

    def _drawn(
        self, start: int, size: int, room: Callable[[int, int], Integers]
    ) -> Iterator[tuple[int, Integers]]:
        """The samples block by block, each with its first place, in the room for so many from there on."""
        law = self._law
        keystream = prg.Keystream(self._word_key, offset_bytes=start * _WORD.itemsize)
        buffer_B = np.empty(min(BLOCK_SAMPLES, size), _WORD)
        place_B = np.empty(buffer_B.size, np.int64)
        further: Callable[[bytes], bytes] | None = None
        for first in range(0, size, BLOCK_SAMPLES):
            word_B = buffer_B[: size - first]
            out_B = room(first, word_B.size)
            keystream.fill(word_B.view(np.uint8))
            found = self._pick(law.entries_C, law.index_bits, word_B, out_B, place_B)
            if found and further is None:
                # block p of AES-256-CTR is AES of p: ECB of distinct numbers, without a stream for each
                further = Cipher(algorithms.AES256(self._more_key), modes.ECB()).encryptor().update
            for place in place_B[:found]:
                assert further is not None
                position = (start + first + int(place)).to_bytes(_CIPHER_BLOCK_BYTES, "big")
                more = int.from_bytes(further(position)[: MORE_BITS // 8], "little")
                out_B[place] = decided(law, int(word_B[place]), more)
            yield first, out_B


def decided(law: Law, word: int, more: int) -> int:
    """The sample of an undecided word: the cell's own magnitude if `more` is below the threshold's rest."""
    mask = (1 << law.index_bits) - 1
    own = word >> 1 & mask
    magnitude = own if more < int(law.more_C[own]) else int(law.entries_C[own]) & mask
    return -magnitude if word & 1 else magnitude


def _derived(key: bytes, quantity: int, use: bytes) -> bytes:
    info = b"chorale/v1/noise\0" + quantity.to_bytes(4, "big") + use
    return HKDF(algorithm=hashes.SHA256(), length=prg.KEY_BYTES, salt=None, info=info).derive(key)


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
