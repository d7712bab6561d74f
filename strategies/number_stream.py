"""Normal and uniform numbers with the same bits on every machine: what a job's first state is drawn from.

Whole numbers from AES-256-CTR and a table with a known digest; then + - x / and sqrt of float64, which
IEEE 754 rounds in one way, each element by itself or in a fixed order. No LAPACK, no generator of numpy or
torch.
Source: docs/protocol.md 7.12.
"""

# N = numbers asked for, Q = quantiles

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crypto import prg
from crypto.errors import LocalProtocolError
from strategies.base import FloatArray

INDEX_BITS: Final = 16  # of a place in the table of quantiles
UNIT_BITS: Final = 24  # a quantile is a whole number of 2^-24 standard deviations
WORD_BITS: Final = 32  # of the stream, for one number

_BLOCK: Final = 1 << 18  # numbers made at a time; their words stay in the cache
# of all quantiles as little-endian 32-bit numbers; tests/vectors has them too
QUANTILES_SHA256: Final = "ba47833601b6c8de64b33839056bcd6b3eb0d549f9d2a2cfc62936ff9c442b90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """Starting values of a normal law around 0. std: its standard deviation."""

    std: float


Start: TypeAlias = float | Normal  # of an array: a number that fills it, or a law


class NumberStream:
    """One number after the other, a function of 32 bytes; each takes a 32-bit word of the key stream."""

    def __init__(self, key: bytes) -> None:
        self._stream = prg.Keystream(key)

    def normal(self, count: int, *, variance: float = 1.0) -> FloatArray:
        """The sum of the two quantiles that a word's halves name, at this variance. Shapes: -> (N,)."""
        # the sum of two has variance 2
        factor = math.sqrt(variance / 2.0) / (1 << UNIT_BITS)
        normal_N, table_Q = np.empty(count), quantiles()
        for place, word_N in self._words(count, "<u2"):
            sum_N = table_Q[word_N[::2]] + table_Q[word_N[1::2]]
            np.multiply(sum_N, factor, out=normal_N[place : place + sum_N.size])
        return normal_N

    def uniform(self, count: int, *, bound: float) -> FloatArray:
        """2^32 even steps from -bound to bound. Shapes: -> (N,)."""
        factor, uniform_N = bound / (1 << WORD_BITS), np.empty(count)
        for place, word_N in self._words(count, "<u4"):
            odd_N = 2 * word_N.astype(np.int64) + (1 - (1 << WORD_BITS))
            np.multiply(odd_N, factor, out=uniform_N[place : place + odd_N.size])
        return uniform_N

    def _words(self, count: int, dtype: str) -> Iterator[tuple[int, NDArray[np.unsignedinteger]]]:
        """The words of so many numbers in blocks, each with the place of its first number."""
        for place in range(0, count, _BLOCK):
            block_B = np.empty(min(_BLOCK, count - place) * (WORD_BITS // 8), np.uint8)
            self._stream.fill(block_B)
            yield place, block_B.view(dtype)


def orthonormal_rows(rows: int, width: int, numbers: NumberStream) -> FloatArray:
    """Unit rows at right angles, Haar-distributed: Gram-Schmidt of normal rows, each twice, in fixed order.

    Shapes: -> (rows, width) float64. A row that all but lies in the span of those before is drawn again.
    """
    unit_RD = np.empty((rows, width))
    row = 0
    while row < rows:
        drawn_D = numbers.normal(width)
        rest_D = drawn_D
        for _ in range(2):  # once leaves rounding errors of the size of what it took away
            along_R = ordered_sum(unit_RD[:row] * rest_D, axis=1)
            rest_D = rest_D - ordered_sum(along_R[:, np.newaxis] * unit_RD[:row], axis=0)
        square = ordered_sum(rest_D * rest_D)
        if square > math.ldexp(1.0, -40) * ordered_sum(drawn_D * drawn_D):
            unit_RD[row] = rest_D / np.sqrt(square)
            row += 1
    return unit_RD


def ordered_sum(array: FloatArray, *, axis: int = 0) -> FloatArray:
    """One addition after the other along the axis: `np.sum` may add in another order on another machine."""
    if array.shape[axis] == 0:
        return np.zeros(np.delete(array.shape, axis))
    return np.asarray(np.add.accumulate(array, axis=axis).take(-1, axis=axis))


@cache
def quantiles() -> NDArray[np.int32]:
    """The whole number nearest to 2^24 times the normal law's quantile of (i + 1/2) / 2^16, for every i.

    The standard library's inverse of the law is right to 1e-15, and no product is nearer to a half than
    1e-13 of itself; the digest says that this machine's is. Shapes: -> (Q,). Raises LocalProtocolError where
    it is not.
    """
    inverse, half = NormalDist().inv_cdf, 1 << (INDEX_BITS - 1)
    upper = [round(inverse((half + place + 0.5) / (2 * half)) * (1 << UNIT_BITS)) for place in range(half)]
    upper_Q = np.array(upper, np.int32)
    table_Q = np.concatenate([-upper_Q[::-1], upper_Q])
    found = hashlib.sha256(table_Q.astype("<i4").tobytes()).hexdigest()
    if found != QUANTILES_SHA256:
        raise LocalProtocolError(f"quantiles: expected sha256 {QUANTILES_SHA256}, got {found}")
    table_Q.flags.writeable = False
    return table_Q
