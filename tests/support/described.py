"""Analyses and their last states, made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec
from strategies.analysis.counts import CELL_COUNTS, CELL_PARTS, PART_COUNTS, PARTS, ROW_COUNTS, ROWS
from strategies.analysis.values import DEVIATIONS, MEANS, SHOWN
from strategies.base import Array

JOB: dict[str, Any] = {
    "kind": "analysis",
    "name": "table-one",
    "federation": "hearts",
    "not_after": "2099-01-01T00:00:00Z",
    "silos": ["north", "south", "west"],
}
AGE = {"name": "age", "edges": [30, 40, 50, 70], "unit": "years", "show": ["mean", "median", "counts"]}
PAIN = {"name": "pain", "categories": ["typical", "other", "none"]}
SEX = {"name": "sex", "categories": ["women", "men"]}


def analysis(*columns: dict[str, Any], group: str | None = None, **fields: Any) -> AnalysisSpec:
    return AnalysisSpec.model_validate({**JOB, "columns": columns, "group": group, **fields})


def whole(values: Any) -> Array:
    return np.array(values, np.int64)


def rows(parts: list[int], counts: list[int]) -> dict[str, Array]:
    return {ROWS: whole(parts), ROW_COUNTS: whole(counts)}


def counted(
    place: int, parts: list[int], counts: list[int], cell_parts: list[int], cells: list[list[int]]
) -> dict[str, Array]:
    return {
        f"{PARTS}{place}": whole(parts),
        f"{PART_COUNTS}{place}": whole(counts),
        f"{CELL_PARTS}{place}": whole(cell_parts),
        f"{CELL_COUNTS}{place}": whole(cells),
    }


def spreads(place: int, found: list[tuple[float, float] | None]) -> dict[str, Array]:
    return {
        f"{SHOWN}{place}": np.array([each is not None for each in found], np.uint8),
        f"{MEANS}{place}": np.array([each[0] if each else 0.0 for each in found]),
        f"{DEVIATIONS}{place}": np.array([each[1] if each else 0.0 for each in found]),
    }


def by_sex() -> tuple[AnalysisSpec, dict[str, Array]]:
    """100 women, 60 men and no part of missing sex: its 12 were merged with the men.

    age: 20 from 30 to 40, 60 to 50, 72 to 70, 20 missing; by sex the first two merged. pain: typical alone,
    other merged with none, nobody missing on its own.
    """
    spec = analysis(AGE, SEX, PAIN, group="sex")
    state = {
        **rows([0, 1, 1], [100, 72]),
        **counted(0, [0, 1, 2, 3], [20, 60, 72, 20], [0, 0, 1, 2], [[50, 40, 10], [30, 32, 10]]),
        **spreads(0, [None, (48.0, 8.0), None]),
        **counted(2, [0, 1, 1, 0], [52, 120], [0, 1, 1, 0], [[32, 68], [20, 52]]),
    }
    return spec, state
