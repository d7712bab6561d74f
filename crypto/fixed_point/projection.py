"""A seeded linear map that spreads a vector evenly over its numbers.

The vector is cut into blocks, and each gets random signs and an orthonormal Walsh-Hadamard transform. A word
is then a sum over a whole block with random signs:
nearly normal, of nearly the same size everywhere, so few bits hold it (Suresh et al., "Distributed Mean
Estimation with Limited Communication", 2017, section 3; Konecny et al., arXiv 1610.05492, section 3.2).
The map is linear, so it commutes with the sum over silos, and public: both sides compute it.
Source: docs/protocol.md 4.6.
"""

# N = values, B = rows of a block, K = blocks, M = B K words

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from crypto import prg
from crypto.errors import ConfigError, LocalProtocolError
from crypto.fixed_point import compiled

MIN_BLOCK: Final = 16
MAX_BLOCK: Final = 1024  # words of 2^20 values, of which one is all, are 32 times their root mean square
BLOCKS: Final = 256  # fewest blocks of a large vector: padding costs at most one word in 256

_SIGNS_FROM: Final = 8  # times B: where in the key stream the signs begin
_SIGNS: Final = 1 - 2 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).astype(np.float64)  # (256, 8): by byte of the key stream
_COMPILED_COLUMNS: Final = 128  # of 1024 rows: 512 KiB, cheapest of 32 .. 192
_SIGN_BYTES: Final = 1 << 13  # signs of 64 Ki values at a time: they stay in the L2 cache

FloatArray = NDArray[np.floating[Any]]
Number = TypeVar("Number", np.float32, np.float64)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One map. seed: 32 bytes, public. size: values. block: rows of a block, a power of two.

    Raises ConfigError for sizes that are out of range.
    """

    seed: bytes
    size: int
    block: int

    def __post_init__(self) -> None:
        if len(self.seed) != prg.KEY_BYTES:
            raise ConfigError(f"projection: expected a seed of {prg.KEY_BYTES} bytes, got {len(self.seed)}")
        if self.size < 1:
            raise ConfigError(f"projection: expected at least one value, got {self.size}")
        if not MIN_BLOCK <= self.block <= MAX_BLOCK or self.block & (self.block - 1):
            raise ConfigError(
                f"projection: a block is a power of two of {MIN_BLOCK} to {MAX_BLOCK}, got {self.block}"
            )

    @classmethod
    def of(cls, size: int, *, seed: bytes) -> Projection:
        """The map for a vector of that size."""
        block = MIN_BLOCK
        while block < MAX_BLOCK and 2 * block * BLOCKS <= size:
            block *= 2
        return cls(seed=seed, size=size, block=block)

    @property
    def blocks(self) -> int:
        return math.ceil(self.size / self.block)

    @property
    def words(self) -> int:
        """Of the padded vector."""
        return self.block * self.blocks

    def project(self, value_N: FloatArray) -> NDArray[np.float32]:
        """Shapes: (size,) -> (words,). A value that is not finite makes words that are not."""
        if value_N.shape != (self.size,):
            raise LocalProtocolError(f"projection: expected {self.size} values, got {value_N.size}")
        work_BK = np.empty((self.block, self.blocks), np.float32)
        flat = work_BK.reshape(-1)
        flat[self.size :] = 0.0
        self._signed(value_N, out_N=flat[: self.size], factor=1.0 / math.sqrt(self.block))
        # compiled where that pays: at silos, never at a coordinator, which only expands
        loop = compiled.transform() if self.size >= compiled.WORTH_VALUES else None
        if loop is None:
            work_BK = _transformed(work_BK)
        else:
            loop(work_BK, np.empty(self.block * _COMPILED_COLUMNS, np.float32))
        return work_BK.reshape(-1)

    def expand(self, sum_M: FloatArray) -> NDArray[np.float64]:
        """The values again.

        Shapes: (words,) -> (size,). In float64 and a fixed order: the global state follows from it.
        """
        if sum_M.shape != (self.words,):
            raise LocalProtocolError(f"projection: expected {self.words} words, got {sum_M.size}")
        work_BK = sum_M.astype(np.float64).reshape(self.block, self.blocks)
        value_N = _transformed(work_BK).reshape(-1)[: self.size]
        self._signed(value_N, out_N=value_N, factor=math.sqrt(self.block) / self.block)
        return value_N

    def _signed(self, value_N: FloatArray, *, out_N: FloatArray, factor: float) -> None:
        """Write every value times its sign and the factor, in the numbers that it is written to."""
        signs = (_SIGNS * factor).astype(out_N.dtype)
        stream = prg.Keystream(self.seed, offset_bytes=_SIGNS_FROM * self.block)
        bits, sign_8 = np.empty(_SIGN_BYTES, np.uint8), np.empty((_SIGN_BYTES, 8), out_N.dtype)
        for start in range(0, self.size, 8 * _SIGN_BYTES):
            part = slice(start, min(start + 8 * _SIGN_BYTES, self.size))
            stream.fill(bits)
            np.take(signs, bits, axis=0, out=sign_8, mode="clip")  # every byte is a row; clip skips the check
            sign_N = sign_8.reshape(-1)[: part.stop - start]
            np.multiply(value_N[part], sign_N, out=out_N[part], casting="same_kind")


def _transformed(work_BK: NDArray[Number]) -> NDArray[Number]:
    """The transform of every column, not yet divided by sqrt(B). Uses `work_BK` up.

    Whole rows at a time: numpy adds long rows at the speed of memory, and short ones at that of a call.
    """
    here, there = work_BK, np.empty_like(work_BK)
    half = 1
    while half < len(work_BK):
        pairs = here.reshape(-1, 2, half * work_BK.shape[1])
        out = there.reshape(pairs.shape)
        np.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=out[:, 1])
        here, there = there, here
        half *= 2
    return here
