"""The table look-up of crypto/noise/skellam_stream.py as a compiled loop.

numba comes with the extra `silo`. Without it, or where it finds no folder for what it compiled (beside
this file, NUMBA_CACHE_DIR, the user's cache), the loop in numpy serves, with the same samples: compiling
anew in every process would cost more than it saves.
"""

# B = samples of one block, C = cells of the table

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.signedinteger[Any]]
Pick: TypeAlias = Callable[
    [NDArray[np.uint32], int, NDArray[np.uint32], Integers, NDArray[np.int64]],
    int,
]


@cache
def compiled_pick() -> Pick | None:
    """The compiled loop, or None. The first call imports numba, half a second and 60 MB."""
    try:
        import numba

        compiled: Pick = numba.njit(nogil=True, cache=True)(_pick)
    except (ImportError, RuntimeError):  # RuntimeError: no folder to keep the compiled code in
        return None
    return compiled


def _pick(
    entries_C: NDArray[np.uint32],
    index_bits: int,
    word_B: NDArray[np.uint32],
    out_B: Integers,
    undecided_B: NDArray[np.int64],
) -> int:
    """As `noise.pick`; every step says its 32 bits, because numba widens sums of mixed types."""
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
