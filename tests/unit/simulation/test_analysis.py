"""An analysis over silos' tables in one process, against the pooled records."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.state import state_digest, state_to_bytes
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.analysis.table import DescribedTable, load_table, tables_of
from silo_agent.training.data.settings import DataSettings
from simulation.analysis import AnalysisSimulation
from simulation.results import SimulationFailed
from strategies.analysis.counts import CELL_COUNTS, CELL_PARTS, PART_COUNTS, PARTS, ROW_COUNTS, ROWS
from strategies.analysis.values import DEVIATIONS, MEANS, SHOWN
from tests.support.described import analysis

SEX = {"name": "sex", "categories": ["f", "m"]}
EDGES = [18, 45, 50, 55, 60, 65, 110]
AGE = {"name": "age", "edges": EDGES, "show": ["mean"]}
SIZES = {"north": 120, "south": 65, "west": 31}
Rows = list[tuple[str, float | None]]


def rows_of(seed: int, count: int) -> Rows:
    rng = np.random.default_rng(seed)
    return [
        (str(rng.choice(["f", "m"])), None if rng.random() < 0.1 else round(float(rng.normal(57, 9)), 1))
        for _ in range(count)
    ]


def table_of(folder: Path, name: str, rows: Rows, spec: AnalysisSpec) -> DescribedTable:
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("sex", "age"), *((sex, "" if age is None else age) for sex, age in rows)]
        )
    return load_table(DataSettings(format="csv", path=path, name="ward"), spec)


def federation(folder: Path, sizes: dict[str, int] = SIZES, **fields: Any) -> Any:
    """The job, each silo's table, and all records."""
    spec = analysis(AGE, SEX, group="sex", **fields)
    rows = {name: rows_of(place, count) for place, (name, count) in enumerate(sizes.items())}
    tables = {name: table_of(folder, name, each, spec) for name, each in rows.items()}
    return spec, tables, [row for each in rows.values() for row in each]


@pytest.mark.parametrize("is_secure", [False, True])
def test_an_analysis_counts_and_measures_the_pooled_records(tmp_path: Path, is_secure: bool) -> None:
    spec, tables, pooled = federation(tmp_path)
    simulation = AnalysisSimulation(spec, tables, is_secure=is_secure)
    reports = list(simulation.run())
    assert [report.phase for report in reports] == ["enrollment.0", "analysis-counts.0", "analysis-values.0"]
    assert {report.silos for report in reports} == {("north", "south", "west")}
    state = simulation.state
    part_of = [state[ROWS][("f", "m").index(sex)] for sex, _ in pooled]
    assert state[ROW_COUNTS].tolist() == np.bincount(part_of).tolist()
    for parts, counts in ((PARTS, PART_COUNTS), (CELL_PARTS, CELL_COUNTS)):
        places = [6 if age is None else np.digitize(age, EDGES) - 1 for _, age in pooled]
        published = state[f"{parts}0"][places]
        found = np.zeros((max(part_of) + 1, published.max() + 1), np.int64)
        np.add.at(found, (part_of, published), 1)
        expected = found.sum(axis=0) if counts == PART_COUNTS else found
        assert state[f"{counts}0"].tolist() == expected.tolist()
    assert state[f"{SHOWN}0"][0] == 1
    ages = np.array([age for _, age in pooled if age is not None])
    error = ages.std(ddof=1) / len(ages) ** 0.5
    assert state[f"{MEANS}0"][0] == pytest.approx(ages.mean(), abs=error / 4)
    assert state[f"{DEVIATIONS}0"][0] == pytest.approx(ages.std(ddof=1), abs=error / 4)


def test_masks_change_no_published_figure(tmp_path: Path) -> None:
    digests = set()
    for is_secure in (False, True):
        spec, tables, _ = federation(tmp_path)
        simulation = AnalysisSimulation(spec, tables, is_secure=is_secure)
        for _ in simulation.run():
            pass
        digests.add(state_digest(state_to_bytes(simulation.state)))
    assert len(digests) == 1


def test_a_silo_of_few_records_takes_no_part(tmp_path: Path) -> None:
    names = ["east", "north", "south", "west"]
    spec, tables, pooled = federation(tmp_path, {**SIZES, "east": 7}, silos=names, min_cohort=3)
    simulation = AnalysisSimulation(spec, tables, policy=Policy(federation="hearts"))
    for report in simulation.run():
        assert report.silos == ("north", "south", "west")
        assert "fewer than 10 samples (count_granularity)" in report.left_out["east"]
    assert simulation.state[ROW_COUNTS].sum() == len(pooled) - 7


def test_an_analysis_is_of_all_its_silos_unless_it_says_fewer(tmp_path: Path) -> None:
    """Three of four were counted when the fourth approved a second later: its records were in no table, the
    sums of values over four were refused, and the data sets had given their one answer."""
    names = ["east", "north", "south", "west"]
    spec, tables, _ = federation(tmp_path, {**SIZES, "east": 7}, silos=names)
    assert spec.rule(4).min_survivors == 4
    assert spec.model_copy(update={"min_cohort": 3}).rule(4).min_survivors == 3
    with pytest.raises(SimulationFailed, match=r"enrollment: too-few-silos \(east: "):
        next(AnalysisSimulation(spec, tables).run())


def test_an_analysis_of_too_few_silos_or_records_ends(tmp_path: Path) -> None:
    spec, tables, _ = federation(tmp_path, {**SIZES, "west": 3})
    with pytest.raises(SimulationFailed, match=r"enrollment: too-few-silos \(west: .*count_granularity"):
        next(AnalysisSimulation(spec, tables).run())
    spec, tables, _ = federation(tmp_path, min_cell=1_000)
    ended = AnalysisSimulation(spec, tables).run()
    assert next(ended).phase == "enrollment.0"
    with pytest.raises(SimulationFailed, match=r"analysis-counts: few-records: all silos together hold"):
        next(ended)


def test_each_silo_has_one_table(tmp_path: Path) -> None:
    spec, tables, _ = federation(tmp_path)
    with pytest.raises(ConfigError, match="silos: west has no table"):
        AnalysisSimulation(spec, {name: tables[name] for name in ("north", "south")})
    with pytest.raises(ConfigError, match="silos: east has a table, and is no silo of the job"):
        AnalysisSimulation(spec, {**tables, "east": tables["west"]})


def test_a_table_that_is_cut_gives_the_figures_of_the_whole(tmp_path: Path) -> None:
    spec = analysis(AGE, SEX, group="sex")
    table_of(tmp_path, "all", rows_of(5, 200), spec)
    cut = {"kind": "iid", "silos": 3, "index": 0}
    settings = DataSettings.model_validate({"format": "csv", "path": tmp_path / "all.csv", "partition": cut})
    tables = dict(zip(spec.silos, tables_of(settings, spec), strict=True))
    assert sum(table.records for table in tables.values()) == 200
    simulation = AnalysisSimulation(spec, tables)
    for _ in simulation.run():
        pass
    assert simulation.state[ROW_COUNTS].sum() == 200
