"""A seeded linear map that spreads a vector evenly over fewer numbers, and its transpose.

The vector is cut into blocks, each gets random signs and an orthonormal Walsh-Hadamard transform, and
the same random rows of every block are kept. It is linear, so it commutes with the sum over silos, and
public: both sides compute it from the job, the round and the phase. Source: docs/protocol.md 4.
"""

# N = values, B = rows of a block, K = blocks, R = kept rows

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import prg
from crypto.errors import ConfigError, LocalProtocolError

MAX_BLOCK = 4096
MIN_BLOCK = 16
MIN_BLOCKS = 256  # so that padding costs at most one value in 256

FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One map. seed: 32 bytes, public. size: values of the vector. block: rows of a block, a power of two.

    kept: numbers that are left, the same rows of every block.
    """

    seed: bytes
    size: int
    block: int
    kept: int

    def __post_init__(self) -> None:
        if len(self.seed) != prg.KEY_BYTES:
            raise ConfigError(f"projection: expected a seed of {prg.KEY_BYTES} bytes, got {len(self.seed)}")
        if self.size < 1 or not 1 <= self.block <= MAX_BLOCK or self.block & (self.block - 1):
            raise ConfigError(f"projection: no block of {self.block} rows for {self.size} values")
        rows, left = divmod(self.kept, self.blocks)
        if left or not 1 <= rows <= self.block:
            raise ConfigError(
                f"projection: expected a multiple of {self.blocks} up to {self.blocks * self.block} "
                f"kept numbers, got {self.kept}"
            )

    @classmethod
    def of(cls, size: int, *, seed: bytes, share: float = 1.0) -> Projection:
        """The map for a vector of that size. share: of the numbers to keep, rounded to whole rows."""
        block = MIN_BLOCK
        while block < MAX_BLOCK and 2 * block * MIN_BLOCKS <= size:
            block *= 2
        rows = max(1, round(share * block))
        return cls(seed=seed, size=size, block=block, kept=rows * -(-size // block))

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)

    @property
    def rows(self) -> int:
        """Kept rows of every block."""
        return self.kept // self.blocks

    def project(self, value_N: FloatArray) -> NDArray[np.float32]:
        """Shapes: (size,) -> (kept,). Not finite where a value is not."""
        if value_N.shape != (self.size,):
            raise LocalProtocolError(f"projection: expected {self.size} values, got {value_N.shape}")
        work_BK = np.zeros((self.block, self.blocks), np.float32)
        work_BK.reshape(-1)[: self.size] = value_N
        work_BK *= self._signs_BK
        return _transformed(work_BK)[self._kept_R].reshape(-1)

    def expand(self, sum_K: FloatArray) -> NDArray[np.float64]:
        """The transpose over the kept share, so without bias. Shapes: (kept,) -> (size,)."""
        if sum_K.shape != (self.kept,):
            raise LocalProtocolError(f"projection: expected {self.kept} numbers, got {sum_K.shape}")
        work_BK = np.zeros((self.block, self.blocks), np.float64)
        work_BK[self._kept_R] = sum_K.reshape(self.rows, self.blocks)
        work_BK *= self.block / self.rows
        spread_BK = _transformed(work_BK)
        spread_BK *= self._signs_BK
        return np.asarray(spread_BK, np.float64).reshape(-1)[: self.size]

    @cached_property
    def _kept_R(self) -> NDArray[np.intp]:
        """Rows with the smallest random numbers, in ascending order."""
        order_B = np.empty(self.block, np.dtype("<u8"))
        prg.Keystream(self.seed).fill(order_B.view(np.uint8))
        return np.sort(np.argsort(order_B, kind="stable")[: self.rows])

    @cached_property
    def _signs_BK(self) -> NDArray[np.float32]:
        bits = np.empty((self.block, -(-self.blocks // 8)), np.uint8)
        prg.Keystream(self.seed, offset_bytes=8 * self.block).fill(bits.reshape(-1))
        negative_BK = np.unpackbits(bits, axis=1, count=self.blocks, bitorder="little")
        return np.where(negative_BK, np.float32(-1), np.float32(1))


def _transformed(work_BK: FloatArray) -> FloatArray:
    """Orthonormal Walsh-Hadamard transform along the rows."""
    rows, blocks = work_BK.shape
    half = 1
    while half < rows:
        pairs = work_BK.reshape(-1, 2, half, blocks)
        work_BK = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1).reshape(rows, -1)
        half *= 2
    work_BK /= np.sqrt(work_BK.dtype.type(rows))
    return work_BK
