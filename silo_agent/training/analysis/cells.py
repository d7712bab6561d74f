"""What a silo adds to the sums of an analysis: records by cell, and values by published part of the group.

N = records, C = columns, K = measured columns; G = parts of the group, 1 without one, R = published ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import CELLS, ROWS
from strategies.analysis.partition import Tables
from strategies.analysis.values import NUMBERS, SQUARES, SUMS
from strategies.base import Array, Arrays


def cell_counts(table: DescribedTable, tables: Tables) -> dict[str, Array]:
    """Each table is the group by one column, row by row, missing the last of each; in the order of
    `Tables.described`. Shapes: (cells,) int64."""
    group_N, found = _group(table, tables), list[NDArray[np.int64]]()
    for place in tables.described:
        size = tables.partitions[place].size
        cell_N = group_N * size + table.parts_NC[:, place]
        found.append(np.bincount(cell_N, minlength=tables.group_size * size))
    return {CELLS: np.concatenate(found)}


def cell_values(table: DescribedTable, tables: Tables, state: Arrays) -> dict[str, Array]:
    """How many values there are, their sum and that of their squares, of z. state: says which parts of the
    group are published as one.

    Shapes: (K, G), of which the first R are used; numbers int64, sums and squares float64. Raises ConfigError
    for a state that does not say so: it came from outside.
    """
    row_G = _published_rows(tables, state)
    row_N, rows = row_G[_group(table, tables)], tables.group_size
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


def _published_rows(tables: Tables, state: Arrays) -> NDArray[np.int64]:
    """Shapes: -> (G,)."""
    row_G, expected = state.get(ROWS), f"expected the published part of each of {tables.group_size}"
    if row_G is None or row_G.dtype != np.int64 or row_G.shape != (tables.group_size,):
        got = "none" if row_G is None else f"{row_G.dtype} of shape {row_G.shape}"
        raise ConfigError(f"state: {ROWS}: {expected}, got {got}")
    if not ((row_G >= 0) & (row_G < tables.group_size)).all():
        raise ConfigError(f"state: {ROWS}: {expected}, got one beyond them")
    return row_G
