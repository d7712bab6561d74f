"""Records from names, and what silos would add up of them for an analysis: for vectors of its states.

N = records, K = measured columns, G = parts of the group, P = columns of a model's design.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec
from silo_agent.training.analysis.cells import cell_counts, cell_values
from silo_agent.training.analysis.model import FIRST_MEAN
from silo_agent.training.analysis.patients import owners, patient_counts
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import CELLS, ROWS
from strategies.analysis.cox import ENDINGS, EVENT_SUMS, EVENTS, MOMENTS, cells_of, center_of
from strategies.analysis.design import Product, design_of
from strategies.analysis.model_state import COEFFICIENTS, ITERATIONS, MODEL_PARTS, used_in
from strategies.analysis.model_sums import BEYOND
from strategies.analysis.partition import Family, Tables
from strategies.analysis.regression import GRADIENT, INFORMATION, LIKELIHOODS, OUTER, PATIENTS, POWERS
from strategies.analysis.values import MEANS, NUMBERS, SCORES, SHOWN, SQUARES, SUMS, standard_of
from strategies.base import Array, Arrays, FloatArray
from strategies.exact import exponential, logarithm, product, total

RECORDS = 1000
# of each column where its parts end; categories by the same numbers, and which columns have means
ENDS = {
    "ward": (0, 110, 216, 255, 256),
    "pulse": (60, 92, 112, 120, 128, 136, 188),
    "age": (0, 40, 80, 120, 124, 254, 256),
    "pain": (0, 100, 180, 240, 252, 256),
    "weight": (60, 124, 188),
    "ill": (0, 160, 256),
    "rate": (60, 108, 116, 124, 132, 140, 188),
}
DESCRIBED = ("ward", "pulse", "age", "pain", "weight")
MEASURED = ("pulse", "weight", "rate")
CATEGORIES = ("ward", "pain", "ill")
MISSING_BITS = {"ward": 9, "pulse": 7, "age": 3, "pain": 5, "weight": 2, "ill": 6, "rate": 4}  # one of 2^bits


def columns(names: Sequence[str] = DESCRIBED) -> list[dict[str, Any]]:
    """As a job describes them."""
    return [
        {"name": name, "categories": [f"{name}-{part}" for part in range(len(ENDS[name]) - 1)]}
        if name in CATEGORIES
        else {"name": name, "edges": ENDS[name], "show": ["mean" if name in MEASURED else "counts"]}
        for name in names
    ]


def drawn(seed: str, *, bits: int) -> Array:
    """Shapes: (N,) int64, at least -2^(bits-1) and less than 2^(bits-1)."""
    number_N = np.frombuffer(hashlib.shake_256(seed.encode()).digest(8 * RECORDS), "<i8")
    return (number_N >> (64 - bits)).astype(np.int64)


def values(name: str) -> tuple[Array, Array]:
    """Whole numbers within the column's ends, and which records lack one."""
    is_missing_N = drawn(f"{name} missing", bits=MISSING_BITS[name]) == 0
    if name not in MEASURED:
        return drawn(name, bits=8) + 128, is_missing_N
    shared = "pulse" if name == "rate" else name
    turns = [f"{shared} {turn}" for turn in range(3)]
    four_4N = [drawn(turn, bits=5) for turn in (*turns, f"{name} 3")]
    return np.sum(four_4N, axis=0) + 124, is_missing_N


def parts(name: str) -> Array:
    value_N, is_missing_N = values(name)
    part_N = np.searchsorted(ENDS[name], value_N, side="right") - 1
    return np.where(is_missing_N, len(ENDS[name]) - 1, part_N)


