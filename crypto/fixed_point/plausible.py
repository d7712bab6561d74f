"""Whether honest silos could have given a sum: bounds that every honest input keeps, added up.

Masks hide elements of the ring, so a silo that lies may add any word. What honest silos clip, round and noise
lies within a box, and a sum outside it is not applied. Inside the box one silo still moves the sum as it
likes. The box holds for words, so for those of a projection before they are expanded.
Source: docs/protocol.md 4.12.
"""

# N = words of one quantity

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from crypto.errors import Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import SIGNED_TYPES, Words
from crypto.noise.gaussian import noise_tail


class ImplausibleSum(RemoteProtocolError):
    """No honest silos give such a sum. It does not say who lied."""

    code = Refusal.SUM


def check_plausible(sums: Mapping[int, Words], *, layout: Layout, survivors: int) -> None:
    """Raises ImplausibleSum unless honest inputs of so many silos (|U3|) can have this sum.

    sums: a vector for each word size, as `ring.decode` takes them. Honest inputs fail with a probability
    of at most 2^-40 under noise, and never without.
    """
    largest: dict[str, int] = {}
    for quantity in layout.quantities:
        place = layout.slices(quantity.ring_bits)[quantity.name]
        word_N = sums[quantity.ring_bits][place].view(SIGNED_TYPES[quantity.ring_bits])
        low, high = int(np.min(word_N)), int(np.max(word_N))
        most = largest_word(quantity, members=layout.members, survivors=survivors)
        least = 0 if quantity.is_count else -most
        if low < least or high > most:
            raise ImplausibleSum(f"quantity {quantity.name}: no {survivors} honest silos have this sum")
        if quantity.is_count and quantity.shape == ():
            largest[quantity.name] = high
    for quantity in layout.quantities:
        own, limit = largest.get(quantity.name), largest.get(quantity.at_most)
        if own is not None and limit is not None and own > limit:
            raise ImplausibleSum(f"quantity {quantity.name}: its sum is above that of {quantity.at_most}")


def largest_word(quantity: Quantity, *, members: int, survivors: int) -> int:
    """Largest magnitude of a word of the sum, noise's tail included. Units: ring units."""
    clean = survivors * math.ceil(quantity.scale(members) * quantity.bound)
    if quantity.noise is None:
        return clean
    return clean + noise_tail(survivors * quantity.noise.variance, quantity.size)
