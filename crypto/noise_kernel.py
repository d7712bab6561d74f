"""The table look-up of crypto/noise.py as a compiled loop. Needs numba, which the extra `silo` brings."""

# B = samples of one block, C = cells of the table

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


# no cache=True: numba keeps compiled code on disk as pickles
@njit(nogil=True)
def pick(
    entries_C: NDArray[np.uint32],
    index_bits: int,
    word_B: NDArray[np.uint32],
    out_B: NDArray[np.signedinteger[Any]],
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
