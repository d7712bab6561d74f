"""Records of several silos from arrays, and the last state of an analysis over them, by the product's phases.

N = records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.analysis_spec import AnalysisSpec
from silo_agent.training.analysis.table import DescribedTable
from simulation.analysis import AnalysisSimulation
from strategies.base import Arrays

SHARES = (0.5, 0.25, 0.13, 0.12)  # of the records, by silo
SILOS = tuple(f"silo-{place}" for place in range(len(SHARES)))
# by column of categories the place of each record's category, of numbers its value; -1 and NaN are missing
Columns = Mapping[str, NDArray[np.int64] | NDArray[np.float64]]


def job(columns: Sequence[Mapping[str, Any]], **fields: Any) -> AnalysisSpec:
    values = {
        "kind": "analysis",
        "name": "study",
        "federation": "wards",
        "silos": SILOS,
        "not_after": "2099-01-01T00:00:00Z",
        "columns": columns,
        **fields,
    }
    return AnalysisSpec.model_validate(values)


def last_state(spec: AnalysisSpec, columns: Columns) -> Arrays:
    """Of silos that hold SHARES; sums are plain numbers. Raises SimulationFailed for one that ends early."""
    ends = np.round(np.cumsum([0.0, *SHARES]) * len(columns[spec.columns[0].name])).astype(np.int64).tolist()
    whole = described(spec, columns)
    tables = {
        name: DescribedTable(parts_NC=whole.parts_NC[low:high], z_NK=whole.z_NK[low:high], name=name)
        for name, (low, high) in zip(SILOS, pairwise(ends), strict=True)
    }
    simulation = AnalysisSimulation(spec, tables)
    for _ in simulation.run():
        pass
    return simulation.state


def described(spec: AnalysisSpec, columns: Columns) -> DescribedTable:
    """As a silo reads them."""
    tables = spec.tables
    parts, numbers = [], []
    for place, (column, partition) in enumerate(zip(spec.columns, tables.partitions, strict=True)):
        value_N = np.asarray(columns[column.name])
        if column.edges is None:
            parts.append(np.where(value_N < 0, partition.parts, value_N))
            continue
        edges = np.array(column.edges)
        is_there_N = (value_N >= edges[0]) & (value_N <= edges[-1])
        part_N = np.minimum(np.searchsorted(edges, value_N, side="right") - 1, partition.parts - 1)
        parts.append(np.where(is_there_N, part_N, partition.parts))
        if place in tables.measured:
            half = (edges[-1] - edges[0]) / 2.0
            numbers.append(np.where(is_there_N, (value_N - edges[0] - half) / half, np.nan))
    records = len(parts[0])
    z_NK = np.stack(numbers, axis=1) if numbers else np.zeros((records, 0))
    return DescribedTable(parts_NC=np.stack(parts, axis=1).astype(np.int64), z_NK=z_NK, name="ward")
