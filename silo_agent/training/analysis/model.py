"""What a silo adds to the sums of a model, at the state's coefficients.

N = records, B = records of one block, P = columns of the design, K = measured columns. Of a Cox
model Q as in strategies/analysis/cox.py, C = strata by bins of both endings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.analysis.cells import BLOCK_RECORDS
from silo_agent.training.analysis.patients import owners
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.cox import (
    ENDINGS,
    EVENT_SUMS,
    EVENTS,
    FARTHEST,
    MEAN_WEIGHT,
    MOMENTS,
    cells_of,
    center_of,
)
from strategies.analysis.design import Product, design_of
from strategies.analysis.merging import are_bins
from strategies.analysis.model_state import (
    COEFFICIENTS,
    ITERATIONS,
    MODEL_PARTS,
    Status,
    parts_in,
    status_in,
    used_in,
)
from strategies.analysis.model_sums import BEYOND
from strategies.analysis.partition import Family, Model, Tables
from strategies.analysis.regression import (
    BOUNDS,
    GRADIENT,
    INFORMATION,
    LIKELIHOODS,
    OUTER,
    PATIENTS,
    POWERS,
    REACH,
)
from strategies.analysis.values import MEANS
from strategies.base import Array, Arrays, array_in

Floats = NDArray[np.float64]
FIRST_MEAN = 0.1  # added to an outcome, in its units: none is 0


def model_sums(table: DescribedTable, tables: Tables, state: Arrays, *, is_last: bool) -> dict[str, Array]:
    """Information, gradient and log-likelihood, and whether a record's mean is beyond what fits; is_last:
    and without ridge the outer products of the records' gradients, or of each patient's sum of them, with
    their powers and how many patients there are. Zeros where the model needs none any more.

    Shapes: (P, P), (P,), (), (), and (P, P), (2, L), (2,); of a Cox model those of `cox_quantities`. Raises
    ConfigError for a state that does not say where it is.
    """
    _check(tables, state)
    if _family(tables) is Family.COX:
        return _cox_sums(table, tables, state, is_last=is_last)
    status, design = status_in(state), design_of(tables)
    size = len(design)
    information_PP, outer_PP, gradient_P = np.zeros((size, size)), np.zeros((size, size)), np.zeros(size)
    has_outer = is_last and _model(tables).ridge is None
    likelihood, beyond = 0.0, 0
    by_patient = is_last and _model(tables).by_patient
    every = design_of(tables, first=0)
    owner_N = owners(table, tables, state) if by_patient else None
    score_UL, power_2L = (
        np.zeros((0 if owner_N is None else owner_N.max() + 1, len(every))),
        np.zeros((2, len(every))),
    )
    patients = np.zeros(2, np.int64)
    if not status.is_withheld and (is_last or status is Status.RUNNING):
        used_P = used_in(tables, state)
        is_first = not is_last and int(state[ITERATIONS]) == 0
        for start in range(0, table.records, BLOCK_RECORDS):
            rows = slice(start, start + BLOCK_RECORDS)
            design_BP = np.where(used_P, _design(table, tables, state, rows, design), 0.0)
            offset_B = _offset(table, tables, rows)
            at = _at(tables, _outcome(table, tables, rows), design_BP @ state[COEFFICIENTS] + offset_B)
            score_B, weight_B = at.residual_B, at.weight_B
            if is_first and _family(tables) is Family.POISSON:
                score_B, weight_B = _from_outcomes(tables, _outcome(table, tables, rows), offset_B)
            information_PP += design_BP.T @ (weight_B[:, None] * design_BP)
            gradient_P += design_BP.T @ score_B
            likelihood += at.likelihood
            beyond |= at.is_beyond
            if owner_N is not None:
                np.add.at(
                    score_UL, owner_N[rows], score_B[:, None] * _design(table, tables, state, rows, every)
                )
            elif has_outer:
                outer_PP += design_BP.T @ ((score_B * score_B)[:, None] * design_BP)
        is_far_U = (np.abs(score_UL) > REACH).any(axis=1)
        patients = np.array([len(score_UL), np.count_nonzero(is_far_U)])
        if not is_far_U.any():
            score_UP = np.where(used_P, score_UL[:, [every.index(each) for each in design]], 0.0)
            outer_PP += score_UP.T @ score_UP
            square_UL = score_UL * score_UL
            power_2L = np.stack([square_UL.sum(axis=0), (square_UL * square_UL).sum(axis=0)])
    sums: dict[str, Array] = {
        INFORMATION: information_PP,
        GRADIENT: gradient_P,
        LIKELIHOODS: np.array(likelihood),
        BEYOND: np.array(beyond),
    }
    if by_patient:
        sums |= {POWERS: power_2L, PATIENTS: patients}
    return {**sums, OUTER: outer_PP} if has_outer else sums


def _cox_sums(table: DescribedTable, tables: Tables, state: Arrays, *, is_last: bool) -> dict[str, Array]:
    """By stratum and published bin."""
    model, (strata, bins), size = tables.model, cells_of(tables), len(design_of(tables))
    assert model is not None
    assert model.time is not None
    moments_CQQ = np.zeros((strata * bins * ENDINGS, size + 1, size + 1))
    bins_T = state[MODEL_PARTS + str(model.time)]
    events, sum_BP, beyond = np.zeros(strata * bins, np.int64), np.zeros((bins, size)), 0
    status = status_in(state)
    if not status.is_withheld and (is_last or status is Status.RUNNING):
        used_P, center_P = used_in(tables, state), center_of(tables, state)
        for start in range(0, table.records, BLOCK_RECORDS):
            rows = slice(start, start + BLOCK_RECORDS)
            parts_BC = table.parts_NC[rows]
            design_BP = np.where(used_P, _design(table, tables, state, rows, design_of(tables)), 0.0)
            predictor_B = (design_BP - center_P) @ state[COEFFICIENTS]
            beyond |= bool((np.abs(predictor_B) > FARTHEST).any())
            weight_B = np.exp(np.clip(predictor_B, -FARTHEST, FARTHEST))
            with_one_BQ = np.column_stack([np.ones(len(design_BP)), design_BP])
            stratum_B = np.zeros(len(parts_BC), np.int64)
            for place in model.strata:
                published_P = state[MODEL_PARTS + str(place)]
                stratum_B = stratum_B * len(published_P) + published_P[parts_BC[:, place]]
            bin_B = bins_T[parts_BC[:, model.time]]
            is_event_B = bin_B >= bins_T[bins]
            cell_B = stratum_B * bins * ENDINGS + bin_B
            for cell in np.unique(cell_B):
                its_BQ = with_one_BQ[cell_B == cell]
                moments_CQQ[cell] += its_BQ.T @ (weight_B[cell_B == cell, None] * its_BQ)
            event_B = bin_B[is_event_B] - bins_T[bins]
            events += np.bincount(stratum_B[is_event_B] * bins + event_B, minlength=len(events))
            np.add.at(sum_BP, event_B, design_BP[is_event_B])
    mean = float(moments_CQQ[:, 0, 0].sum()) / table.records
    if mean > MEAN_WEIGHT:
        beyond, moments_CQQ = 1, moments_CQQ * (MEAN_WEIGHT / mean)
    rows_U, columns_U = np.triu_indices(size + 1)
    return {
        MOMENTS: moments_CQQ[:, rows_U, columns_U],
        EVENTS: events,
        EVENT_SUMS: sum_BP,
        BEYOND: np.array(beyond),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """Of a block, at its linear predictors."""

    residual_B: Floats
    weight_B: Floats
    likelihood: float
    is_beyond: bool


def _at(tables: Tables, outcome_B: Floats, predictor_B: Floats) -> _At:
    family = _family(tables)
    bounds = BOUNDS[family]
    is_beyond = bool((predictor_B > bounds.highest).any()) and family is Family.POISSON
    predictor_B = np.clip(predictor_B, bounds.lowest, bounds.highest)
    if family is Family.LINEAR:
        residual_B = outcome_B - predictor_B
        weight_B, likelihood_B = np.ones(len(outcome_B)), residual_B * residual_B / -2.0
    elif family is Family.LOGISTIC:
        mean_B = 1.0 / (1.0 + np.exp(-predictor_B))
        residual_B, weight_B = outcome_B - mean_B, mean_B * (1.0 - mean_B)
        likelihood_B = outcome_B * predictor_B - np.logaddexp(0.0, predictor_B)
    else:
        mean_B = np.exp(predictor_B)
        residual_B, weight_B = outcome_B - mean_B, mean_B
        likelihood_B = outcome_B * predictor_B - mean_B
    return _At(
        residual_B=residual_B,
        weight_B=weight_B,
        likelihood=float(likelihood_B.sum()),
        is_beyond=is_beyond,
    )


def _from_outcomes(tables: Tables, outcome_B: Floats, offset_B: Floats) -> tuple[Floats, Floats]:
    """Weighted working outcome and weight of the first step, with each mean near its outcome."""
    assert tables.model is not None
    unit = tables.partitions[tables.model.outcome].edges[-1]
    mean_B = outcome_B + FIRST_MEAN / max(unit, 1.0)
    return mean_B * (np.log(mean_B) - offset_B) + outcome_B - mean_B, mean_B


def _outcome(table: DescribedTable, tables: Tables, rows: slice) -> Floats:
    """Of a linear model z, of a logistic one 1 for the event, of a Poisson model in its highest edge. Shapes:
    -> (B,)."""
    assert tables.model is not None
    place = tables.model.outcome
    if tables.model.family is Family.LOGISTIC:
        return np.asarray(table.parts_NC[rows, place] == 1, np.float64)
    z_B: Floats = table.z_NK[rows, tables.measured.index(place)]
    if tables.model.family is Family.LINEAR:
        return z_B
    return _of_highest(tables, place, z_B)


def _offset(table: DescribedTable, tables: Tables, rows: slice) -> Floats:
    """Logarithms of exposures, in the highest edge: at most 0. Shapes: -> (B,)."""
    place = _model(tables).offset
    if place is None:
        return np.zeros(len(table.z_NK[rows]))
    return np.log(_of_highest(tables, place, table.z_NK[rows, tables.measured.index(place)]))


def _of_highest(tables: Tables, place: int, z_B: Floats) -> Floats:
    """As shares of a column's highest edge. Shapes: -> (B,)."""
    low, high = tables.partitions[place].edges[0], tables.partitions[place].edges[-1]
    return np.asarray((low + (z_B + 1.0) / 2.0 * (high - low)) / high)


