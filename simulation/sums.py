"""The sum of a phase without masks: of plain numbers, or of words. With masks: secure_sum.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from crypto.fixed_point import ring
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from crypto.fixed_point.ring import Encoded
from simulation.silos import Answer
from strategies.base import Array


def needs_words(layout: Layout) -> bool:
    """Whether a quantity is what it is only as words: under noise, or rotated to fewer of them."""
    return any(each.noise is not None or each.projection is not None for each in layout.quantities)


def plain_sums(layout: Layout, answers: Sequence[Answer]) -> dict[str, Array]:
    """Float64 sums of the values, each clipped to its bound, in the order of the answers; counts in int64.

    What the ring would give but for its rounding: a number differs by less than one step for each silo.
    """
    sums = {each.name: _sum_of(each, answers) for each in layout.quantities if each.name != CLIPPED}
    if any(each.name == CLIPPED for each in layout.quantities):
        sums[CLIPPED] = np.asarray(sum(answer.clipped for answer in answers), np.int64)
    return sums


def word_sums(layout: Layout, encoded: Iterable[Encoded]) -> dict[str, Array]:
    """The sum in the ring, decoded, without masks."""
    total = ring.zeros(layout)
    for each in encoded:
        ring.add_into(total, each.vectors)
    return ring.decode(total, layout=layout)


def _sum_of(quantity: Quantity, answers: Sequence[Answer]) -> Array:
    if quantity.is_count:
        counts = np.zeros(quantity.shape, np.int64)
        for answer in answers:
            counts += np.asarray(answer.values[quantity.name]).astype(np.int64)
        return counts
    total = np.zeros(quantity.shape)
    for answer in answers:
        value = np.asarray(answer.values[quantity.name])
        total += np.clip(value, -quantity.bound, quantity.bound) if answer.clipped else value
    return total
