"""Gaussian noise in whole numbers, from AES-256-CTR alone: the continuous Gaussian rounded to whole numbers.

For whole x, x + round(N) is round(x + N): adding a rounded Gaussian to whole numbers is post-processing of
adding the Gaussian itself, so every bound that is known of the Gaussian mechanism holds, sampled or not.
One table reaches a standard deviation of 2^12 only, too coarse for a gradient of a million parameters. So

    X = 2^10 A + B,    A discrete Gaussian, B rounded Gaussian, both of standard deviation 2^12.

2^10 A plus a continuous Gaussian of deviation 2^12 is a Gaussian of deviation 2^12 sqrt(2^20 + 1) but for a
relative 2^-400 of the density everywhere (Regev 2009, Claim 3.9), and rounding leaves the whole number
2^10 A alone. Source and proof: docs/privacy.md "Records".
"""

# K = magnitudes 0 and up, N = samples asked for

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crypto.noise.skellam import WEIGHT_BITS, Law, alias_law
from crypto.noise.skellam_stream import SkellamStream

LOG_VARIANCE: Final = 24  # of either table: the most that a table holds
COARSE: Final = 1 << 10  # a quarter of the tables' standard deviation, which the proof wants
# of X, in units: 2^12 sqrt(2^20 + 1), rounded down so that no more noise is promised than there is
DEVIATION: Final = 4194305.9
# of one X: the two tables, and what separates 2^10 A + N from a Gaussian
TOTAL_VARIATION: Final = 2.0**-79

_FIXED_BITS: Final = 192  # of the fraction below
_KEPT: Final = 12 << 12  # magnitudes in a table: beyond 12 standard deviations lie 2^-102
_SUMMED: Final = 16 << 12  # magnitudes that the weights are shares of; beyond lie 2^-183
_ERROR: Final = 2.0**-100  # tails, fixed point and series together, see _densities and _cell_means
_BLOCK_SAMPLES: Final = 1 << 18


class GaussianStream:
    """Rounded Gaussian noise of standard deviation DEVIATION, a function of a fresh key and of the position.

    key: 32 bytes of the system's CSPRNG, used for nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._coarse = SkellamStream(discrete_law(), key, quantity=0)
        self._fine = SkellamStream(rounded_law(), key, quantity=1)

    def sample(self, start: int, count: int) -> NDArray[np.int64]:
        """The samples of positions start, start + 1, ... Shapes: -> (N,)."""
        sample_N = np.empty(count, np.int64)
        fine_N = np.empty(min(count, _BLOCK_SAMPLES), np.int32)
        for first in range(0, count, _BLOCK_SAMPLES):
            part_N = sample_N[first : first + _BLOCK_SAMPLES]
            self._coarse.sample_into(start + first, part_N)
            self._fine.sample_into(start + first, fine_N[: part_N.size])
            part_N *= COARSE
            part_N += fine_N[: part_N.size]
        return sample_N


@lru_cache(maxsize=1)
def discrete_law() -> Law:
    """P(k) in proportion to exp(-k^2 / 2^25) over whole k."""
    return _law(_densities())


@lru_cache(maxsize=1)
def rounded_law() -> Law:
    """P(k) = the Gaussian's mass from k - 1/2 to k + 1/2."""
    return _law([_cell(k, density) for k, density in enumerate(_densities())])


def _law(masses: list[int]) -> Law:
    """masses: of 0 and up, in proportion to P(k)."""
    total = 2 * sum(masses) - masses[0]
    first, *rest = masses[: _KEPT + 1]
    weights = [
        (first << WEIGHT_BITS) // total,
        *((mass << (WEIGHT_BITS + 1)) // total for mass in rest),
    ]
    return alias_law(weights, variance=float(1 << LOG_VARIANCE), error=_ERROR)


def _densities() -> list[int]:
    """exp(-k^2 / 2v) in fixed point, k = 0 to _SUMMED, v = 2^LOG_VARIANCE.

    g(k+1) = g(k) r(k), r(k+1) = r(k) exp(-1/v). Each product is cut by at most 2^-192, so r(k) is off by at
    most 20 k 2^-192, g(k) by 10 k^2 2^-192, below 2^-156, and the sum of all of them by 2^-139.
    """
    ratio, factor = _exponential(LOG_VARIANCE + 1), _exponential(LOG_VARIANCE)
    density, densities = 1 << _FIXED_BITS, []
    for _ in range(_SUMMED + 1):
        densities.append(density)
        density = density * ratio >> _FIXED_BITS
        ratio = ratio * factor >> _FIXED_BITS
    return densities


def _exponential(shift: int) -> int:
    """exp(-2^-shift) in fixed point, by the ten terms that are not zero."""
    terms = ((1 << _FIXED_BITS) >> (shift * n) for n in range(_FIXED_BITS // shift + 1))
    return sum((-1) ** n * term // math.factorial(n) for n, term in enumerate(terms))


def _cell(k: int, density: int) -> int:
    """The integral of exp(-x^2 / 2v) from k - 1/2 to k + 1/2: the sum of g^(2j)(k) / (4^j (2j + 1)!).

    g^(n) = (-1)^n h_n g with Hermite's h_(n+1) = (k h_n - n h_(n-1)) / v. From j = 7 on it is below 2^-150.
    """
    before, h = 0, 1 << _FIXED_BITS
    mean = h
    for n in range(12):
        before, h = h, (k * h - n * before) >> LOG_VARIANCE
        if n % 2:  # h is h_(n+1) now, and n + 1 is even
            mean += h // (4 ** ((n + 1) // 2) * math.factorial(n + 2))
    return density * mean >> _FIXED_BITS
