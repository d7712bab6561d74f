"""The inner loop of encoding, compiled: one pass over the values where numpy needs nine.

numba comes with the extra `silo`. Without it, or where it finds no folder to keep what it compiled
(beside this file, NUMBA_CACHE_DIR, the user's cache), the numpy loop of crypto/encoder.py serves with
the same words: compiling anew in every process would cost more than it saves.
"""

# B = values of one block

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rounding = Callable[..., None]  # of the arguments of _round_into


@cache
def rounding(value: np.dtype[Any], word: np.dtype[Any]) -> Rounding | None:
    """The loop for values and two's complement words of these types; None where numpy has to do.

    The first call of a process imports numba: about a second and 150 MB.
    """
    loop = _loop()
    if loop is None:
        return None
    value_B = np.empty(0, value)
    value_B.flags.writeable = False  # as in crypto/encoder.py; to numba that is another type
    one = value.type(1)
    try:
        loop(value_B, np.empty(0, np.uint16), np.empty(0, word), one, one, one)
    except Exception:  # whatever keeps it from compiling or being kept, numpy gives the same words
        return None
    return loop


@cache
def _loop() -> Rounding | None:
    try:
        import numba

        loop: Rounding = numba.njit(_round_into, nogil=True, cache=True)
    except (ImportError, RuntimeError):  # RuntimeError: no folder to keep what is compiled
        return None
    return loop


def _round_into(
    value_B: NDArray[Any], dice_B: NDArray[Any], out_B: NDArray[Any], scale: Any, most: Any, sides: Any
) -> None:
    """crypto/encoder.py, round_into, value by value and in the values' own type."""
    kind = value_B.dtype.type
    for i in range(value_B.size):
        units = min(max(value_B[i], -most), most) * scale
        whole = np.floor(units)
        out_B[i] = whole + kind(kind(dice_B[i]) < (units - whole) * sides)
