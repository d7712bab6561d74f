"""Renyi divergences of releases: those over the same data add up order by order.

Source: Mironov 2017 (arXiv 1702.07476), Proposition 1; docs/privacy-proofs.md, "Accounting".
"""

# A = orders

from __future__ import annotations

import logging
from collections import Counter
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.privacy.releases import DpSgd, Gaussian, Release, Releases
from chorale.privacy.remembered import remembered
from crypto.errors import ConfigError

# opacus' and dp-accounting's orders where both converge, and larger ones, which small epsilons need
ORDERS: Final[tuple[float, ...]] = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *(float(order) for order in (*range(11, 65), 72, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)),
)

FloatArray: TypeAlias = NDArray[np.float64]


def rdp(releases: Releases) -> FloatArray:
    """Renyi divergence at ORDERS of all releases together. Shapes: -> (A,)."""
    total_A = np.zeros(len(ORDERS))
    for release, count in Counter(releases).items():
        total_A += count * _rdp_of(release)
    return total_A


def rdp_epsilon(rdp_A: FloatArray, delta: float) -> float:
    """The least epsilon over the orders, for releases that were fixed beforehand.

    Source: Canonne, Kamath and Steinke 2020 (arXiv 2004.00010), Proposition 12, as dp-accounting computes it.
    """
    accounting()
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS, rdp_A, delta)[0])


@lru_cache(maxsize=1)
def accounting() -> Any:
    """dp-accounting, imported when it is needed: it takes a second, and no coordinator has it."""
    try:
        import dp_accounting
    except ModuleNotFoundError:
        raise ConfigError(
            "computing what noise costs needs the extra 'privacy' (no dp_accounting here): "
            "pip install '.[privacy]'"
        ) from None

    # it warns of each order whose series does not converge, and leaves that order out
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting


@lru_cache(maxsize=4096)  # a ledger composes all that it ever held, before every input
def _rdp_of(release: Release) -> FloatArray:
    if isinstance(release, Gaussian):
        return np.array(ORDERS) / (2.0 * release.noise_multiplier**2)
    steps = release.steps if isinstance(release, DpSgd) else 1
    return steps * _step_rdp(release.noise_multiplier, release.sample_rate)


@lru_cache(maxsize=256)
def _step_rdp(noise_multiplier: float, sample_rate: float) -> FloatArray:
    inputs = noise_multiplier, sample_rate
    return np.array(remembered("rdp", inputs, lambda: _computed_rdp(*inputs), count=len(ORDERS)))


def _computed_rdp(noise_multiplier: float, sample_rate: float) -> list[float]:
    events = accounting()
    from dp_accounting.rdp import RdpAccountant

    event = events.PoissonSampledDpEvent(sample_rate, events.GaussianDpEvent(noise_multiplier))
    return [float(each) for each in RdpAccountant(ORDERS).compose(event).rdp]
