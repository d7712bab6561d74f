"""The key streams of all seeds for one word size: moving on together, added to words or taken away.

`InNumpy` is the reference. `InLoop` draws and adds them in one compiled loop, for a silo's long vectors.
"""

# B = words of one block, K = key streams

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from crypto import prg
from crypto.errors import LocalProtocolError
from crypto.fixed_point import compiled, ring
from crypto.fixed_point.compiled import Masking
from crypto.fixed_point.ring import Words
from crypto.masking.openssl import Contexts

LOOP_BLOCK_BYTES: Final = 1 << 20  # of words that are read and masked before the next are read: a whole chunk
DRAWN_BYTES: Final = 1 << 14  # of one stream at a time in the loop: the L1 cache holds them beside the words


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedKey:
    """Key of one stream, and whether it is added, +1, or taken away, -1."""

    key: bytes = field(repr=False)
    sign: int


class MaskStreams(Protocol):
    """For one thread. block_bytes: of words, so many at a time cost least."""

    block_bytes: int

    def seek(self, offset_bytes: int) -> None:
        """Go to that byte of every stream."""

    def apply(self, words_B: Words) -> None:
        """Add or take away the next words of every stream, modulo 2^w."""


def mask_streams(keys: Sequence[SignedKey], *, word: int, is_compiled: bool) -> MaskStreams:
    """In a compiled loop where that is asked for and can be had."""
    loop = compiled.masking(ring.word_type(word)) if is_compiled and sys.byteorder == "little" else None
    return InNumpy(keys, word=word) if loop is None else InLoop(keys, word=word, loop=loop)


class InNumpy:
    """One stream after the other over a block of words."""

    block_bytes = prg.BLOCK_BYTES

    def __init__(self, keys: Sequence[SignedKey], *, word: int) -> None:
        self._streams = [(prg.Keystream(each.key), np.add if each.sign > 0 else np.subtract) for each in keys]
        self._mask_type = ring.word_type(word).newbyteorder("<")
        self._drawn = np.empty(self.block_bytes, np.uint8)

    def seek(self, offset_bytes: int) -> None:
        for stream, _ in self._streams:
            stream.seek(offset_bytes)

    def apply(self, words_B: Words) -> None:
        drawn = self._drawn[: words_B.nbytes]
        mask_B = drawn.view(self._mask_type)
        for stream, add in self._streams:
            stream.fill(drawn)
            add(words_B, mask_B, words_B)


class InLoop:
    """Every stream over what the cache holds, then over the next: `crypto.masking.masking_loop`."""

    block_bytes = LOOP_BLOCK_BYTES

    def __init__(self, keys: Sequence[SignedKey], *, word: int, loop: Masking) -> None:
        self._loop = loop
        self._contexts = Contexts([each.key for each in keys])
        kind = ring.word_type(word)
        self._flip_K = np.array([0 if each.sign > 0 else -1 for each in keys], np.int64).astype(kind)
        self._zeros, self._drawn_B = np.zeros(DRAWN_BYTES, np.uint8), np.empty(DRAWN_BYTES * 8 // word, kind)
        self._written = np.zeros(1, np.int32)

    def seek(self, offset_bytes: int) -> None:
        self._contexts.seek(offset_bytes)

    def apply(self, words_B: Words) -> None:
        """Raises LocalProtocolError where OpenSSL refused."""
        is_masked = self._loop(
            words_B, self._contexts.addresses_K, self._flip_K, self._zeros, self._drawn_B, self._written
        )
        if not is_masked:
            raise LocalProtocolError("key streams: OpenSSL refused to go on")
