"""Sums of a model's phases: how they are bounded, what a step takes of them, whether records can give them.

P = columns of the design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import FloatArray, PhaseContext, total_of
from strategies.exact import cholesky

BEYOND = "model_beyond"
NOISY = 4.0  # deviations of rounding
PLAUSIBLE_AT = 1e-12  # of a bound: sums of products are rounded by silos, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """At the state's coefficients. is_beyond: a record's mean is none that fits. Errors are of rounding.
    trend_P: of a Cox model, as the state has it in the end."""

    information_PP: FloatArray
    gradient_P: FloatArray
    likelihood: float
    is_beyond: bool
    information_error: float
    likelihood_error: float
    trend_P: FloatArray | None = None


def model_quantity(name: str, shape: tuple[int, ...], bound: float, context: PhaseContext) -> Quantity:
    """bound: of a record; a silo has at most twice as many as all counted."""
    return Quantity(
        name=name,
        shape=shape,
        bound=2.0 * bound * total_of(context.state),
        is_tagged=True,
        discloses=Disclosure.CELL,
    )


def beyond_quantity() -> Quantity:
    return Quantity(name=BEYOND, bound=1.0, is_count=True, is_tagged=True, discloses=Disclosure.CELL)


def rounding_error(quantity: Quantity, members: int) -> float:
    """Of a sum."""
    return NOISY * math.sqrt(members) / quantity.scale(members)


def room_of(quantity: Quantity, members: int) -> float:
    """How far a sum may be off by rounding."""
    return PLAUSIBLE_AT * quantity.bound + rounding_error(quantity, members)


def is_of_squares(sum_PP: FloatArray, room: float) -> bool:
    """Whether a matrix is a sum of outer products, each number to `room`."""
    if float(np.abs(sum_PP - sum_PP.T).max()) > 2.0 * room:
        return False
    shifted_PP = (sum_PP + sum_PP.T) / 2.0 + len(sum_PP) * room * np.eye(len(sum_PP))
    return bool(cholesky(shifted_PP, least_pivot=0.0)[0].shape[1] == len(sum_PP))
