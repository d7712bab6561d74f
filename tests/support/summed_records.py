"""Records from names, and what silos would add up of them for an analysis: for vectors of its states.

N = records, K = measured columns, G = parts of the group.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec
from strategies.analysis.counts import CELLS, ROWS
from strategies.analysis.values import NUMBERS, SQUARES, SUMS
from strategies.base import Array, Arrays

RECORDS = 1000
# of each column where its parts end; categories by the same numbers, and which columns have means
ENDS = {
    "ward": (0, 110, 216, 255, 256),
    "pulse": (60, 92, 112, 120, 128, 136, 188),
    "age": (0, 40, 80, 120, 124, 254, 256),
    "pain": (0, 100, 180, 240, 252, 256),
    "weight": (60, 124, 188),
}
MEASURED = ("pulse", "weight")
CATEGORIES = ("ward", "pain")
MISSING_BITS = {"ward": 9, "pulse": 7, "age": 3, "pain": 5, "weight": 2}  # one of 2^bits records


def columns() -> list[dict[str, Any]]:
    """As a job describes them."""
    return [
        {"name": name, "categories": [f"{name}-{part}" for part in range(len(ends) - 1)]}
        if name in CATEGORIES
        else {"name": name, "edges": ends, "show": ["mean" if name in MEASURED else "counts"]}
        for name, ends in ENDS.items()
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
    four_4N = [drawn(f"{name} {turn}", bits=5) for turn in range(4)]
    return np.sum(four_4N, axis=0) + 124, is_missing_N


def parts(name: str) -> Array:
    value_N, is_missing_N = values(name)
    part_N = np.searchsorted(ENDS[name], value_N, side="right") - 1
    return np.where(is_missing_N, len(ENDS[name]) - 1, part_N)


def sums(spec: AnalysisSpec, state: Arrays) -> dict[str, Array]:
    """All quantities of both phases; those of the second are 0 before the state has parts of the group."""
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
