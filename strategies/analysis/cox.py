"""Partial likelihood of a Cox model whose times are binned, from sums by stratum, bin and ending.

Events of a bin are tied (Efron, "The Efficiency of Cox's Likelihood Function for Censored Data", 1977;
Breslow, "Covariance Analysis of Censored Survival Data", 1974). At risk in it are those with an event in it
or later, and those censored in a bin of theirs that does not end before it begins. Silos sum the moments
w (1, x) (1, x)' of records, with w = exp((x - c) b), by the published bin in which they end; those at risk
follow. Whether coefficients change with time: Grambsch and Therneau, "Proportional Hazards Tests and
Diagnostics Based on Weighted Residuals", 1994, with the variance of the whole fit.

S = strata, B = parts of time, both as declared, T = 2 B: bins of those censored, then of events, of which the
first are used; P = columns of the design, Q = P + 1, U = Q (Q + 1) / 2, D = events of one bin and stratum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import PART_COUNTS, PARTS
from strategies.analysis.design import NUMBER, design_of
from strategies.analysis.merging import first_at_risk
from strategies.analysis.model_state import COEFFICIENTS, MODEL_PARTS, events_in
from strategies.analysis.model_sums import (
    BEYOND,
    Fit,
    beyond_quantity,
    is_of_squares,
    model_quantity,
    rounding_error,
)
from strategies.analysis.partition import Model, Tables, Ties, Trend
from strategies.analysis.values import MEANS, as_z
from strategies.base import Array, Arrays, FloatArray, PhaseContext, total_of
from strategies.exact import logarithm, product, total

MOMENTS, EVENTS, EVENT_SUMS = "cox_moments", "cox_events", "cox_event_sums"
ENDINGS = 2
FARTHEST = 10.0  # linear predictors, from that of mean numbers: a hazard 22,000 times as high
HIGHEST = 22026.465794806718  # e to it
MEAN_WEIGHT = 16.0  # of a silo's records at most: a higher bound costs digits
ROUNDED_AT = 1e-12  # of a sum: silos round, too


def cells_of(tables: Tables) -> tuple[int, int]:
    """S and B."""
    model = _model(tables)
    assert model.time is not None
    strata = math.prod(tables.partitions[place].size for place in model.strata)
    return strata, tables.partitions[model.time].parts


def numbers_of(tables: Tables) -> int:
    """Of the moments."""
    strata, bins = cells_of(tables)
    size = len(design_of(tables)) + 1
    return strata * bins * ENDINGS * (size * (size + 1) // 2)


def cox_quantities(tables: Tables, context: PhaseContext) -> tuple[Quantity, ...]:
    """Shapes: (S T, U), (S B,), (B, P) and (). Sizes follow from the job, not from the published parts."""
    (strata, bins), size = cells_of(tables), len(design_of(tables))
    cells = strata * bins
    return (
        model_quantity(MOMENTS, (cells * ENDINGS, (size + 1) * (size + 2) // 2), MEAN_WEIGHT, context),
        Quantity(
            name=EVENTS,
            shape=(cells,),
            bound=2.0 * total_of(context.state),
            is_count=True,
            is_tagged=True,
            discloses=Disclosure.CELL,
        ),
        model_quantity(EVENT_SUMS, (bins, size), 1.0, context),
        beyond_quantity(),
    )


def center_of(tables: Tables, state: Arrays) -> FloatArray:
    """A product of means of z for each of numbers alone: weights are of x less these, which changes no figure
    but keeps them near 1. Shapes: -> (P,)."""
    design = design_of(tables)
    center_P = np.ones(len(design))
    for column, factors in enumerate(design):
        for place, part in factors:
            edges = tables.partitions[place].edges
            mean = 0.0 if part != NUMBER else as_z(float(state[f"{MEANS}{place}"][0]), edges)
            center_P[column] *= mean
    return center_P


def cox_fit(
    tables: Tables, quantities: Sequence[Quantity], context: PhaseContext, sums: Mapping[str, Array]
) -> Fit | None:
    """None of sums that no records give."""
    model, (strata, bins) = _model(tables), cells_of(tables)
    assert model.time is not None
    parts = context.state[f"{MODEL_PARTS}{model.time}"].tolist()
    first, at_risk_from = parts[bins], first_at_risk(parts)
    error = rounding_error(quantities[0], context.members)
    moments_STQQ = _unfolded(np.asarray(sums[MOMENTS], np.float64), strata)
    used = len(at_risk_from)
    events_SB = np.asarray(sums[EVENTS], np.int64).reshape(strata, bins)[:, :used]
    residual_BP = np.asarray(sums[EVENT_SUMS], np.float64)[:used].copy()
    counted = (context.state[f"{name}{model.time}"].tolist() for name in (PARTS, PART_COUNTS))
    known = events_in(*counted)
    if not _has_known_events(events_SB, known) or not _are_moments(moments_STQQ, events_SB, first, error):
        return None
    events_B = np.asarray(total(events_SB.astype(np.float64)))
    room = rounding_error(quantities[2], context.members) + ROUNDED_AT * known
    if (np.abs(residual_BP) > events_B[:, None] + room).any():
        return None
    coefficient_P = context.state[COEFFICIENTS]
    apart_P = total(residual_BP) - known * center_of(tables, context.state)
    likelihood = float(product(apart_P[None], coefficient_P[:, None])[0, 0])
    information_PP = np.zeros((len(coefficient_P), len(coefficient_P)))
    addends = strata * bins * ENDINGS
    information_error = likelihood_error = 0.0
    for stratum in range(strata):
        at_risk_QQ, left = np.zeros(moments_STQQ.shape[-2:]), first
        for place in reversed(range(used)):
            event_QQ = moments_STQQ[stratum, first + place]
            at_risk_QQ = at_risk_QQ + event_QQ
            while left > at_risk_from[place]:
                left -= 1
                at_risk_QQ = at_risk_QQ + moments_STQQ[stratum, left]
            events = int(events_SB[stratum, place])
            if events == 0:
                continue
            found = _tied(at_risk_QQ, event_QQ, events, model.ties, least=2.0 * addends * error)
            if found is None:
                return None
            residual_BP[place] -= found.mean_P
            information_PP += found.information_PP
            likelihood -= found.log_sum
            likelihood_error += addends * error * found.steepest
            information_error += 4.0 * addends * error * found.steepest
    trend_P = _trend(residual_BP, events_B, model.trend)
    if trend_P is None:
        return None
    return Fit(
        information_PP=information_PP,
        gradient_P=np.asarray(total(residual_BP)),
        likelihood=likelihood,
        is_beyond=int(sums[BEYOND]) > 0,
        information_error=information_error,
        likelihood_error=likelihood_error,
        trend_P=trend_P,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tied:
    """Of the events of one bin and stratum: sums over them of the mean, the variance and the log of the
    weight at risk. steepest: what an error of that weight makes at most."""

    mean_P: FloatArray
    information_PP: FloatArray
    log_sum: float
    steepest: float


def _tied(
    at_risk_QQ: FloatArray, event_QQ: FloatArray, events: int, ties: Ties, *, least: float
) -> _Tied | None:
    """None where the weight of those at risk is not above `least`. Of each event but the first Efron leaves
    out a share of the events' own weight."""
    share_D = np.arange(events) / events if ties is Ties.EFRON else np.zeros(events)
    weight_D = at_risk_QQ[0, 0] - share_D * event_QQ[0, 0]
    if not (weight_D > least).all():
        return None
    part_D = 1.0 / weight_D
    first, first_share = _sum(part_D), _sum(share_D * part_D)
    second, second_share = _sum(part_D * part_D), _sum(share_D * (part_D * part_D))
    second_shares = _sum((share_D * share_D) * (part_D * part_D))
    risk_P, event_P = at_risk_QQ[0, 1:], event_QQ[0, 1:]
    crossed_PP = risk_P[:, None] * event_P
    squares_PP = second * (risk_P[:, None] * risk_P) - second_share * (crossed_PP + crossed_PP.T)
    squares_PP = squares_PP + second_shares * (event_P[:, None] * event_P)
    return _Tied(
        mean_P=first * risk_P - first_share * event_P,
        information_PP=first * at_risk_QQ[1:, 1:] - first_share * event_QQ[1:, 1:] - squares_PP,
        log_sum=_sum(logarithm(weight_D)),
        steepest=max(float(at_risk_QQ[0, 0]) * second, first),
    )


