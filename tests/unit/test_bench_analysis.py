"""What an analysis costs a silo: the phases that are run, and what the row adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import analysis
from silo_agent.training.analysis.table import load_table


def test_an_analysis_is_two_hundred_cells_and_has_all_its_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert analysis.main(["--silos", "3", "--rows", "10000", "--json"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    (row,) = printed["rows"]
    assert row["name"] == "200 cells over 3 silos and 9,999 rows, CPU per silo beside reading"
    assert row["value"] == printed["parts_cpu_seconds"] + printed["phases_cpu_seconds"]
    assert (row["target"], row["unit"]) == (3.0, "s")
    assert printed["phases_cpu_seconds"] > 0
    phases = [line.split(": ")[1] for line in captured.err.splitlines()][3:]
    assert phases == ["enrollment.0", "analysis-counts.0", "analysis-values.0"]


def test_every_row_of_the_file_is_described_and_some_cells_are_missing(tmp_path: Path) -> None:
    settings = analysis.written(tmp_path / "t.parquet", rows=1000, seed=0)
    table = load_table(settings, analysis.job(3))
    assert (table.records, table.misfits) == (1000, 0)
    assert table.parts_NC.shape == (1000, 11)
    missing_C = (table.parts_NC[:, 1:] == 4).mean(axis=0)
    assert ((missing_C > 0.002) & (missing_C < 0.05)).all()
