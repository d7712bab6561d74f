"""Confidence intervals of a figure that is one sum divided by another, where noise may be on both.

A share theta is in the interval where the data do not reject it: (X - theta M) / deviation is a standard
normal number if theta is the truth, whatever M is: Fieller's test (1954) holds at any size of the divisor.
What is rejected near the ends of the range follows the likelihood ratio within it (Feldman and Cousins 1998):
so no interval is empty, and one at the end of the range is no point, and coverage stays 95 % there.
The estimate of the divisor that decides it is independent of the number that is tested.

The *noise interval* is of the sums' own share, the *sampling interval* of the share among new records: there
a record's deviation from theta in [low, high] has a variance of at most (theta - low) (high - theta), which
is exact for shares of right answers and too large for others. Without noise it is Wilson's (1927).

Functions take numbers, or arrays that fit together, and return as many ends.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

import numpy as np

from strategies.base import FloatArray

CONFIDENCE = 0.95
TWO_SIDED, ONE_SIDED = 1.959964, 1.644854  # deviations within which 95 % of a normal number are, or below
FAR = 1e12  # where an end is looked for that no range bounds; an end beyond it is infinite
HALVINGS = 60  # to the last bits of a share, and to 1e-6 from FAR
NODES = 200
TINY = 1e-300  # a variance of nothing
Number: TypeAlias = float | FloatArray


def ratio_interval(
    above: Number,
    below: Number,
    *,
    deviations: tuple[float, float] = (0.0, 0.0),
    covariance: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
    records: Number | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Ends of the 95 % interval of above / below, cut to [low, high].

    deviations, covariance: of the noise in the two sums. low, high: the least and largest share of one
    record; infinite where nothing bounds it. records: how many there are, for the sampling interval, whose
    range is finite; where each weighs 1 in `below`, that is it. None: the noise interval.
    """
    above_N, below_N = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        found_N = np.where(below_N > 0, above_N / below_N, np.where(above_N > 0, FAR, -FAR))
    start_N = np.clip(found_N, max(low, -FAR), min(high, FAR))

    noise = deviations[0] ** 2, deviations[1] ** 2, covariance
    counted_N = None if records is None else below_N if records is below else np.asarray(records)

    def is_accepted(theta_N: FloatArray) -> FloatArray:
        return _accepted(theta_N, above_N, below_N, noise, (low, high), counted_N)

    ends = []
    for edge in (low, high):
        outside_N, inside_N = np.full_like(start_N, min(max(edge, -FAR), FAR)), start_N.copy()
        reaches_N = is_accepted(outside_N)
        for _ in range(HALVINGS):
            middle_N = (outside_N + inside_N) / 2
            accepted_N = is_accepted(middle_N)
            inside_N = np.where(accepted_N, middle_N, inside_N)
            outside_N = np.where(accepted_N, outside_N, middle_N)
        ends.append(np.where(reaches_N, edge, inside_N))
    return ends[0], ends[1]


def _accepted(
    theta_N: FloatArray,
    above_N: FloatArray,
    below_N: FloatArray,
    noise: tuple[float, float, float],
    ends: tuple[float, float],
    records_N: FloatArray | None,
) -> FloatArray:
    """Whether the data do not reject a share."""
    (low, high), (of_above, of_below, of_both) = ends, noise
    of_noise_N = np.maximum(of_above - 2 * theta_N * of_both + theta_N**2 * of_below, TINY)
    apart_N, divisor_N, variance_N = above_N - theta_N * below_N, below_N, of_noise_N
    for _ in range(1 if records_N is None else 3):  # what records vary by follows from their number
        divisor_N = below_N - apart_N * (of_both - theta_N * of_below) / variance_N
        if records_N is not None:
            counted_N = np.maximum(divisor_N if records_N is below_N else records_N, 0.0)
            variance_N = of_noise_N + counted_N * (theta_N - low) * (high - theta_N)
    divisor_N = np.maximum(divisor_N, 0.0)
    deviation_N = np.sqrt(variance_N)
    tested_N = apart_N / deviation_N
    is_by_high_N = high - theta_N <= theta_N - low
    has_ends = math.isfinite(low) and math.isfinite(high) and bool(of_above or of_below)
    away_N = np.full_like(theta_N, TWO_SIDED)
    if has_ends:
        away_N = np.minimum(high - theta_N, theta_N - low) * divisor_N / deviation_N
    nodes, inner = _inner_limits()
    inner_N = np.interp(away_N, nodes, inner)
    with np.errstate(divide="ignore", invalid="ignore"):
        outer_N = np.where(inner_N <= away_N, inner_N, (inner_N**2 + away_N**2) / (2 * away_N))
    outwards_N = np.where(is_by_high_N, tested_N, -tested_N)
    return np.asarray((outwards_N >= -inner_N) & (outwards_N <= outer_N))


@cache
def _inner_limits() -> tuple[FloatArray, FloatArray]:
    """By how many deviations a share is away from the end of its range: how far the tested number may lie
    towards the middle. Towards the end it may lie as far as has the same likelihood ratio."""
    nodes = np.linspace(0.0, TWO_SIDED, NODES)
    limits = [ONE_SIDED]
    for away in nodes[1:]:
        least, most = ONE_SIDED, TWO_SIDED
        for _ in range(40):
            middle = (least + most) / 2
            outer = middle if middle <= away else (middle**2 + away**2) / (2 * away)
            is_enough = _below(outer) - _below(-middle) >= CONFIDENCE
            least, most = (least, middle) if is_enough else (middle, most)
        limits.append(most)
    return nodes, np.asarray(limits)


def _below(deviations: float) -> float:
    return 0.5 * math.erfc(-deviations / math.sqrt(2))
