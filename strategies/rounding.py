"""Figures rounded to a power of ten, with the same bits on every machine."""

from __future__ import annotations

import math
from bisect import bisect_right

# beyond them 10^k or a product with it is no ordinary float64
LEAST, MOST = -290, 290
POWERS = tuple(float(f"1e{exponent}") for exponent in range(LEAST, MOST + 1))
DIGITS = 3  # with six, a mean and a deviation of whole numbers give n


def rounding_step(deviation: float, standard_error: float) -> int:
    """The exponent of the power of ten to which a mean and its deviation are rounded: at most half a standard
    error, and no finer than three digits of the deviation."""
    return max(_exponent(standard_error / 2.0), _exponent(deviation) - DIGITS + 1, LEAST)


def rounded(figure: float, exponent: int) -> float:
    """The nearest multiple of 10^exponent, as the float64 nearest to its decimal digits."""
    power = POWERS[abs(exponent) - LEAST]
    if exponent >= 0:
        return round(figure / power) * power
    multiple = figure * power
    return figure if math.isinf(multiple) else round(multiple) / power  # inf: it has no such digits


def _exponent(figure: float) -> int:
    """Of the largest power of ten that is not above a positive figure."""
    return max(bisect_right(POWERS, figure) - 1, 0) + LEAST
