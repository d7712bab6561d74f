"""Records, the sums that silos make of them for an analysis, and the state that follows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from strategies.analysis.counts import CELLS, ROWS, CountsPhase
from strategies.analysis.joint import margins
from strategies.analysis.partition import Partition, Tables
from strategies.analysis.values import NUMBERS, SQUARES, SUMS, ValuesPhase
from strategies.base import TOTAL, Array, Arrays, PhaseContext, PhaseResult

Places = NDArray[np.int64]
Published = Mapping[str, Array]
Pinned = list[tuple[tuple[int, ...], Published]]


def context(state: Arrays | None = None, *, records: int = 1000) -> PhaseContext:
    state = {TOTAL: np.array(records)} if state is None else state
    return PhaseContext(round=0, members=3, classes=1, state=state, trained=())


def numbers(*edges: float) -> Partition:
    """A measured column."""
    return Partition(parts=len(edges) - 1, edges=edges, has_mean=True)


def counted(tables: Tables, cells: Array) -> PhaseResult:
    """cells: of the joint table alone where there is a model; its other columns have one part."""
    if tables.model is not None:
        of_column = margins(tables, np.asarray(cells).ravel())
        alone = [of_column.get(place, np.sum(cells)) for place in tables.described]
        cells = np.concatenate([np.ravel(each) for each in (*alone, cells)])
    return CountsPhase(tables=tables).next_state(context(), {CELLS: np.asarray(cells, np.int64).ravel()})


def published(tables: Tables, cells: Array) -> Published:
    """What readers see of these cells."""
    state = counted(tables, cells).state
    assert state is not None
    return {name: array for name, array in state.items() if name != TOTAL}


def all_cells(records: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Every way to put so many records into so many cells."""
    if cells == 1:
        yield (records,)
        return
    for first in range(records + 1):
        yield from ((first, *rest) for rest in all_cells(records - first, cells - 1))


def key_of(state: Published) -> bytes:
    return b"".join(f"{name}{array.shape}".encode() + array.tobytes() for name, array in state.items())


def pinned_sums(
    tables: Tables, records: int, known_sets: Callable[[Tables, Published], list[Array]]
) -> Pinned:
    """Sums of declared cells that take fewer than min_cell values over all tables that are published alike,
    though no published counts add up to them or differ by them. known_sets: the declared cells that each
    published count adds up."""
    worlds: dict[bytes, list[tuple[int, ...]]] = defaultdict(list)
    states = {}
    size = tables.cells if tables.model is None else tables.joint_cells
    for cells in all_cells(records, size):
        state = counted(tables, np.array(cells)).state
        if state is not None:
            worlds[key_of(state)].append(cells)
            states[key_of(state)] = state
    mask_SN = np.array(list(product((0, 1), repeat=size))[1:])
    found: Pinned = []
    for key, alike in worlds.items():
        sum_WS = np.sort(np.array(alike) @ mask_SN.T, axis=0)
        values_S = (np.diff(sum_WS, axis=0) > 0).sum(axis=0) + 1
        known = np.array(known_sets(tables, states[key]), float)
        rank = np.linalg.matrix_rank(known)
        found += [
            (tuple(mask_N.tolist()), states[key])
            for mask_N in mask_SN[values_S < tables.min_cell]
            if np.linalg.matrix_rank(np.vstack([known, mask_N])) > rank
        ]
    return found


def part_of(column: Partition, value_N: Array) -> Places:
    """The declared part of each value of a column of numbers; NaN is missing."""
    edges = np.array(column.edges)
    place_N = np.searchsorted(edges, value_N, side="right") - 1
    place_N[value_N == edges[-1]] = column.parts - 1
    place_N[np.isnan(value_N) | (value_N < edges[0]) | (value_N > edges[-1])] = column.parts
    return place_N


def sums_of(column: Partition, value_N: Array, row_N: Places, rows: int) -> dict[str, Array]:
    """Of one measured column, by published row. Shapes: each (1, rows)."""
    low, width = column.edges[0], column.edges[-1] - column.edges[0]
    is_there_N = part_of(column, value_N) < column.parts
    z_N = (value_N[is_there_N] - low) / width * 2 - 1
    row_N = row_N[is_there_N]
    return {
        NUMBERS: np.bincount(row_N, minlength=rows)[None],
        SUMS: np.bincount(row_N, z_N, minlength=rows)[None],
        SQUARES: np.bincount(row_N, z_N * z_N, minlength=rows)[None],
    }


def described(
    column: Partition, value_N: Array, group_N: Places | None = None, *, groups: int = 1, min_cell: int = 10
) -> Arrays:
    """The state after both phases: values of a measured column, by a group whose parts are numbered."""
    columns = (column,) if group_N is None else (column, Partition(parts=groups))
    group = None if group_N is None else 1
    tables = Tables(partitions=columns, group=group, min_cell=min_cell)
    group_N = np.zeros(len(value_N), np.int64) if group_N is None else group_N
    cells_GP = np.zeros((tables.group_size, column.size), np.int64)
    np.add.at(cells_GP, (group_N, part_of(column, value_N)), 1)
    state = counted(tables, cells_GP).state
    assert state is not None
    rows_G = state[ROWS]
    sums = sums_of(column, value_N, rows_G[group_N], int(rows_G.max()) + 1)
    result = ValuesPhase(tables=tables).next_state(context(state), sums)
    assert result.state is not None, result.reason
    return result.state
