"""Sums, products and solutions that have the same bits on every machine.

IEEE 754 fixes the result of one + - * / or square root in float64, and numpy computes whole arrays of them
number by number. It does not fix in which order np.sum, a product of matrices or LAPACK adds, nor whether a
product is fused with a sum: that follows from processor, version and alignment. What a global state follows
from is therefore computed by operations on whole arrays and by these functions, whose order is written down.
Source: docs/protocol.md 7.9.
"""

# N = numbers, L = width of a system, C = right sides, R = directions kept, X = directions left out

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

# ln 2 in two parts, of which the first has zeros behind: times a small whole number it is exact
LN_2_HIGH, LN_2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
EXPONENTIAL_TERMS = 14  # the next is below 2^-60 for half of ln 2
ROOT_HALF = math.sqrt(0.5)
LOGARITHM_TERMS = 11  # likewise, for the root of 2


def total(value_N: Floats) -> Floats:
    """The sum over the first axis: the back half is added to the front half until one is left.

    Of an odd number the front half is the longer one. Shapes: (N, ...) -> (...).
    """
    if not len(value_N):
        return np.zeros(value_N.shape[1:])
    while len(value_N) > 1:
        half = (len(value_N) + 1) // 2
        front_N = value_N[:half].copy()
        front_N[: len(value_N) - half] += value_N[half:]
        value_N = front_N
    one: Floats = value_N[0]
    return one


def whole_power(base: float, exponent: int) -> float:
    """base to a whole exponent from 0, by squaring: pow() of two machines may differ in its last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def exponential(value_N: Floats) -> Floats:
    """e to each number, to a few units of the last place; what is below -700 counts as that.

    Shapes: (...) -> (...). e^v = 2^k e^r with the nearest whole k, and the series of e^r by Horner's rule.
    """
    value_N = np.maximum(value_N, -700.0)
    whole_N = np.rint(value_N * LOG2_E)
    rest_N = (value_N - whole_N * LN_2_HIGH) - whole_N * LN_2_LOW  # at most ln(2) / 2
    series_N = np.full(value_N.shape, 1.0 / math.factorial(EXPONENTIAL_TERMS))
    for power in reversed(range(EXPONENTIAL_TERMS)):
        series_N = series_N * rest_N + 1.0 / math.factorial(power)
    return np.asarray(np.ldexp(series_N, whole_N.astype(np.int32)))


def logarithm(value_N: Floats) -> Floats:
    """The natural one of positive numbers, to a few units of the last place. Shapes: (...) -> (...).

    v = 2^k m with m from half the root of 2 to the root, and ln m = 2 artanh((m - 1) / (m + 1)), a series.
    """
    part_N, exponent_N = np.frexp(value_N)
    is_low_N = part_N < ROOT_HALF
    part_N, exponent_N = np.where(is_low_N, 2.0 * part_N, part_N), exponent_N - is_low_N
    ratio_N = (part_N - 1.0) / (part_N + 1.0)
    series_N = np.full(ratio_N.shape, 1.0 / (2.0 * LOGARITHM_TERMS + 1.0))
    for term in reversed(range(LOGARITHM_TERMS)):
        series_N = series_N * (ratio_N * ratio_N) + 1.0 / (2.0 * term + 1.0)
    return np.asarray(exponent_N * LN_2_HIGH + (exponent_N * LN_2_LOW + 2.0 * ratio_N * series_N))


def product(left_NL: Floats, right_LC: Floats) -> Floats:
    """The product of two matrices; of each number the addends in ascending order. Shapes: -> (N, C)."""
    sum_NC = np.zeros((len(left_NL), right_LC.shape[1]))
    for place in range(len(right_LC)):
        sum_NC += left_NL[:, place, None] * right_LC[place]
    return sum_NC


def solved(system_LL: Floats, right_LC: Floats, *, least_pivot: float) -> Floats:
    """The solution of least norm of a symmetric system without negative eigenvalues. Shapes: -> (L, C).

    Directions whose pivot is not above least_pivot count as ones that the system does not have.
    """
    lower_LR, order_L = cholesky(system_LL, least_pivot=least_pivot)
    rank = lower_LR.shape[1]
    kept_R, left_X = order_L[:rank], order_L[rank:]
    lower_RR = lower_LR[:rank]
    forward_RC = _forward(lower_RR, right_LC[kept_R])
    # of a direction that is left out, what it is made of: those kept, times these factors
    back = _back(lower_RR, np.concatenate([forward_RC, lower_LR[rank:].T], axis=1))
    basic_RC, factor_RX = back[:, : right_LC.shape[1]], back[:, right_LC.shape[1] :]
    solution_LC = np.zeros(right_LC.shape)
    solution_LC[kept_R] = basic_RC
    if rank and len(left_X):
        # every W with W_kept + F W_left = basic solves it; the shortest has (I + F^T F) W_left = F^T basic
        shares_XX = np.eye(len(left_X)) + product(factor_RX.T, factor_RX)
        left_XC = solved(shares_XX, product(factor_RX.T, basic_RC), least_pivot=0.0)
        solution_LC[left_X] = left_XC
        solution_LC[kept_R] -= product(factor_RX, left_XC)
    return solution_LC


def cholesky(system_LL: Floats, *, least_pivot: float) -> tuple[Floats, NDArray[np.intp]]:
    """Right-looking Cholesky with the largest pivot first; of equal ones the first in the present order.

    Ends where no pivot is above least_pivot. Returns the columns so far and the order of the rows: row i is
    row order[i] of the system. Shapes: -> (L, R), (L,).
    """
    work_LL, order_L = system_LL.copy(), np.arange(len(system_LL))
    for place in range(len(work_LL)):
        pivot = place + int(np.argmax(np.diagonal(work_LL)[place:]))
        if not work_LL[pivot, pivot] > least_pivot:
            return np.tril(work_LL)[:, :place], order_L
        both, swapped = [place, pivot], [pivot, place]
        work_LL[both] = work_LL[swapped]
        work_LL[:, both] = work_LL[:, swapped]
        order_L[both] = order_L[swapped]
        work_LL[place, place] = math.sqrt(work_LL[place, place])
        column = work_LL[place + 1 :, place]
        column /= work_LL[place, place]
        work_LL[place + 1 :, place + 1 :] -= column[:, None] * column
    return np.tril(work_LL), order_L


def _forward(lower_RR: Floats, right_RC: Floats) -> Floats:
    """L Y = B, from the first row on."""
    left_RC = right_RC.copy()
    for place in range(len(lower_RR)):
        left_RC[place] /= lower_RR[place, place]
        left_RC[place + 1 :] -= lower_RR[place + 1 :, place, None] * left_RC[place]
    return left_RC


def _back(lower_RR: Floats, right_RC: Floats) -> Floats:
    """L^T X = Y, from the last row on."""
    left_RC = right_RC.copy()
    for place in reversed(range(len(lower_RR))):
        left_RC[place] /= lower_RR[place, place]
        left_RC[:place] -= lower_RR[place, :place, None] * left_RC[place]
    return left_RC
