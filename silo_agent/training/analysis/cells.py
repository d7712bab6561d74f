"""What a silo adds to the sums of an analysis: records by cell, values by published part of the group, and
products of scores.

N = records, B = those of one block, C = columns, K = measured columns; G = parts of the group, 1 without one,
R = published ones; J = cells of a model's joint table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import CELLS, ROWS
from strategies.analysis.partition import Tables
from strategies.analysis.values import (
    DEVIATIONS,
    MEANS,
    NUMBERS,
    SCORES,
    SHOWN,
    SQUARES,
    SUMS,
    standard_of,
)
from strategies.base import Array, Arrays, array_in

BLOCK_RECORDS = 1 << 13  # of a design of 100 columns 6 MiB


def cell_counts(table: DescribedTable, tables: Tables) -> dict[str, Array]:
    """Each table is the group by one column, row by row, missing the last of each; in the order of
    `Tables.described`. Of a survival curve the joint table alone. Shapes: (cells,) int64."""
    if tables.survival is not None:
        return {CELLS: np.bincount(joint_cell(table, tables), minlength=tables.joint_cells)}
    group_N, found = _group(table, tables), list[NDArray[np.int64]]()
    for place in tables.described:
        size = tables.partitions[place].size
        cell_N = group_N * size + table.parts_NC[:, place]
        found.append(np.bincount(cell_N, minlength=tables.group_size * size))
    if tables.model is not None:
        found.append(np.bincount(joint_cell(table, tables), minlength=tables.joint_cells))
    return {CELLS: np.concatenate(found)}


def cell_values(table: DescribedTable, tables: Tables, state: Arrays) -> dict[str, Array]:
    """How many values there are, their sum and that of their squares, of z. state: says which parts of the
    group are published as one. With a model there is no group, and they are by cell of its joint table.

    Shapes: (K, G), of which the first R are used, or (K, J); numbers int64, sums and squares float64. Raises
    ConfigError for a state that does not say so: it came from outside.
    """
    if tables.model is None:
        return _by_row(
            table, tables, _published_rows(tables, state)[_group(table, tables)], tables.group_size
        )
    return _by_row(table, tables, joint_cell(table, tables), tables.joint_cells)


def score_products(table: DescribedTable, tables: Tables, state: Arrays) -> dict[str, Array]:
    """Of the records without missing values; 0 with a column that shows no mean. Shapes: (K (K + 1) / 2,).

    Raises ConfigError for a state that does not say means and deviations: it came from outside.
    """
    standards = []
    for place in tables.measured:
        for name, dtype in ((SHOWN, np.uint8), (MEANS, np.float64), (DEVIATIONS, np.float64)):
            array_in(state, f"{name}{place}", (2,), dtype)
        standards.append(standard_of(state, place, tables.partitions[place].edges))
    mean_K, deviation_K = np.array(standards).T
    has_K, divisor_K = deviation_K > 0.0, np.where(deviation_K > 0.0, deviation_K, 1.0)
    product_KK = np.zeros((len(standards), len(standards)))
    for start in range(0, table.records, BLOCK_RECORDS):
        score_BK = np.where(has_K, (table.z_NK[start : start + BLOCK_RECORDS] - mean_K) / divisor_K, 0.0)
        product_KK += score_BK.T @ score_BK
    return {SCORES: product_KK[np.triu_indices(len(product_KK))]}


def noised_values(table: DescribedTable, tables: Tables) -> dict[str, Array]:
    """What noise is added to: as `cell_counts`; of values the sums and squares alone, by declared part of the
    group."""
    values = _by_row(table, tables, _group(table, tables), tables.group_size) if tables.measured else {}
    return cell_counts(table, tables) | {name: values[name] for name in (SUMS, SQUARES) if name in values}


def _by_row(table: DescribedTable, tables: Tables, row_N: NDArray[np.int64], rows: int) -> dict[str, Array]:
    """Shapes: -> (K, rows) each."""
    shape = (len(tables.measured), rows)
    numbers, sums, squares = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    for place in range(len(tables.measured)):
        has_value_N = ~np.isnan(table.z_NK[:, place])
        value_N, its_row_N = table.z_NK[has_value_N, place], row_N[has_value_N]
        numbers[place] = np.bincount(its_row_N, minlength=rows)
        sums[place] = np.bincount(its_row_N, weights=value_N, minlength=rows)
        squares[place] = np.bincount(its_row_N, weights=value_N * value_N, minlength=rows)
    return {NUMBERS: numbers, SUMS: sums, SQUARES: squares}


def _group(table: DescribedTable, tables: Tables) -> NDArray[np.int64]:
    """The part of each record. Shapes: -> (N,)."""
    if tables.group is None:
        return np.zeros(table.records, np.int64)
    return table.parts_NC[:, tables.group]


def joint_cell(table: DescribedTable, tables: Tables) -> NDArray[np.int64]:
    """The cell of each record in the joint table of a model. Shapes: -> (N,)."""
    cell_N = np.zeros(table.records, np.int64)
    for place, size in zip(tables.joint, tables.joint_shape, strict=True):
        cell_N = cell_N * size + np.minimum(table.parts_NC[:, place], size - 1)
    return cell_N


def _published_rows(tables: Tables, state: Arrays) -> NDArray[np.int64]:
    """Shapes: -> (G,)."""
    row_G = array_in(state, ROWS, (tables.group_size,), np.int64)
    if not ((row_G >= 0) & (row_G < tables.group_size)).all():
        raise ConfigError(f"state: {ROWS}: expected parts from 0 to {tables.group_size - 1}")
    return row_G
