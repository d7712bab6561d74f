"""Fixed point: real values to words of Z(2^w) and sums of words back to real values.

Quantities stand one after the other in the vector of their word size (crypto/layout.py). Negative
values are two's complement. Source: docs/protocol.md 4.
"""

# L = words of one vector, N = values of one quantity, B = values of one block

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crypto import prg
from crypto.errors import LocalProtocolError, QuantisationError
from crypto.layout import CLIPPED, Layout, Quantity

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
WordType: TypeAlias = np.dtype[np.unsignedinteger[Any]]

BLOCK_VALUES: Final = 1 << 16  # cheapest of 4 Ki .. 256 Ki, docs/performance.md

_UNSIGNED: Final[dict[int, WordType]] = {
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}
_SIGNED: Final[dict[int, np.dtype[np.signedinteger[Any]]]] = {
    16: np.dtype(np.int16),
    32: np.dtype(np.int32),
    64: np.dtype(np.int64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One silo's input as words: a vector per word size, and how many values were clipped."""

    vectors: dict[int, Words] = field(repr=False)
    clipped_total: int


def word_type(word: int) -> WordType:
    """The unsigned number type of a word size."""
    return _UNSIGNED[word]


def encode(
    values: Mapping[str, ArrayLike],
    *,
    layout: Layout,
    random: Callable[[int], bytes] = os.urandom,
) -> Encoded:
    """Clip, scale and round every value stochastically; counts are exact.

    Shapes: as the quantities declare. Units: as the quantities declare.
    A value beyond its bound is clipped and counted; the layout's `clipped` quantity, if it has one,
    is filled with that count. Rounding is up with the probability of the fraction (to 2^-32), so the
    sum has no bias and never passes what the scale leaves room for.
    Raises QuantisationError for missing or surplus names, wrong shapes, values that are not finite,
    and counts that are not whole or beyond their bound. Source: docs/protocol.md 4.
    """
    arrays = _arrays(values, layout)
    dice = prg.Keystream(random(prg.KEY_BYTES))
    vectors = {word: np.zeros(layout.length(word), _UNSIGNED[word]) for word in layout.words}
    clipped_total = 0
    for quantity in layout.quantities:
        if quantity.name == CLIPPED:
            continue
        out = _part(vectors, layout, quantity)
        if quantity.is_count:
            _encode_count(arrays[quantity.name], quantity, out)
        else:
            clipped_total += _encode_values(arrays[quantity.name], quantity, layout.members, dice, out)
    _fill_clipped(vectors, layout, clipped_total)
    return Encoded(vectors=vectors, clipped_total=clipped_total)


def decode(sums: Mapping[int, Words], *, layout: Layout) -> dict[str, NDArray[Any]]:
    """Every quantity of a sum in its own units and shape: float64, or int64 for counts.

    Raises LocalProtocolError if the vectors are not of this layout.
    """
    check_vectors(sums, layout=layout)
    return {quantity.name: _decoded(sums, layout, quantity) for quantity in layout.quantities}


def add_into(total: Mapping[int, Words], part: Mapping[int, Words]) -> None:
    """Add a vector of each word size to the total, modulo 2^w."""
    if total.keys() != part.keys():
        raise LocalProtocolError("ring: the vectors have different word sizes")
    for word, sum_L in total.items():
        if sum_L.shape != part[word].shape:
            raise LocalProtocolError(f"ring: expected {sum_L.size} words, got {part[word].size}")
        np.add(sum_L, part[word], out=sum_L)


def zeros(layout: Layout) -> dict[int, Words]:
    """An empty sum."""
    return {word: np.zeros(layout.length(word), _UNSIGNED[word]) for word in layout.words}


def check_vectors(vectors: Mapping[int, Words], *, layout: Layout) -> None:
    """Raises LocalProtocolError unless there is one vector of the right type and length per word size."""
    if tuple(sorted(vectors)) != layout.words:
        raise LocalProtocolError(f"ring: expected word sizes {layout.words}, got {tuple(sorted(vectors))}")
    for word, vector_L in vectors.items():
        if vector_L.dtype != _UNSIGNED[word] or vector_L.shape != (layout.length(word),):
            expected = f"{layout.length(word)} words of {word} bits"
            raise LocalProtocolError(f"ring: expected {expected}, got {vector_L.size} {vector_L.dtype}")


def _arrays(values: Mapping[str, ArrayLike], layout: Layout) -> dict[str, NDArray[Any]]:
    expected = {quantity.name for quantity in layout.quantities} - {CLIPPED}
    if values.keys() != expected:
        odd = sorted(values.keys() ^ expected)
        raise QuantisationError(f"values: missing or surplus quantities {', '.join(odd)}")
    return {
        quantity.name: _array(values[quantity.name], quantity)
        for quantity in layout.quantities
        if quantity.name in expected
    }


def _array(value: ArrayLike, quantity: Quantity) -> NDArray[Any]:
    try:
        array_N = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise _odd(quantity, "is no array of numbers") from None
    if array_N.dtype.kind not in "biuf":
        raise _odd(quantity, f"holds {array_N.dtype}, expected numbers")
    if array_N.shape != quantity.shape:
        raise _odd(quantity, f"expected shape {quantity.shape}, got {array_N.shape}")
    flat_N = array_N.reshape(-1)
    return flat_N if quantity.projection is None else quantity.projection.project(flat_N)


def _part(vectors: Mapping[int, Words], layout: Layout, quantity: Quantity) -> Words:
    return vectors[quantity.word][layout.slices(quantity.word)[quantity.name]]


def _blocks(size: int) -> Iterator[slice]:
    for start in range(0, size, BLOCK_VALUES):
        yield slice(start, start + BLOCK_VALUES)


def _encode_count(count_N: NDArray[Any], quantity: Quantity, out: Words) -> None:
    for block in _blocks(count_N.size):
        count_B = count_N[block]
        if count_B.dtype.kind == "f" and not (np.isfinite(count_B) & (np.floor(count_B) == count_B)).all():
            raise _odd(quantity, "a count is not a whole number")
        # Python numbers, because the negative of the least int64 is no int64
        if max(int(count_B.max()), -int(count_B.min())) > int(quantity.bound):
            raise _odd(quantity, f"a count is beyond its bound {quantity.bound:g}")
        out[block] = count_B.astype(np.int64).astype(out.dtype)


def _encode_values(
    value_N: NDArray[Any], quantity: Quantity, members: int, dice: prg.Keystream, out: Words
) -> int:
    scale = quantity.scale(members)
    rounder = _Rounder(dice)
    clipped = 0
    for block in _blocks(value_N.size):
        value_B = value_N[block].astype(np.float64)
        clipped += _clip(value_B, quantity)
        value_B *= scale  # exact: a power of two
        rounder.round_into(value_B, out[block])
    return clipped


def _clip(value_B: NDArray[np.float64], quantity: Quantity) -> int:
    """Clip in place; how many were beyond the bound."""
    least, most = float(value_B.min()), float(value_B.max())  # NaN anywhere makes both NaN
    if not (np.isfinite(least) and np.isfinite(most)):
        raise _odd(quantity, "a value is not finite")
    bound = float(quantity.bound)
    if -bound <= least and most <= bound:
        return 0
    clipped = int(np.count_nonzero(np.abs(value_B) > bound))
    np.clip(value_B, -bound, bound, out=value_B)
    return clipped


class _Rounder:
    """Stochastic rounding with buffers that are used again for every block."""

    def __init__(self, dice: prg.Keystream) -> None:
        self._dice = dice
        self._random_B = np.empty(BLOCK_VALUES, np.dtype("<u4"))
        self._fraction_B = np.empty(BLOCK_VALUES, np.float64)
        self._below_B = np.empty(BLOCK_VALUES, np.bool_)

    def round_into(self, value_B: NDArray[np.float64], out: Words) -> None:
        """Write floor(x), or one more with the probability of x - floor(x). `value_B` is used up.

        Floor and fraction are exact in float64, so nothing rounds past ceil(x).
        """
        size = value_B.size
        random_B, fraction_B = self._random_B[:size], self._fraction_B[:size]
        self._dice.fill(random_B.view(np.uint8))
        fraction_B[:] = value_B
        np.floor(value_B, out=value_B)
        fraction_B -= value_B
        fraction_B *= 2.0**32
        is_up_B = np.less(random_B, fraction_B, out=self._below_B[:size])
        # int64 first: a negative float has no defined unsigned value
        whole_B = value_B.astype(np.int64)
        whole_B += is_up_B
        out[:] = whole_B.astype(out.dtype)


def _fill_clipped(vectors: Mapping[int, Words], layout: Layout, clipped_total: int) -> None:
    for quantity in layout.quantities:
        if quantity.name == CLIPPED:
            # saturates: it flags a round, it measures nothing
            _part(vectors, layout, quantity)[:] = min(clipped_total, int(quantity.bound))


def _decoded(sums: Mapping[int, Words], layout: Layout, quantity: Quantity) -> NDArray[Any]:
    signed_N = _part(sums, layout, quantity).view(_SIGNED[quantity.word])
    if quantity.is_count:
        return signed_N.astype(np.int64).reshape(quantity.shape)
    real_N = signed_N.astype(np.float64)
    real_N /= quantity.scale(layout.members)  # exact: a power of two
    if quantity.projection is not None:
        real_N = quantity.projection.expand(real_N)
    return real_N.reshape(quantity.shape)


def _odd(quantity: Quantity, what: str) -> QuantisationError:
    return QuantisationError(f"quantity {quantity.name}: {what}")
