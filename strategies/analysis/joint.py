"""The joint table of a model's columns with categories, and the parts of them that the model uses.

Coefficients and their errors give its cells away, so all of them have to hold enough records. Until they do,
parts are merged by counts that are published, of each column by itself.
Source: docs/decisions/0041-analysis.md.

J = cells of the joint table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.analysis.merging import added, chained_bins, coarser_parts, split_bins
from strategies.analysis.partition import Tables
from strategies.base import Array

PartsOf = Mapping[int, Sequence[int]]  # by place of a column, the published part of each declared one


def margins(tables: Tables, count_J: Array) -> dict[int, Array]:
    """Of each column by itself, (P,); (2,) of the outcome."""
    return {place: added(count_J, axis) for place, axis in zip(tables.joint, _axes(tables), strict=True)}


def joint_rows(tables: Tables, parts_of: PartsOf) -> NDArray[np.int64]:
    """The published cell of each declared one. parts_of: of the factors. Shapes: -> (J,)."""
    row_J = np.zeros(tables.joint_cells, np.int64)
    for place, size, axis in zip(tables.joint, tables.joint_shape, _axes(tables), strict=True):
        parts_P = np.asarray(parts_of.get(place, range(size)), np.int64)
        row_J = row_J * (int(parts_P.max()) + 1) + parts_P[axis]
    return row_J


def factor_rows(tables: Tables, parts_of: PartsOf) -> NDArray[np.int64]:
    """As `joint_rows`, of the factors alone. Shapes: -> (J,)."""
    outcome = {place: [0] * size for place, size in zip(tables.joint, tables.joint_shape, strict=True)}
    return joint_rows(tables, {**outcome, **parts_of})


def model_parts(
    tables: Tables, count_J: Array, finest: PartsOf, counts: Mapping[int, Sequence[int]]
) -> PartsOf | None:
    """The first parts, from the finest on, of which each joint cell holds enough; None where there are none.

    finest, counts: of each factor by itself. The outcome is never merged: it has two parts, or no model. Bins
    of time are merged by the parts of the other factors; in a model two hold events, or these merge on.
    """
    time = tables.time
    for parts_of in _steps(tables, finest, counts):
        if time is not None:
            parts_of = {**parts_of, time: _bins(tables, count_J, parts_of, finest[time])}
        if not (held_in(tables, count_J, parts_of) >= tables.min_cell).all():
            continue
        if time is None or tables.model is None or max(split_bins(parts_of[time])[1]) > 0:
            return parts_of
    return None


def _bins(tables: Tables, count_J: Array, parts_of: PartsOf, finest: Sequence[int]) -> list[int]:
    """The first of each ending of which each cell with these parts holds enough; one each where none do."""
    assert tables.time is not None
    size = len(finest)
    table_PR = held_in(tables, count_J, {**parts_of, tables.time: range(size)}).reshape(size, -1)
    endings = [0] * (size // 2) + [1] * (size // 2)
    if (added(table_PR, endings) < tables.min_cell).any():
        return endings
    return chained_bins(table_PR.T, finest, tables.partitions[tables.time], tables.min_cell)


def held_in(tables: Tables, count_J: Array, parts_of: PartsOf) -> Array:
    """Records of each published cell, time first. Shapes: -> (cells,)."""
    return added(count_J, joint_rows(tables, parts_of))


def _steps(tables: Tables, finest: PartsOf, counts: Mapping[int, Sequence[int]]) -> Iterator[PartsOf]:
    """The smallest part of all factors but time joins another of its column; of equally small ones that of
    the first column."""
    chains = {
        place: coarser_parts(finest[place], counts[place], is_ordered=False, missing=None)
        for place in tables.factors
        if place != tables.time
    }
    present = {place: next(chain) for place, chain in chains.items()}
    while True:
        yield dict(present)
        left = [place for place in chains if max(present[place]) > 0]
        if not left:
            return
        place = min(left, key=lambda each: _smallest(finest[each], counts[each], present[each]))
        present[place] = next(chains[place])


def _smallest(finest: Sequence[int], counts: Sequence[int], parts: Sequence[int]) -> int:
    """Records of the smallest of these parts."""
    held = [0] * (max(parts) + 1)
    for published, part in dict(zip(finest, parts, strict=True)).items():
        held[part] += counts[published]
    return min(held)


def _axes(tables: Tables) -> Sequence[NDArray[np.int64]]:
    """Of each column the declared part of each cell. Shapes: -> (J,) each."""
    return [axis.reshape(-1) for axis in np.indices(tables.joint_shape)] if tables.joint else []
