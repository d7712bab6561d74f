"""How many records a step computes with at most, where time shall not tell how many were drawn.

A step draws each of n records with chance q, so its work grows with n. A silo whose policy says
`constant_work_records: N` computes as for `batch_cap` records in every step, and leaves out what is drawn
beyond.
Source: docs/privacy-proofs.md, "Records".
"""

from __future__ import annotations

import math
from typing import Final

# that any step of a job draws more than the cap; every private job's delta pays for it, whatever policies say
CUT_FAILURE: Final = 2.0**-64
_ROUNDING_UP: Final = 1.0 + 1e-6  # of lgamma's float64: up to 1e8 records it is right to 1e-7


def batch_cap(records: int, *, sample_rate: float, steps: int) -> int:
    """The least number that a batch of these records exceeds in any of the steps with a probability of at
    most CUT_FAILURE, or one or two more: the tail is bounded by a geometric series."""
    low, high = math.ceil(records * sample_rate) - 1, records  # the first may be exceeded, the second never
    while high - low > 1:
        middle = (low + high) // 2
        if _tail(records, sample_rate, middle) * steps <= CUT_FAILURE:
            high = middle
        else:
            low = middle
    return high


def _tail(n: int, q: float, k: int) -> float:
    """No less than P(Bin(n, q) > k), for k from n q - 1 on: beyond the mean each term is less than `ratio` of
    the one before."""
    first = k + 1
    if first > n or q >= 1.0:
        return 0.0 if first > n else 1.0
    log_first = (
        math.lgamma(n + 1)
        - math.lgamma(first + 1)
        - math.lgamma(n - first + 1)
        + first * math.log(q)
        + (n - first) * math.log1p(-q)
    )
    ratio = (n - first) * q / ((first + 1) * (1.0 - q))
    if ratio >= 1.0:
        return 1.0
    return math.exp(log_first) / (1.0 - ratio) * _ROUNDING_UP
