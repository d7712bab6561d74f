"""The Skellam law as an integer alias table: exact weights, and how far they are from the law.

Skellam(variance) is the difference of two Poisson(variance / 2): whole numbers, symmetric, and sums
of independent ones are Skellam with the sum of the variances. P(k) = exp(-variance) I_|k|(variance),
I the modified Bessel function. Source: docs/privacy.md, "The noise".
"""

# C = cells of the table, 2^index_bits

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError

# below, there is no noise to speak of; above, the table leaves the cache and magnitudes 16 bits
VARIANCE_RANGE: Final = (2.0**-20, 2.0**24)
WORD_BITS: Final = 32  # of a sample's first word: sign, cell, and the first bits of a fraction
MORE_BITS: Final = 64  # of the fraction that decide when the first ones do not
WEIGHT_BITS: Final = WORD_BITS - 1 + MORE_BITS  # magnitudes' weights sum to 2^95: the sign is one bit

# the table ends where both tails together are below 2^-96: less than its rounding, about 2^-81
_TAIL_BITS: Final = 96
# the recurrence starts where they are below 2^-160, with 128 bits: see _bessel
_START_TAIL_BITS: Final = 160
_START: Final = 1 << 128
_RELATIVE_ERROR: Final = 2.0**-100
_KEPT_LAWS: Final = 16  # of up to 0.8 MiB each


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A symmetric law as cells of equal weight, each shared by two magnitudes (Walker, Vose).

    Cell c holds magnitude c up to the cell's threshold and its alias from there on. entries_C:
    first 31 - index_bits bits of the threshold, then index_bits bits of alias. more_C: the
    threshold's further 64 bits. total_variation: at most this far from the law, per sample.
    """

    variance: float
    index_bits: int
    entries_C: NDArray[np.uint32] = field(repr=False)
    more_C: NDArray[np.uint64] = field(repr=False)
    total_variation: float

    def delta_sampling(self, count: int, *, epsilon: float) -> float:
        """What `count` samples of this law add to delta: (1 + e^epsilon) * count * total_variation.

        count: samples of all the silos whose noise is relied on, in all the releases composed.
        epsilon: of the guarantee that delta belongs to. Source: docs/privacy.md, "The noise".
        """
        if count < 0 or not epsilon >= 0:
            raise ConfigError(f"noise: count and epsilon are not negative, got {count} and {epsilon}")
        return (1 + math.exp(epsilon)) * count * self.total_variation


@lru_cache(maxsize=_KEPT_LAWS)
def skellam_law(variance: float) -> Law:
    """The table of Skellam(variance), kept for the next caller.

    Units: variance in squared ring units. Raises ConfigError if it is not within VARIANCE_RANGE.
    """
    least, most = VARIANCE_RANGE
    if not least <= variance <= most:  # false for NaN too
        raise ConfigError(f"noise: variance is {least:g} to {most:g} squared units, got {variance}")
    # floor(2^95 P(|X| = k)) for k = 0 and up, with P right to a relative _RELATIVE_ERROR
    bessel = _bessel(float(variance))
    total = 2 * sum(bessel) - bessel[0]
    first, *rest = bessel[: _reach(float(variance), _TAIL_BITS) + 1]
    weights = [(first << WEIGHT_BITS) // total, *((value << (WEIGHT_BITS + 1)) // total for value in rest)]
    return alias_law(weights, variance=float(variance), error=_RELATIVE_ERROR)


def alias_law(weights: list[int], *, variance: float, error: float) -> Law:
    """The table of a symmetric law over whole numbers, from floor(2^95 P(|X| = k)) for k = 0 and up.

    error: how far, in total variation, the computed P may be from the law's. Their sum is at most 2^95;
    what is missing goes to 0, where it cannot make the tails heavier.
    """
    short = (1 << WEIGHT_BITS) - sum(weights)
    filled = [weights[0] + short, *weights[1:]]
    index_bits = (len(filled) - 1).bit_length()
    thresholds, aliases = _cells(filled, index_bits)
    first_C = np.array([threshold >> MORE_BITS for threshold in thresholds], np.uint32)
    more = [threshold & ((1 << MORE_BITS) - 1) for threshold in thresholds]
    return Law(
        variance=variance,
        index_bits=index_bits,
        entries_C=first_C << np.uint32(index_bits) | np.array(aliases, np.uint32),
        more_C=np.array(more, np.uint64),
        total_variation=short / 2.0**WEIGHT_BITS + error,
    )


def tail_probability(at_least: float, variance: float) -> float:
    """No less than P(|X| >= at_least) of X ~ Skellam(variance), by Chernoff's bound."""
    return min(1.0, 2 * math.exp(_log_chernoff(at_least, variance)))


def wrap_probability(bound_units: float, variance_total: float, count: int, room: float) -> float:
    """No less than the probability that any of `count` noised sums leaves [-room, room].

    bound_units: largest magnitude of a sum without its noise. variance_total: of the noise in the sum,
    m times one silo's. room: 2^(w-1) - 1 in a word of w bits. All in ring units. Holds for the table as
    for the law: the table's moments of e^(theta X) are not above the law's.
    Raises ConfigError for what is not a number in range.
    """
    numbers = (bound_units, variance_total, count, room)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ConfigError(
            f"noise: bound, variance, count and room are finite and not negative, got {numbers}"
        )
    return min(1.0, count * tail_probability(room + 1 - bound_units, variance_total))


def _log_chernoff(at_least: float, variance: float) -> float:
    """min over theta of variance (cosh(theta) - 1) - theta k, which is at theta = asinh(k / variance)."""
    if at_least <= 0:
        return 0.0
    if variance == 0:
        return -math.inf
    root = math.hypot(variance, at_least)
    return at_least**2 / (root + variance) - at_least * math.asinh(at_least / variance)


def _reach(variance: float, tail_bits: int) -> int:
    """The least k with P(|X| > k) below 2^-tail_bits by Chernoff's bound."""
    wanted = -(tail_bits + 1) * math.log(2)
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high) // 2
        if _log_chernoff(middle + 1, variance) <= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _bessel(variance: float) -> list[int]:
    """Whole numbers in proportion to I_k(variance), k = 0 and up (Miller's backward recurrence).

    I_(k-1) = I_(k+1) + (2 k / variance) I_k has positive terms, so the ratio of a computed number to the
    true one is a mean of the two before it, less at most 1 / number for the floor. The ratios' first
    difference shrinks by I_K I_(K+1) / (I_k I_(k-1)): below 2^-110 where the table ends, 64 bits of
    tail further in. The floors add at most K / 2^128, K < 2^17. Together they are below 2^-100.
    """
    numerator, denominator = variance.as_integer_ratio()
    after, value = 0, _START
    descending = [value]
    for k in range(_reach(variance, _START_TAIL_BITS), 0, -1):
        after, value = value, after + 2 * k * denominator * value // numerator
        descending.append(value)
    return descending[::-1]


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
