"""What releases cost whose parameters are chosen as one goes: a filter of an account over many jobs.

A filter says before each release whether all releases together, this one included, stay within epsilon and
delta, by any choice of them and anything that the earlier ones showed. Rule, with rho_a the divergences at
order a, added up, and weights w_a that follow from epsilon and delta alone and add up to 1:

    for all x > 0:  1 - e^-x <= delta * sum over a of w_a e^((a - 1)(epsilon + x - rho_a))

The sum is a nonnegative supermartingale at the loss epsilon + x, so no order is chosen afterwards. Proof:
docs/privacy-proofs.md, "Accounting"; at one order it is Feldman and Zrnic 2021 (arXiv 2008.11193).
"""

# A = orders, X = excess losses

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import Final

import numpy as np

from chorale.privacy.accountant import charges, sides_of
from chorale.privacy.releases import Release, Releases
from chorale.privacy.renyi import ORDERS, FloatArray, rdp

# of delta: what is kept for bounds that are exceeded and for laws that are not quite the ones composed, for a
# share that followed from what was released would not be a share
RESERVED: Final = 1.0 / 8.0
MIN_BUDGET: Final = 1e-4
LARGE_BUDGET: Final = 10.0
MAX_BUDGET: Final = 1e6  # as a policy may have it
# Gaussian noise that costs epsilon is best seen at one order; what was sampled, below it. A narrower prior is
# better for the one and worse for the other (docs/decisions/0024).
_CENTER: Final = 0.7
_WIDTH: Final = 0.4  # of the logarithm of order - 1
_HALVINGS: Final = 32

_ORDERS_A: Final[FloatArray] = np.array(ORDERS)
_LOG_A: Final[FloatArray] = np.log(_ORDERS_A - 1.0)
_SPACING_A: Final[FloatArray] = np.gradient(_LOG_A)
# the left side at the end of each interval is compared with the right side at its beginning: both grow with x
_EXCESS_X: Final[FloatArray] = np.concatenate([[0.0], np.geomspace(1e-4, 10.0, 160)])
_OF_EXCESS_XA: Final[FloatArray] = _EXCESS_X[:, None] * (_ORDERS_A - 1.0)
_LOG_NEEDED_X: Final[FloatArray] = np.append(np.log(-np.expm1(-_EXCESS_X[1:])), 0.0)


def fits(releases: Releases, epsilon: float, delta: float, *, sides_are_fixed: bool) -> bool:
    """Whether a filter with this budget lets all of them through, in any order."""
    return all(
        _side_fits(side, epsilon, delta) for side in sides_of(releases, sides_are_fixed=sides_are_fixed)
    )


def filter_epsilon(releases: Releases, delta: float, *, sides_are_fixed: bool) -> float:
    """The least budget whose filter lets all of them through; infinite where none up to MAX_BUDGET does."""
    return max(
        _side_epsilon(frozenset(side.items()), delta)
        for side in sides_of(releases, sides_are_fixed=sides_are_fixed)
    )


def _side_fits(counts: Counter[Release], epsilon: float, delta: float) -> bool:
    if not counts:
        return True
    if (
        epsilon > LARGE_BUDGET
    ):  # what laws are off costs e^budget, so a small cost is not asked at a large one
        return _is_within(counts, LARGE_BUDGET, delta / 2) or _is_within(counts, epsilon, delta / 2)
    return _is_within(counts, epsilon, delta)


@lru_cache(maxsize=1024)
def _side_epsilon(block: frozenset[tuple[Release, int]], delta: float) -> float:
    counts = Counter(dict(block))
    if not counts:
        return 0.0
    low, high = MIN_BUDGET, MAX_BUDGET
    if not _side_fits(counts, high, delta):
        for high in (LARGE_BUDGET, *np.geomspace(LARGE_BUDGET, 100.0, 24)):
            if _side_fits(counts, high, delta):
                break
        else:
            return math.inf
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _side_fits(counts, middle, delta) else (middle, high)
    return float(high)


def _is_within(counts: Counter[Release], epsilon: float, delta: float) -> bool:
    failure, distance = charges(counts)
    paid = max(failure + distance, math.exp(min(epsilon, 500.0)) * distance)
    if paid > RESERVED / 2.0 * delta:  # one of each neighbor's transcripts
        return False
    rdp_A = rdp(counts)
    exponents_XA = _OF_EXCESS_XA + (_log_weights(epsilon, delta) + (_ORDERS_A - 1.0) * (epsilon - rdp_A))
    largest_X1 = exponents_XA.max(axis=1, keepdims=True)
    if not np.isfinite(largest_X1).all():
        return False  # no order's divergence is known
    log_sums_X = largest_X1[:, 0] + np.log(np.exp(exponents_XA - largest_X1).sum(axis=1))
    return bool(np.all(math.log((1.0 - RESERVED) * delta) + log_sums_X >= _LOG_NEEDED_X))


@lru_cache(maxsize=256)
def _log_weights(epsilon: float, delta: float) -> FloatArray:
    """Of the orders, which add up to 1. Shapes: -> (A,)."""
    log_delta = -math.log(delta)
    # a rho + ln(1 / delta) / (a - 1), least over a, is epsilon for this rho
    root = math.sqrt(log_delta + epsilon) - math.sqrt(log_delta)
    center = math.log(_CENTER * math.sqrt(log_delta) / root)
    weights_A = _SPACING_A * np.exp(-(((_LOG_A - center) / _WIDTH) ** 2) / 2.0)
    with np.errstate(divide="ignore"):
        log_weights_A: FloatArray = np.log(weights_A / weights_A.sum())
    return log_weights_A
