"""Normal and uniform numbers with the same bits on every machine: what a job's first state is drawn from.

Whole numbers from AES-256-CTR and a table; then + - x / and sqrt of float64, which IEEE 754 rounds in one
way, each element by itself or in a fixed order. No libm, no LAPACK, no generator of numpy or torch.
Source: docs/protocol.md 7.12.
"""

# N = numbers asked for, Q = quantiles

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crypto import prg
from strategies.base import FloatArray

INDEX_BITS: Final = 16  # of a place in the table of quantiles
UNIT_BITS: Final = 24  # a quantile is a whole number of 2^-24 standard deviations
WORD_BITS: Final = 32  # of the stream, for one number

_BLOCK: Final = 1 << 18  # numbers made at a time; their words stay in the cache
_FIXED_BITS: Final = 112  # of the fractions below; errors stay below 2^-70, quantiles are far from a half
_CLOSE: Final = 1 << 40  # a mass that is right to 2^-72
# 1 / sqrt(2 pi)
_DENSITY: Final = 398942280401432677939946059934381868475858631 * (1 << _FIXED_BITS) // 10**45


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

    From 1/2 up, in fixed point: each quantile by Newton's steps from the one before. Shapes: -> (Q,).
    """
    place, density, upper = 0, _DENSITY, list[int]()
    cell = 1 << (_FIXED_BITS - INDEX_BITS)
    for mass in [cell // 2, *[cell] * ((1 << (INDEX_BITS - 1)) - 1)]:
        step = (mass << _FIXED_BITS) // density
        while True:
            grown, ratio = _mass_and_ratio(place, density, step)
            if abs(grown - mass) < _CLOSE:
                break
            step -= ((grown - mass) << (2 * _FIXED_BITS)) // (density * ratio)
        place, density = place + step, density * ratio >> _FIXED_BITS
        upper.append((place + (1 << (_FIXED_BITS - UNIT_BITS - 1))) >> (_FIXED_BITS - UNIT_BITS))
    upper_Q = np.array(upper, np.int32)
    table_Q = np.concatenate([-upper_Q[::-1], upper_Q])
    table_Q.flags.writeable = False
    return table_Q


def _mass_and_ratio(place: int, density: int, step: int) -> tuple[int, int]:
    """The normal law's mass from `place` on over `step`, and the density behind it in that at `place`.

    exp(-x d - d^2 / 2) is the sum of t_n with t_0 = 1 and t_(n+1) = -(x d t_n + d^2 t_(n-1)) / (n + 1).
    """
    drift, square = place * step >> _FIXED_BITS, step * step >> _FIXED_BITS
    before, term, n = 0, 1 << _FIXED_BITS, 0
    ratio = mean = 0
    while before or term:
        ratio, mean = ratio + term, mean + term // (n + 1)
        n += 1
        before, term = term, -((drift * term + square * before) // (n << _FIXED_BITS))
    return (mean * step >> _FIXED_BITS) * density >> _FIXED_BITS, ratio
