"""Whose records are whose, of a model with errors by patient.

N = records, U = patients, B = patients of one block, F = published cells of the factors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.analysis.cells import joint_cell
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.data.base import Indices
from strategies.analysis.joint import factor_rows
from strategies.analysis.model_state import BLOCKS, parts_in
from strategies.analysis.model_values import PAIRS, SEVERAL
from strategies.analysis.partition import Tables
from strategies.base import Array, Arrays, array_in

BLOCK_PATIENTS = 1 << 13


def patient_counts(table: DescribedTable, tables: Tables, state: Arrays) -> dict[str, Array]:
    """Patients with records in both of two cells, and those with several records. Shapes: (F, F), ()."""
    patient_N, cell_N = _patients(table), _cells(table, tables, state)
    is_in_UF = np.zeros((patient_N.max() + 1, tables.factor_cells), np.bool_)
    is_in_UF[patient_N, cell_N] = True
    pairs_FF = np.zeros((tables.factor_cells, tables.factor_cells))
    for start in range(0, len(is_in_UF), BLOCK_PATIENTS):
        in_BF = is_in_UF[start : start + BLOCK_PATIENTS].astype(np.float64)
        pairs_FF += in_BF.T @ in_BF
    several = np.count_nonzero(np.bincount(patient_N) > 1)
    return {PAIRS: pairs_FF.astype(np.int64), SEVERAL: np.array(several)}


def owners(table: DescribedTable, tables: Tables, state: Arrays) -> Indices:
    """Which records count together, by a number of their own from 0 on. Shapes: -> (N,)."""
    cells = tables.factor_cells
    block_F = array_in(state, BLOCKS, (cells,), np.int64)
    # Security: with another number two patients would count as one
    if not -1 <= int(block_F.min()) <= int(block_F.max()) < cells:
        raise ConfigError(f"state: {BLOCKS}: expected blocks from -1 to {cells - 1}")
    block_N = block_F[_cells(table, tables, state)]
    if (block_N < 0).any():
        return np.arange(table.records)
    both_N = _patients(table) * cells + block_N
    return np.asarray(np.unique(both_N, return_inverse=True)[1])


def _patients(table: DescribedTable) -> Indices:
    """Whose each record is, from 0 on. Shapes: -> (N,)."""
    if table.unit_N is None:
        raise ConfigError("data.unit: expected a column that says whose a row is, for errors by patient")
    return np.asarray(np.unique(table.unit_N, return_inverse=True)[1])


def _cells(table: DescribedTable, tables: Tables, state: Arrays) -> NDArray[np.int64]:
    """Shapes: -> (N,)."""
    return factor_rows(tables, parts_in(tables, state))[joint_cell(table, tables)]
