"""Two-sided probabilities of a standard normal and of Student's distribution, what 95 % lie within, and the
upper tails of chi-squared and F.

The base install has no scipy. Sources: of the continued fraction DLMF 8.17.22, of the finite sums 8.4.10 and
8.4.12.
"""

from __future__ import annotations

import math
from statistics import NormalDist

LEVEL = 0.95
TERMS = 300  # the fraction converges in about sqrt(max(a, b)) terms; stops by itself before
LEAST = 1e-300


def beyond(statistic: float, freedom: int | None) -> float:
    """The probability of one as far from 0, either way. freedom: None of a standard normal."""
    if freedom is None:
        return math.erfc(abs(statistic) / math.sqrt(2.0))
    return _incomplete_beta(freedom / (freedom + statistic * statistic), freedom / 2.0, 0.5)


def reach(freedom: int | None) -> float:
    """How far from 0 LEVEL of all are."""
    if freedom is None:
        return NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)
    low, high = 0.0, 1e3  # of one degree of freedom 12.7
    while (middle := (low + high) / 2.0) not in (low, high):
        low, high = (middle, high) if beyond(middle, freedom) > 1.0 - LEVEL else (low, middle)
    return middle


def above(chi_squared: float, freedom: int) -> float:
    """The probability of a larger chi-squared."""
    half = chi_squared / 2.0
    if half <= 0.0:
        return 1.0
    first = freedom % 2 / 2.0  # of an odd number the sum goes over halves, from 1/2 on
    tail = math.erfc(math.sqrt(half)) if freedom % 2 else 0.0
    powers = (first + place for place in range(freedom // 2))
    tail += math.fsum(math.exp(power * math.log(half) - half - math.lgamma(power + 1.0)) for power in powers)
    return min(tail, 1.0)


def above_f(ratio: float, freedom: int, residual_freedom: int) -> float:
    """The probability of a larger F."""
    share = residual_freedom / (residual_freedom + freedom * ratio)
    return _incomplete_beta(share, residual_freedom / 2.0, freedom / 2.0)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularized."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    # by Lentz's method, from the front
    value, above, below = LEAST, LEAST, 0.0
    for term in range(TERMS):
        half = term // 2
        if term == 0:
            numerator = 1.0
        elif term % 2:
            numerator = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            numerator = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        below = 1.0 / ((1.0 + numerator * below) or LEAST)
        above = (1.0 + numerator / above) or LEAST
        value *= above * below
        if abs(above * below - 1.0) < 1e-15:
            break
    return front * value
