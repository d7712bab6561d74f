"""What chance alone does to an attacker's figures: thresholds with a stated rate of false alarms."""

# N = values

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FALSE_ALARM = 1e-9  # of each test of chance, for a product that is right
BYTE_VALUES = 256

Values = NDArray[Any]


def cosine(first: Values, second: Values) -> float:
    """Of the angle between two arrays of one shape; 0 where either is zero."""
    first_N, second_N = first.ravel().astype(np.float64), second.ravel().astype(np.float64)
    lengths = float(np.linalg.norm(first_N) * np.linalg.norm(second_N))
    return float(first_N @ second_N) / lengths if lengths else 0.0


def largest_chance_cosine(size: int, *, false_alarm: float = FALSE_ALARM) -> float:
    """Beyond which |cosine| of any fixed array with uniform words comes with less than that probability.

    For u uniform on [-1, 1]^size and a fixed unit x: x.u is sub-Gaussian with the variance 1/3, and
    |u|^2 has the mean size/3 and falls short of it by a with a probability of at most
    exp(-a^2 / (2 size/5)), because E u^4 = 1/5 (Maurer 2003, for sums of what is not negative). Each
    takes half of the rate.
    """
    surprise = math.log(4.0 / false_alarm)
    short_squared = size / 3.0 - math.sqrt(2.0 * size / 5.0 * surprise)
    if short_squared <= 0.0:
        return 1.0
    return min(1.0, math.sqrt(2.0 / 3.0 * surprise / short_squared))


def byte_chi_square(data: bytes) -> float:
    """Pearson's statistic of the bytes against the uniform law: 255 degrees of freedom."""
    seen = np.bincount(np.frombuffer(data, np.uint8), minlength=BYTE_VALUES)
    expected = len(data) / BYTE_VALUES
    return float(((seen - expected) ** 2).sum() / expected)


def largest_chance_chi_square(degrees: int, *, false_alarm: float = FALSE_ALARM) -> float:
    """Laurent and Massart 2000, lemma 1, for the chi-square law itself; there should be many in each cell."""
    surprise = math.log(1.0 / false_alarm)
    return degrees + 2.0 * math.sqrt(degrees * surprise) + 2.0 * surprise


def chance_deviation_ratios(samples: int, *, false_alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """Between which measured over true standard deviation of that many normal numbers lies.

    The same lemma's two sides, with half of the rate each.
    """
    surprise = math.log(2.0 / false_alarm)
    below = max(0.0, samples - 2.0 * math.sqrt(samples * surprise))
    above = samples + 2.0 * math.sqrt(samples * surprise) + 2.0 * surprise
    return math.sqrt(below / samples), math.sqrt(above / samples)