def _trend(residual_BP: FloatArray, events_B: FloatArray, trend: Trend) -> FloatArray | None:
    """The score, divided by the root of what the coefficients' covariance has to be multiplied with for that
    of the changes. None where all events are in one bin. Shapes: -> (P,)."""
    place_B = np.arange(len(events_B), dtype=np.float64)
    if trend is Trend.RANK:
        before = 0.0
        for place, events in enumerate(events_B.tolist()):
            place_B[place] = before + (events + 1.0) / 2.0
            before += events
    count = _sum(events_B)
    apart_B = place_B - _sum(events_B * place_B) / count
    spread = _sum(events_B * (apart_B * apart_B))
    if not spread > 0.0:
        return None
    return np.asarray(total(apart_B[:, None] * residual_BP) * math.sqrt(count / spread))


def _unfolded(moments_CU: FloatArray, strata: int) -> FloatArray:
    """Whole matrices of upper triangles. Shapes: (S T, U) -> (S, T, Q, Q)."""
    size = (math.isqrt(8 * moments_CU.shape[1] + 1) - 1) // 2
    rows_U, columns_U = np.triu_indices(size)
    found_CQQ = np.zeros((len(moments_CU), size, size))
    found_CQQ[:, rows_U, columns_U] = moments_CU
    found_CQQ[:, columns_U, rows_U] = moments_CU
    return found_CQQ.reshape(strata, -1, size, size)


def _has_known_events(events_SB: Array, known: int) -> bool:
    """Whether they are as many as the published ones. Python's whole numbers do not overflow."""
    counts = [int(events) for events in events_SB.reshape(-1)]
    left = known
    for events in counts:
        left -= events
    return left == 0 and min(counts) >= 0


def _are_moments(moments_STQQ: FloatArray, events_SB: Array, first: int, error: float) -> bool:
    """Whether each matrix is one of (1, x) from -1 to 1 and weights in their bounds, and of its events.

    first: bin of events.
    """
    for stratum, place in np.ndindex(moments_STQQ.shape[:2]):
        bin_QQ = moments_STQQ[stratum, place]
        room = error + ROUNDED_AT * abs(float(bin_QQ[0, 0]))
        if (np.abs(bin_QQ) > bin_QQ[0, 0] + room).any() or not is_of_squares(bin_QQ, room):
            return False
    weight_SB = moments_STQQ[:, first : first + events_SB.shape[1], 0, 0]
    return not (weight_SB > (1.0 + ROUNDED_AT) * HIGHEST * events_SB + error).any()


def _sum(value_D: FloatArray) -> float:
    return float(total(value_D))


def _model(tables: Tables) -> Model:
    assert tables.model is not None
    return tables.model