def sums(spec: AnalysisSpec, state: Arrays) -> dict[str, Array]:
    """All quantities of all phases; those of later ones are 0 before the state has what they are of."""
    if spec.model is not None:
        return _of_model(spec, state)
    if spec.correlations:
        return _of_correlations(spec, state)
    if spec.survival is not None:
        return cell_counts(_table(spec), spec.tables)
    tables, names = spec.tables, [column.name for column in spec.columns]
    group_N = np.zeros(RECORDS, np.int64) if spec.group is None else parts(spec.group)
    cells = []
    for place in tables.described:
        table_GP = np.zeros((tables.group_size, tables.partitions[place].size), np.int64)
        np.add.at(table_GP, (group_N, parts(names[place])), 1)
        cells.append(table_GP.ravel())
    found: dict[str, Array] = {CELLS: np.concatenate(cells)}
    by_power_3KG = np.zeros((3, len(tables.measured), tables.group_size))
    for row, place in enumerate(tables.measured):
        value_N, is_missing_N = values(names[place])
        z_N, row_N = (value_N[~is_missing_N] - 124) / 64, group_N[~is_missing_N]
        row_N = state.get(ROWS, np.zeros(tables.group_size, np.int64))[row_N]
        for power in range(3):
            np.add.at(by_power_3KG[power, row], row_N, z_N**power)
    return {**found, NUMBERS: by_power_3KG[0], SUMS: by_power_3KG[1], SQUARES: by_power_3KG[2]}


def _of_model(spec: AnalysisSpec, state: Arrays) -> dict[str, Array]:
    """Counts and values as silos sum them, without a rounded digit; of a step by exact operations."""
    tables, table = spec.tables, _table(spec)
    found = {**cell_counts(table, tables), **cell_values(table, tables, state)}
    assert tables.model is not None
    if tables.model.by_patient and f"{MODEL_PARTS}{tables.factors[0]}" in state:
        found |= patient_counts(table, tables, state)
    if f"{MEANS}{tables.measured[0]}" not in state:
        return found
    design = design_of(tables)
    design_NP = np.where(used_in(tables, state), _design(tables, table, state, design), 0.0)
    if tables.time is not None:
        return found | _of_cox(tables, table, state, design_NP)
    predictor_N = product(design_NP, state[COEFFICIENTS][:, None])[:, 0]
    outcome, family = tables.model.outcome, tables.model.family
    if family is Family.LOGISTIC:
        outcome_N = np.asarray(table.parts_NC[:, outcome] == 1, np.float64)
        mean_N = 1.0 / (1.0 + exponential(-predictor_N))
        weight_N = mean_N * (1.0 - mean_N)
        likelihood_N = outcome_N * predictor_N - logarithm(1.0 + exponential(predictor_N))
    elif family is Family.LINEAR:
        outcome_N, mean_N = table.z_NK[:, tables.measured.index(outcome)], predictor_N
        weight_N = np.ones(table.records)
        likelihood_N = (outcome_N - mean_N) * (outcome_N - mean_N) / -2.0
    else:
        outcome_N = (table.z_NK[:, tables.measured.index(outcome)] + 1.0) / 2.0  # its lowest edge is 0
        mean_N = weight_N = exponential(predictor_N)
        likelihood_N = outcome_N * predictor_N - mean_N
    score_N = outcome_N - mean_N
    if family is Family.POISSON and int(state[ITERATIONS]) == 0:
        weight_N = outcome_N + FIRST_MEAN / ENDS[spec.columns[outcome].name][-1]
        score_N = weight_N * logarithm(weight_N) + outcome_N - weight_N
    score_UP = score_N[:, None] * design_NP
    if tables.model.by_patient:
        owner_N, every = owners(table, tables, state), design_of(tables, first=0)
        score_UL = np.zeros((int(owner_N.max()) + 1, len(every)))
        np.add.at(score_UL, owner_N, score_N[:, None] * _design(tables, table, state, every))
        score_UP = np.where(used_in(tables, state), score_UL[:, [every.index(each) for each in design]], 0.0)
        square_UL = score_UL * score_UL
        found |= {
            POWERS: np.stack([total(square_UL), total(square_UL * square_UL)]),
            PATIENTS: np.array([len(score_UL), 0]),
        }
    return found | {
        INFORMATION: product(design_NP.T, weight_N[:, None] * design_NP),
        GRADIENT: product(design_NP.T, score_N[:, None])[:, 0],
        LIKELIHOODS: total(likelihood_N),
        BEYOND: np.zeros((), np.int64),
        OUTER: product(score_UP.T, score_UP),
    }


