"""Privacy loss distributions of the Poisson-sampled Gaussian by FFT, from the definition and nothing else.

Koskela, Jalko and Honkela 2020 (arXiv 1906.03049). Only numpy and the error function.
K = losses on the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Losses: TypeAlias = NDArray[np.float64]

STEP = 2e-4  # between two losses
SPAN = 80.0  # from -SPAN to SPAN; a composition that leaves it would wrap around
_normal_cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)), otypes=[np.float64])

Steps: TypeAlias = Sequence[tuple[float, float, int]]  # noise multiplier, sample rate, how often


def epsilon_by_fft(steps: Steps, delta: float) -> float:
    """Both of adding and of removing a record, to about one part in a thousand."""
    return max(_epsilon(steps, delta, is_added=is_added) for is_added in (False, True))


def _epsilon(steps: Steps, delta: float, *, is_added: bool) -> float:
    grid_K = np.arange(-SPAN, SPAN, STEP)
    product_K = np.ones(len(grid_K) // 2 + 1, dtype=np.complex128)
    for noise, rate, times in steps:
        edges = np.append(grid_K, SPAN) - STEP / 2.0
        cdf = _cdf_of_losses(edges, noise, rate, is_added=is_added)
        product_K *= np.fft.rfft(np.fft.ifftshift(np.diff(cdf))) ** times
    mass_K = np.fft.fftshift(np.fft.irfft(product_K, n=len(grid_K)))
    low, high = 0.0, SPAN / 2.0
    for _ in range(50):
        middle = (low + high) / 2.0
        above = grid_K > middle
        found = np.sum(mass_K[above] * -np.expm1(middle - grid_K[above]))
        low, high = (low, middle) if found <= delta else (middle, high)
    return high


def _cdf_of_losses(losses_K: Losses, noise: float, rate: float, *, is_added: bool) -> Losses:
    """P(ln(p(x) / q(x)) <= loss) for x drawn from p; p is the mixture where the record is removed.

    With a record: (1 - rate) N(0, noise^2) + rate N(1, noise^2); without it N(0, noise^2).
    """
    if is_added:  # x from N(0), loss = -ln(mixture / N(0)): at most `loss` where x is at least this
        return 1.0 - _normal_cdf(_output_at(-losses_K, noise, rate) / noise)
    x_K = _output_at(losses_K, noise, rate)
    return (1.0 - rate) * _normal_cdf(x_K / noise) + rate * _normal_cdf((x_K - 1.0) / noise)


def _output_at(losses_K: Losses, noise: float, rate: float) -> Losses:
    """The x at which ln(mixture / N(0)) = loss; -infinity for losses below ln(1 - rate)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_K = (np.expm1(losses_K) + rate) / rate
        x_K = noise**2 * np.log(np.maximum(ratio_K, 0.0)) + 0.5
    return np.asarray(x_K)
