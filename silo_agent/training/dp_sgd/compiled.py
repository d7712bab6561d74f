"""The inner loops of a step, compiled: one pass over the gradients of a micro-batch where torch needs many.

numba comes with the extra `silo`; where it does not compile, torch's own operations serve (clipping.py,
rounding.py), with the same roundings.
"""

# N = samples of one micro-batch, K = values of one parameter, B = of one block

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WORTH_VALUES: Final = 1 << 16  # of a gradient: fewer are not worth the second that loading numba takes

Loop = Callable[..., Any]


@cache
def loops() -> tuple[Loop, Loop] | None:
    """_squares_into and _round_into; None where numba does not compile them."""
    value_NK, none_N = np.empty((0, 0), np.float32), np.empty(0, np.int64)
    try:
        import numba

        # the order of a sum's terms is all that `reassoc` frees; it is the same for every row
        squares: Loop = numba.njit(nogil=True, cache=True, fastmath={"reassoc"})(_squares_into)
        squares(value_NK, np.empty(0))
        rounding: Loop = numba.njit(nogil=True, cache=True)(_round_into)
        rounding(value_NK, 0, np.empty((0, 0), np.uint16), np.empty(0, np.float32), none_N, none_N)
    except Exception:  # as in crypto/fixed_point/compiled.py
        return None
    return squares, rounding


def _squares_into(value_NK: NDArray[Any], squares_N: NDArray[np.float64]) -> None:
    """Adds each row's sum of squares, in float64."""
    for n in range(value_NK.shape[0]):
        value_K, squares = value_NK[n], 0.0
        for k in range(value_K.size):
            value = np.float64(value_K[k])
            squares += value * value
        squares_N[n] += squares


def _round_into(
    value_NK: NDArray[Any],
    start: int,
    bits_NB: NDArray[np.uint16],
    factor_N: NDArray[Any],
    sum_B: NDArray[np.int64],
    squares_N: NDArray[np.int64],
) -> None:
    """rounding.py, round_into, value by value and in the values' own type."""
    kind = value_NK.dtype.type
    steps = kind(65536)
    sum_B[:] = 0
    for n in range(bits_NB.shape[0]):
        factor, squares, bits_B = factor_N[n], np.int64(0), bits_NB[n]
        value_B = value_NK[n, start : start + bits_B.size]  # numba vectorizes over one index, not over two
        for i in range(bits_B.size):
            units = value_B[i] * factor
            whole = np.floor(units)
            rounded = np.int32(whole) + np.int32(kind(bits_B[i]) < (units - whole) * steps)
            sum_B[i] += rounded
            squares += np.int64(rounded) * np.int64(rounded)
        squares_N[n] += squares
