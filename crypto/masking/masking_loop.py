"""The compiled loop of masking: every key stream drawn and added while a block of it is in the cache.

Imports numba, and fails where OpenSSL cannot be reached: `crypto.fixed_point.compiled.masking` imports it.
"""

# B = words of one block, K = key streams

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding
import numba
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from crypto.masking import openssl

# by name, so that what was compiled can be kept on disk: the address is another one in each process
_NAME: Final = "chorale_encrypt_update"
llvmlite.binding.add_symbol(_NAME, openssl.encrypt_update_address())
_encrypt_update: Any = types.ExternalFunction(
    _NAME, types.int32(types.intp, types.intp, types.intp, types.intp, types.int32)
)


@numba.njit(nogil=True, cache=True)
def mask_into(
    word_B: NDArray[Any],
    context_K: NDArray[np.intp],
    flip_K: NDArray[Any],
    zeros: NDArray[np.uint8],
    drawn_B: NDArray[Any],
    written: NDArray[np.int32],
) -> bool:
    """Add the next words of every key stream to words of the same type, modulo 2^w.

    context: `openssl.Contexts.addresses_K`. flip: 0 adds a stream, all ones takes it away. drawn: room for
    the words that are drawn at once, zeros: as many bytes, written: room for one. False where OpenSSL
    refused.
    """
    for start in range(0, word_B.size, drawn_B.size):
        part_B = word_B[start : start + drawn_B.size]
        for k in range(context_K.size):
            answer = _encrypt_update(
                context_K[k],
                drawn_B.ctypes.data,
                written.ctypes.data,
                zeros.ctypes.data,
                part_B.size * part_B.itemsize,
            )
            if answer != 1:
                return False
            flip = flip_K[k]
            for i in range(part_B.size):
                part_B[i] += (drawn_B[i] ^ flip) - flip
    return True
