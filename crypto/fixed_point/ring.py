"""Words of Z(2^w): their vectors, and sums of them back to real values.

Quantities stand one after the other in the vector of their word size (crypto/fixed_point/layout.py). Negative
values are two's complement. Source: docs/protocol.md 4.
"""

# L = words of one vector, N = values of one quantity

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crypto.errors import LocalProtocolError
from crypto.fixed_point.layout import Layout, Quantity

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
WordType: TypeAlias = np.dtype[np.unsignedinteger[Any]]

# number types by the size of a word in bits
WORD_TYPES: Final[dict[int, WordType]] = {
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}
SIGNED_TYPES: Final[dict[int, np.dtype[np.signedinteger[Any]]]] = {
    16: np.dtype(np.int16),
    32: np.dtype(np.int32),
    64: np.dtype(np.int64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One silo's input as words: a vector per word size, and how many values were clipped."""

    vectors: dict[int, Words] = field(repr=False)
    clipped_total: int

    def check_layout(self, layout: Layout) -> None:
        """Raises LocalProtocolError unless these are words of that layout."""
        check_vectors(self.vectors, layout=layout)

    def read(self, ring_bits: int, start: int, out: Words) -> None:
        """Copy the words from index `start` of the vector of that word size over `out`."""
        out[:] = self.vectors[ring_bits][start : start + out.size]


def decode(sums: Mapping[int, Words], *, layout: Layout) -> dict[str, NDArray[Any]]:
    """Every quantity of a sum in its own units and shape: float64, or int64 for counts.

    Raises LocalProtocolError if the vectors are not of this layout.
    """
    check_vectors(sums, layout=layout)
    return {
        quantity.name: decode_quantity(
            sums[quantity.ring_bits][layout.slices(quantity.ring_bits)[quantity.name]],
            quantity=quantity,
            members=layout.members,
        )
        for quantity in layout.quantities
    }


def decode_quantity(words_N: Words, *, quantity: Quantity, members: int) -> NDArray[Any]:
    """One quantity of a sum in its own units and shape: float64, or int64 for counts."""
    value_N = decode_piece(words_N, quantity=quantity, members=members)
    if quantity.projection is not None:
        value_N = quantity.projection.expand(value_N)
    return value_N.reshape(quantity.shape)


def decode_piece(words_N: Words, *, quantity: Quantity, members: int) -> NDArray[Any]:
    """Any words of one quantity of a sum, each by itself: what `decode_quantity` gives before it expands."""
    signed_N = words_N.view(SIGNED_TYPES[quantity.ring_bits])
    if quantity.is_count:
        return signed_N.astype(np.int64)
    real_N = signed_N.astype(np.float64)
    real_N /= quantity.scale(members)  # exact: a power of two
    return real_N


def add_into(total: Mapping[int, Words], part: Mapping[int, Words]) -> None:
    """Add a vector of each word size to the total, modulo 2^w."""
    if total.keys() != part.keys():
        raise LocalProtocolError("ring: the vectors have different word sizes")
    for ring_bits, sum_L in total.items():
        if sum_L.shape != part[ring_bits].shape:
            raise LocalProtocolError(f"ring: expected {sum_L.size} words, got {part[ring_bits].size}")
        np.add(sum_L, part[ring_bits], out=sum_L)


def zeros(layout: Layout) -> dict[int, Words]:
    """An empty sum."""
    return {
        ring_bits: np.zeros(layout.length(ring_bits), WORD_TYPES[ring_bits])
        for ring_bits in layout.ring_sizes
    }


def check_vectors(vectors: Mapping[int, Words], *, layout: Layout) -> None:
    """Raises LocalProtocolError unless there is one vector of the right type and length per word size."""
    if tuple(sorted(vectors)) != layout.ring_sizes:
        raise LocalProtocolError(
            f"ring: expected word sizes {layout.ring_sizes}, got {tuple(sorted(vectors))}"
        )
    for ring_bits, vector_L in vectors.items():
        if vector_L.dtype != WORD_TYPES[ring_bits] or vector_L.shape != (layout.length(ring_bits),):
            expected = f"{layout.length(ring_bits)} words of {ring_bits} bits"
            raise LocalProtocolError(f"ring: expected {expected}, got {vector_L.size} {vector_L.dtype}")
