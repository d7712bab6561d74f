"""What releases cost: Renyi differential privacy, composed, and turned into epsilon.

A release is everything that one noised input, or one run of DP-SGD, reveals about a silo's data. Releases
over the same data add up order by order (Mironov 2017, arXiv 1702.07476, Proposition 1), whichever
jobs they belong to. Epsilon by the conversion of Canonne, Kamath and Steinke (2020, arXiv 2004.00010,
Proposition 12) as dp-accounting computes it. Source: docs/privacy.md, "Accounting".
"""

# A = orders

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.privacy.releases import DpSgd, Gaussian, Release, Releases, Skellam
from crypto.errors import ConfigError

# opacus' and dp-accounting's orders where both converge, and larger ones, which small epsilons need
ORDERS: Final[tuple[float, ...]] = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *(float(order) for order in (*range(11, 65), 72, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)),
)
# no sample of the noise is further from its law: crypto/noise/gaussian.py, and what earlier releases drew
SAMPLER_DISTANCE: Final = 2.0**-77

FloatArray: TypeAlias = NDArray[np.float64]


def epsilon(releases: Releases, delta: float) -> float:
    """The epsilon at delta of all releases together; 0 of none, infinite where delta leaves no room.

    What a sensitivity may fail, and what the sampler is off its law, is taken out of delta first: a
    failure with its probability (Bun and Steinke 2016, section 8), n samples at a distance d with
    (1 + e^epsilon) n d. Raises ConfigError for a delta outside (0, 1).
    """
    if not 0 < delta < 1:  # false for NaN too
        raise ConfigError(f"delta: expected more than 0 and less than 1, got {delta}")
    counts = Counter(releases)
    if not counts:
        return 0.0  # a silo that spent nothing says so at its first scrape, before dp-accounting is loaded
    rdp_A = rdp(counts)
    left = delta - sum(count * release.failure for release, count in counts.items())
    if left <= 0:
        return math.inf
    draws = sum(count * release.draws for release, count in counts.items())
    if draws == 0:
        return _converted(rdp_A, left)
    # an epsilon at half of delta is no smaller than the one sought, so this much slack is enough
    highest = _converted(rdp_A, left / 2)
    slack = (1.0 + math.exp(min(highest, 500.0))) * draws * SAMPLER_DISTANCE
    return _converted(rdp_A, left - slack) if slack <= left / 2 else math.inf


def rdp(releases: Releases) -> FloatArray:
    """Renyi divergence at ORDERS of all releases together. Shapes: -> (A,)."""
    total_A = np.zeros(len(ORDERS))
    for release, count in Counter(releases).items():
        total_A += count * _rdp_of(release)
    return total_A


def skellam_rdp(release: Skellam, order: float) -> float:
    """Renyi divergence of one release at an order above 1.

    Agarwal, Kairouz, Liu 2021 (arXiv 2110.04995), Corollary 4.1 with scale 1: for whole orders a
        a l2^2 / (2 mu) + min( ((2 a - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu) ).
    The divergence never falls with the order, so the next whole order bounds one in between.
    """
    a, l1, mu, square = math.ceil(order), release.l1, release.variance, release.l2**2
    more = min(((2 * a - 1) * square + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu))
    return a * square / (2 * mu) + more


def _converted(rdp_A: FloatArray, delta: float) -> float:
    _accounting()
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS, rdp_A, delta)[0])


@lru_cache(maxsize=4096)  # a ledger composes all that it ever held, before every input
def _rdp_of(release: Release) -> FloatArray:
    if isinstance(release, Skellam):
        return np.array([skellam_rdp(release, order) for order in ORDERS])
    if isinstance(release, Gaussian):
        return np.array(ORDERS) / (2.0 * release.noise_multiplier**2)
    accounting = _accounting()
    from dp_accounting.rdp import RdpAccountant

    event = accounting.PoissonSampledDpEvent(
        release.sample_rate, accounting.GaussianDpEvent(release.noise_multiplier)
    )
    one_step_A = RdpAccountant(ORDERS).compose(event).rdp
    steps = release.steps if isinstance(release, DpSgd) else 1
    return np.asarray(steps * one_step_A, dtype=np.float64)


@lru_cache(maxsize=1)
def _accounting() -> Any:
    """dp-accounting, imported when it is needed: it takes a second, and no coordinator has it."""
    try:
        import dp_accounting
    except ModuleNotFoundError:
        raise ConfigError(
            "computing what noise costs needs the extra 'privacy' (no dp_accounting here): "
            "pip install 'chorale[privacy]'"
        ) from None

    # it warns of each order whose series does not converge, and leaves that order out
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting
