"""Lower bounds on epsilon from what a mechanism gave out: by counting, or by the width of Gaussian noise.

CONFIDENCE is that of each bound by itself: a right mechanism's bound is above its claim with a probability of
at most 1 - CONFIDENCE.
"""

# N = runs of one world

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

CONFIDENCE = 0.999
MAX_EPSILON = 30.0
HALVINGS = 50
FloatArray = NDArray[np.float64]


def by_counting(without_N: FloatArray, with_N: FloatArray, *, delta: float) -> float:
    """Of any mechanism: its score lies above a threshold more often with the record than without.

    (epsilon, delta) asks for P(above | with) <= e^epsilon P(above | without) + delta, and the same below. The
    threshold and the side are chosen on one half of the runs and measured on the other, each probability
    bounded by Clopper and Pearson (1934) at half the error.
    """
    half = len(without_N) // 2
    levels_K = np.quantile(with_N[:half], np.linspace(0.0005, 0.9995, 400))
    chosen: list[tuple[float, float, float]] = []
    for sign in (1.0, -1.0):
        bounds_K = _counted(sign * without_N[:half], sign * with_N[:half], sign * levels_K, delta)
        best = int(np.argmax(bounds_K))
        chosen.append((float(bounds_K[best]), sign, float(levels_K[best])))
    _, sign, level = max(chosen)
    return float(_counted(sign * without_N[half:], sign * with_N[half:], np.array([sign * level]), delta)[0])


def noise_at_most(noise_N: FloatArray) -> float:
    """The largest standard deviation that Gaussian noise of mean 0 may have, given these draws of it."""
    squares, count = float(np.sum(noise_N**2)), len(noise_N)
    return math.sqrt(squares / stats.chi2.ppf(1.0 - CONFIDENCE, count))


def by_guessing(right: int, guesses: int, *, canaries: int, delta: float) -> float:
    """Of one run with many canaries, each put in by a coin of its own, and guesses about some of them.

    Under (epsilon, delta) the number of right guesses is in the stochastic order at most
    Binomial(guesses, e^epsilon / (1 + e^epsilon)), but for a term in delta (Steinke, Nasr and Jagielski 2023,
    arXiv 2305.08846, theorem 5.2 and appendix D).
    """
    return largest(
        lambda epsilon: _chance_of_guesses(right, guesses, canaries, epsilon, delta) <= 1.0 - CONFIDENCE
    )


def largest(is_refuted: Callable[[float], bool]) -> float:
    """The largest epsilon that is refuted, where all smaller ones are; 0 where none is."""
    low, high = 0.0, MAX_EPSILON
    if not is_refuted(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _counted(without_N: FloatArray, with_N: FloatArray, levels_K: FloatArray, delta: float) -> FloatArray:
    """The bound at each level."""
    count, error = len(without_N), (1.0 - CONFIDENCE) / 2.0
    false_K = count - np.searchsorted(np.sort(without_N), levels_K, side="right")
    true_K = count - np.searchsorted(np.sort(with_N), levels_K, side="right")
    most_false_K = np.where(
        false_K == count, 1.0, stats.beta.ppf(1.0 - error, false_K + 1, np.maximum(count - false_K, 1))
    )
    least_true_K = np.where(
        true_K == 0, 0.0, stats.beta.ppf(error, np.maximum(true_K, 1), count - true_K + 1)
    )
    ratio_K: FloatArray = np.maximum((least_true_K - delta) / most_false_K, 1.0)
    return np.log(ratio_K)


def _chance_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The most that so many right guesses, or more, are likely under (epsilon, delta)."""
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    exactly = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance)
    slope = float(np.max(np.cumsum(exactly) / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, tail + 2.0 * canaries * delta * slope)
