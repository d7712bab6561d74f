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

from strategies.analysis.merging import coarser_parts
from strategies.analysis.partition import Tables
from strategies.base import Array

PartsOf = Mapping[int, Sequence[int]]  # by place of a column, the published part of each declared one


def margins(tables: Tables, count_J: Array) -> dict[int, Array]:
    """Of each column by itself, (P,); (2,) of the outcome."""
    found = {}
    for place, size, axis in zip(tables.joint, tables.joint_shape, _axes(tables), strict=True):
        found[place] = np.zeros(size, np.int64)
        np.add.at(found[place], axis, count_J)
    return found


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
    of time come last, of the parts that the other factors have in one bin; with one there is no model.
    """
    in_one = {} if tables.time is None else {tables.time: [0] * len(finest[tables.time])}
    steps = ({**parts_of, **in_one} for parts_of in _steps(tables, finest, counts))
    found = next((each for each in steps if _is_filled(tables, count_J, each)), None)
    if found is None or tables.time is None:
        return found
    chain = coarser_parts(finest[tables.time], counts[tables.time], is_ordered=True, missing=None)
    binned = ({**found, tables.time: bins} for bins in chain if max(bins) > 0)
    return next((each for each in binned if _is_filled(tables, count_J, each)), None)


def _is_filled(tables: Tables, count_J: Array, parts_of: PartsOf) -> bool:
    row_J = joint_rows(tables, parts_of)
    held = np.zeros(int(row_J.max()) + 1, np.int64)
    np.add.at(held, row_J, count_J)
    return bool((held >= tables.min_cell).all())


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
