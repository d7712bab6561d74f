"""What an analysis costs a silo beside reading its data: a table of groups by columns over all silos' rows.

Each silo has a Parquet file of its own. Of `load_table` the time of the file's reader alone is taken off, so
that the parts of records are counted in. All phases then run in this process with their sessions and
masks: each silo's share of its CPU seconds, that of the coordinator's work too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from bench.clock import Clock
from bench.options import Parser, whole
from bench.rows import Row, table
from chorale.spec.analysis_spec import AnalysisSpec
from silo_agent.training.analysis.table import READERS, DescribedTable, load_table
from silo_agent.training.data.settings import DataSettings
from simulation.analysis import AnalysisSimulation

SILOS, ROWS, TARGET_SECONDS = 10, 1_000_000, 3.0
MAX_SILOS, LEAST_ROWS, MAX_ROWS = 50, 10_000, 10_000_000
GROUPS = ("a", "b", "c")
EDGES = (0.0, 40.0, 50.0, 60.0, 100.0)
NUMBERS, TEXTS = 5, 5  # columns of four parts and missing values: 5 by 4 cells each


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """CPU seconds of one silo, means over all. reading: apart from the others; its file is read twice."""

    silos: int
    rows_of_all: int
    cells: int
    reading_cpu_seconds: float
    parts_cpu_seconds: float
    phases_cpu_seconds: float

    def rows(self) -> list[Row]:
        spent = self.parts_cpu_seconds + self.phases_cpu_seconds
        over = f"{self.silos} silos and {self.rows_of_all:,} rows"
        name = f"{self.cells} cells over {over}, CPU per silo beside reading"
        return [Row(name=name, target=TARGET_SECONDS, value=spent, unit="s")]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = measure(silos=options.silos, rows=options.rows)
    if options.json:
        print(json.dumps({**asdict(report), "rows": [row.to_json() for row in report.rows()]}))
        return 0
    for name, seconds in asdict(report).items():
        if name.endswith("_cpu_seconds"):
            print(f"{name:>22}  {1000 * seconds:8.1f} ms of one silo")
    print(f"\n{table(report.rows())}")
    return 0


def measure(*, silos: int, rows: int) -> Report:
    """rows: of all silos together."""
    spec, clock = job(silos), Clock()
    names = [column.name for column in spec.columns]
    tables: dict[str, DescribedTable] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, silo in enumerate(spec.silos):
            print(f"analysis: the table of {silo}", file=sys.stderr, flush=True)
            settings = written(Path(folder) / f"{silo}.parquet", rows=rows // silos, seed=place)
            with clock.step("reading"):
                READERS[settings.format](settings, names)
            with clock.step("table"):
                tables[silo] = load_table(settings, spec)
    simulation = AnalysisSimulation(spec, tables, is_secure=True)
    with clock.step("phases"):
        for report in simulation.run():
            print(f"analysis: {report.phase}", file=sys.stderr, flush=True)
    reading, whole_table, phases = (clock.total(name).cpu_seconds / silos for name in clock.names)
    return Report(
        silos=silos,
        rows_of_all=sum(each.records for each in tables.values()),
        cells=spec.tables.cells,
        reading_cpu_seconds=reading,
        parts_cpu_seconds=whole_table - reading,
        phases_cpu_seconds=phases,
    )


def job(silos: int) -> AnalysisSpec:
    """A group, columns of numbers with means, and columns of texts."""
    columns: list[dict[str, Any]] = [{"name": "group", "categories": GROUPS}]
    columns += [{"name": f"number-{i}", "edges": EDGES, "show": ["mean"]} for i in range(NUMBERS)]
    columns += [{"name": f"text-{i}", "categories": ("p", "q", "r", "s")} for i in range(TEXTS)]
    return AnalysisSpec.model_validate(
        {
            "kind": "analysis",
            "name": "bench",
            "federation": "bench",
            "not_after": "2099-01-01T00:00:00Z",
            "silos": [f"silo-{place:02}" for place in range(silos)],
            "columns": columns,
            "group": "group",
        }
    )


def written(path: Path, *, rows: int, seed: int) -> DataSettings:
    """One cell of fifty is missing."""
    rng = np.random.default_rng(seed)
    arrays = {"group": pyarrow.array(rng.choice(GROUPS, rows))}
    for i in range(NUMBERS):
        value_N = rng.normal(50.0, 12.0, rows).clip(EDGES[0], EDGES[-1])
        arrays[f"number-{i}"] = pyarrow.array(value_N, mask=rng.random(rows) < 0.02)
    for i in range(TEXTS):
        arrays[f"text-{i}"] = pyarrow.array(rng.choice(list("pqrs"), rows), mask=rng.random(rows) < 0.02)
    parquet.write_table(pyarrow.table(arrays), path)
    return DataSettings.model_validate({"format": "parquet", "path": path})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("analysis", __doc__)
    parser.add_argument("--silos", type=whole(3, MAX_SILOS), default=SILOS, help="silos of the analysis")
    rows = whole(LEAST_ROWS, MAX_ROWS)
    parser.add_argument("--rows", type=rows, default=ROWS, help="rows of all silos together")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
