"""A silo's whole array, clipped to an L2 norm before it is rounded, and the norm of what was rounded.

The norm is that of all values together: clipped tensor by tensor they would be longer. One value that is
not finite refuses the array, because a norm that is NaN is beyond no clip.
Source: docs/protocol.md 4.11; docs/privacy-proofs.md, "Sensitivity after rounding".
"""

# N = values of the array, B = of one block

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crypto.errors import QuantizationError

Reals = NDArray[np.floating[Any]]

# of the norm: float32's rounding of the product, of the rotation's ten levels and of their factor together
# is below 13 / 2^24, so no rounding error lifts a clipped array above its norm
ROOM: Final = 1.0 - 2.0**-19
_BLOCK_VALUES: Final = 1 << 13  # float64 of a block stay in the L1 cache; BLAS takes no second thread
_EXACT: Final = 2.0**53  # float64 adds whole numbers exactly up to here
# what float32 multiplies and rotates without overflow, and what is an ordinary float32 factor
_LARGEST_VALUE: Final = 2.0**60
_MIN_FACTOR: Final = 2.0**-60


def shrunk(value_N: Reals, clip_l2: float, *, name: str) -> tuple[Reals, float]:
    """Values, and the factor of at most 1 that takes their norm to clip_l2 where it is larger.

    The values are the caller's, but for those that are so large that the product has no room in their type.
    Shapes: (N,) float32 or float64. Raises QuantizationError if a value is not finite.
    """
    least, most = float(value_N.min()), float(value_N.max())  # NaN anywhere makes both NaN
    if not (math.isfinite(least) and math.isfinite(most)):
        raise QuantizationError(f"quantity {name}: a value is not finite")
    largest = max(-least, most)
    if largest > _LARGEST_VALUE:
        return _rescaled(value_N, largest, clip_l2 * ROOM), 1.0
    norm = math.sqrt(sum(squares for _, squares in _squares(value_N)))
    if norm <= clip_l2 * ROOM:  # as is the norm of nothing but zeros
        return value_N, 1.0
    factor = clip_l2 * ROOM / norm
    if factor < _MIN_FACTOR:
        return _rescaled(value_N, largest, clip_l2 * ROOM), 1.0
    return value_N, factor


def squared_norm(whole_N: NDArray[np.signedinteger[Any]]) -> int:
    """Of whole numbers, exactly."""
    total = 0
    for block, squares in _squares(whole_N):
        total += int(squares) if squares < _EXACT else sum(int(whole) ** 2 for whole in whole_N[block])
    return total


def _squares(number_N: NDArray[Any]) -> Iterator[tuple[slice, float]]:
    """Of each block the sum of the squares, in float64."""
    buffer_B = np.empty(min(_BLOCK_VALUES, number_N.size), np.float64)
    for start in range(0, number_N.size, _BLOCK_VALUES):
        block = slice(start, start + _BLOCK_VALUES)
        float_B = buffer_B[: number_N.size - start]
        np.copyto(float_B, number_N[block])
        yield block, float(np.dot(float_B, float_B))


def _rescaled(value_N: Reals, largest: float, norm: float) -> Reals:
    """A copy of that norm. By a power of two first, so that no square passes float64."""
    small_N = np.ldexp(value_N.astype(np.float64), -math.frexp(largest)[1])
    small_N *= norm / math.sqrt(sum(squares for _, squares in _squares(small_N)))
    return small_N.astype(value_N.dtype)
