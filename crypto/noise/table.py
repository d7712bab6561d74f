"""A symmetric law over whole numbers as an alias table of whole numbers: exact weights, nothing in floats.

Every weight is a whole number of 2^-95, so the law that is sampled is known exactly, and so is how far it is
from the law that was meant. Source: docs/privacy-proofs.md, "The noise".
"""

# C = cells of the table, 2^index_bits

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD_BITS: Final = 32  # of a sample's first word: sign, cell, and the first bits of a fraction
MORE_BITS: Final = 64  # of the fraction that decide when the first ones do not
WEIGHT_BITS: Final = WORD_BITS - 1 + MORE_BITS  # magnitudes' weights sum to 2^95: the sign is one bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells of equal weight, each shared by two magnitudes (Walker 1977, Vose 1991).

    Cell c holds magnitude c up to the cell's threshold and its alias from there on. entries_C:
    first 31 - index_bits bits of the threshold, then index_bits bits of alias. more_C: the
    threshold's further 64 bits. total_variation: at most this far from the law, per sample.
    """

    index_bits: int
    entries_C: NDArray[np.uint32] = field(repr=False)
    more_C: NDArray[np.uint64] = field(repr=False)
    total_variation: float


def alias_table(weights: Sequence[int], *, error: float) -> Table:
    """The table of a symmetric law, from floor(2^95 P(|X| = k)) for k = 0 and up, at most 2^16 of them.

    error: how far, in total variation, the computed P may be from the law's. The weights' sum is at most
    2^95; what is missing goes to 0, where it cannot make the tails heavier.
    """
    short = (1 << WEIGHT_BITS) - sum(weights)
    filled = [weights[0] + short, *weights[1:]]
    index_bits = (len(filled) - 1).bit_length()
    thresholds, aliases = _cells(filled, index_bits)
    first_C = np.array([threshold >> MORE_BITS for threshold in thresholds], np.uint32)
    more = [threshold & ((1 << MORE_BITS) - 1) for threshold in thresholds]
    return Table(
        index_bits=index_bits,
        entries_C=first_C << np.uint32(index_bits) | np.array(aliases, np.uint32),
        more_C=np.array(more, np.uint64),
        total_variation=short / 2.0**WEIGHT_BITS + error,
    )


def _cells(weights: Sequence[int], index_bits: int) -> tuple[list[int], list[int]]:
    """Vose's method: every light cell is filled up from one heavy one; a full cell is its own alias."""
    cells = 1 << index_bits
    capacity = 1 << (WEIGHT_BITS - index_bits)
    left = [*weights, *[0] * (cells - len(weights))]
    thresholds, aliases = [0] * cells, list(range(cells))
    light = [cell for cell, weight in enumerate(left) if weight < capacity]
    heavy = [cell for cell, weight in enumerate(left) if weight >= capacity]
    while light:
        cell, giver = light.pop(), heavy[-1]
        thresholds[cell], aliases[cell] = left[cell], giver
        left[giver] -= capacity - left[cell]
        if left[giver] < capacity:
            light.append(heavy.pop())
    return thresholds, aliases