def _design(tables: Tables, table: DescribedTable, state: Arrays, design: Sequence[Product]) -> FloatArray:
    """Shapes: -> (N, P)."""
    design_NP = np.ones((table.records, len(design)))
    for column, factors in enumerate(design):
        for place, part in factors:
            if place in tables.measured:
                design_NP[:, column] *= table.z_NK[:, tables.measured.index(place)]
            else:
                design_NP[:, column] *= state[f"{MODEL_PARTS}{place}"][table.parts_NC[:, place]] == part
    return design_NP


def _of_correlations(spec: AnalysisSpec, state: Arrays) -> dict[str, Array]:
    tables, table = spec.tables, _table(spec)
    if ROWS not in state:
        return cell_counts(table, tables)
    found = cell_values(table, tables, state)
    if f"{SHOWN}0" not in state:
        return found
    standards = [standard_of(state, place, tables.partitions[place].edges) for place in tables.measured]
    score_NK = np.zeros(table.z_NK.shape)
    for place, (mean, deviation) in enumerate(standards):
        score_NK[:, place] = (table.z_NK[:, place] - mean) / deviation if deviation else 0.0
    one, other = np.triu_indices(len(standards))
    return {SCORES: total(score_NK[:, one] * score_NK[:, other])}


def _of_cox(tables: Tables, table: DescribedTable, state: Arrays, design_NP: FloatArray) -> dict[str, Array]:
    """With strata."""
    assert tables.model is not None
    assert tables.time is not None
    (stratum,) = tables.model.strata
    (strata, bins), size = cells_of(tables), design_NP.shape[1]
    bins_T = state[f"{MODEL_PARTS}{tables.time}"]
    bin_N = bins_T[table.parts_NC[:, tables.time]]
    stratum_N = state[f"{MODEL_PARTS}{stratum}"][table.parts_NC[:, stratum]]
    apart_NP = design_NP - center_of(tables, state)
    weight_N = exponential(product(apart_NP, state[COEFFICIENTS][:, None])[:, 0])
    with_one_NQ = np.column_stack([np.ones(table.records), design_NP])
    moments_CQQ = np.zeros((strata * bins * ENDINGS, size + 1, size + 1))
    for cell in range(len(moments_CQQ)):
        is_in_N = stratum_N * bins * ENDINGS + bin_N == cell
        its_NQ = with_one_NQ[is_in_N]
        if len(its_NQ):
            moments_CQQ[cell] = product(its_NQ.T, weight_N[is_in_N, None] * its_NQ)
    is_event_N = bin_N >= bins_T[bins]
    event_N = bin_N[is_event_N] - bins_T[bins]
    sum_BP = np.zeros((bins, size))
    np.add.at(sum_BP, event_N, design_NP[is_event_N])
    rows_U, columns_U = np.triu_indices(size + 1)
    return {
        MOMENTS: moments_CQQ[:, rows_U, columns_U],
        EVENTS: np.bincount(stratum_N[is_event_N] * bins + event_N, minlength=strata * bins),
        EVENT_SUMS: sum_BP,
        BEYOND: np.zeros((), np.int64),
    }


def _table(spec: AnalysisSpec) -> DescribedTable:
    """Of the complete records. Each z is a multiple of 1/128."""
    z_KN = []
    for place in spec.tables.measured:
        ends = ENDS[spec.columns[place].name]
        half = (ends[-1] - ends[0]) / 2.0
        z_KN.append((values(spec.columns[place].name)[0] - ends[0] - half) / half)
    parts_NC = np.stack([parts(column.name) for column in spec.columns], axis=1)
    z_NK = np.stack(z_KN, axis=1) if z_KN else np.zeros((RECORDS, 0))
    unit_N = drawn("patient", bits=9) + 256
    table = DescribedTable(parts_NC=parts_NC, z_NK=z_NK, name="ward", unit_N=unit_N)
    return table.complete(spec.tables)