def _design(
    table: DescribedTable, tables: Tables, state: Arrays, rows: slice, design: Sequence[Product]
) -> Floats:
    """Shapes: -> (B, P)."""
    records = len(table.parts_NC[rows])
    published = {
        place: state[MODEL_PARTS + str(place)][table.parts_NC[rows, place]] for place in tables.factors
    }
    design_BP = np.ones((records, len(design)), order="F")
    for column, factors in enumerate(design):
        for place, part in factors:
            if tables.partitions[place].is_ordered:
                design_BP[:, column] *= table.z_NK[rows, tables.measured.index(place)]
            else:
                design_BP[:, column] *= published[place] == part
    return design_BP


def _family(tables: Tables) -> Family:
    return _model(tables).family


def _model(tables: Tables) -> Model:
    assert tables.model is not None
    return tables.model


def _check(tables: Tables, state: Arrays) -> None:
    size = len(design_of(tables))
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        COEFFICIENTS: ((size,), np.float64),
        ITERATIONS: ((), np.int64),
    }
    if _family(tables) is Family.COX:
        shapes |= {MEANS + str(place): ((2,), np.float64) for place in tables.measured}
    for name, (shape, dtype) in shapes.items():
        array_in(state, name, shape, dtype)
    parts_of, time = parts_in(tables, state), tables.time
    if time is not None and not status_in(state).is_withheld and not are_bins(parts_of[time]):
        raise ConfigError(f"state: {MODEL_PARTS}{time}: expected bins of each ending")
