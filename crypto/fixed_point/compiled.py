"""The inner loops of a silo, compiled: rounding in one pass over the values where numpy needs nine, and the
rotation in the L2 cache.

numba comes with the extra `silo`. Without it, or where it finds no folder to keep what it compiled (next to
this file, NUMBA_CACHE_DIR, the user's cache), the numpy loops of encoder.py and projection.py serve with
the same words: compiling in every process would cost more than it saves.
"""

# B = values of one block, or rows of a projection's block; K = a projection's blocks

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Rounding = Callable[..., None]  # of the arguments of _round_into
Transform = Callable[..., None]  # of those of _transform_into

WORTH_VALUES: Final = 1 << 19  # fewer are not worth the second that loading numba takes


@cache
def rounding(value: np.dtype[Any], word_type: np.dtype[Any]) -> Rounding | None:
    """The loop for values and two's complement words of these types; None where numpy has to do.

    The first call of a process imports numba: about a second and 150 MB.
    """
    value_B = np.empty(0, value)
    value_B.flags.writeable = False  # as in crypto/fixed_point/encoder.py; to numba that is another type
    one = value.type(1)
    try:
        import numba

        loop: Rounding = numba.njit(nogil=True, cache=True)(_round_into)
        loop(value_B, np.empty(0, np.uint16), np.empty(0, word_type), one, one, one, one)
    except Exception:  # whatever keeps it from being compiled or kept, numpy gives the same words
        return None
    return loop


@cache
def transform() -> Transform | None:
    """The loop of crypto/fixed_point/projection.py; None where numpy has to do. Imports numba, too."""
    try:
        import numba

        loop: Transform = numba.njit(nogil=True, cache=True)(_transform_into)
        loop(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    except Exception:  # as above
        return None
    return loop


def _round_into(
    value_B: NDArray[Any],
    rounding_bits_B: NDArray[Any],
    out_B: NDArray[Any],
    scale: Any,
    most: Any,
    steps: Any,
    factor: Any,
) -> None:
    """crypto/fixed_point/encoder.py, round_into, value by value and in the values' own type."""
    kind = value_B.dtype.type
    for i in range(value_B.size):
        units = min(max(value_B[i] * factor, -most), most) * scale
        whole = np.floor(units)
        out_B[i] = whole + kind(kind(rounding_bits_B[i]) < (units - whole) * steps)


def _transform_into(work_BK: NDArray[np.float32], scratch: NDArray[np.float32]) -> None:
    """crypto/fixed_point/projection.py, _transformed, in place: as many columns at a time as the scratch
    holds.

    Two levels a pass, so half as many passes; what is left of an odd number of levels alone.
    """
    rows, blocks = work_BK.shape
    most = scratch.size // rows
    for first in range(0, blocks, most):
        width = min(most, blocks - first)
        for row in range(rows):
            scratch[row * width : (row + 1) * width] = work_BK[row, first : first + width]
        size, half = rows * width, width
        while 4 * half <= size:
            for start in range(0, size, 4 * half):
                a, b = scratch[start : start + half], scratch[start + half : start + 2 * half]
                c, d = (
                    scratch[start + 2 * half : start + 3 * half],
                    scratch[start + 3 * half : start + 4 * half],
                )
                for i in range(half):
                    sum_ab, sum_cd = a[i] + b[i], c[i] + d[i]
                    less_ab, less_cd = a[i] - b[i], c[i] - d[i]
                    a[i], b[i] = sum_ab + sum_cd, less_ab + less_cd
                    c[i], d[i] = sum_ab - sum_cd, less_ab - less_cd
            half *= 4
        if half < size:
            a, b = scratch[:half], scratch[half:size]
            for i in range(half):
                a[i], b[i] = a[i] + b[i], a[i] - b[i]
        for row in range(rows):
            work_BK[row, first : first + width] = scratch[row * width : (row + 1) * width]
