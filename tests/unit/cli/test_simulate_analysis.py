"""`chorale simulate` of an analysis: its table on stdout or in every form in a folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Calls, Desk

HEADER = "sex,age,chol"
ROWS = [f"{'f' if row % 3 else 'm'},{40 + row % 40},{150 + row % 120}" for row in range(240)]
COLUMNS = [
    {"name": "sex", "categories": ["f", "m"]},
    {"name": "age", "edges": [18, 50, 55, 60, 65, 70, 110], "unit": "years", "show": ["mean", "median"]},
    {"name": "chol", "edges": [60, 200, 700], "unit": "mg/dL"},
]
ALLOWING = {"federation": "test", "analyses": {"exact": "allow", "measurements": {"csv": ["age"]}}}


def analysis(desk: Desk, **changes: Any) -> Path:
    fields: dict[str, Any] = {"kind": "analysis", "name": "table-one", "federation": "test", "group": "sex"}
    fields |= {"silos": ["silo-0", "silo-1", "silo-2"], "columns": COLUMNS}
    return desk.write("analysis.yaml", fields | changes)


def table(desk: Desk, rows: list[str], name: str = "ward") -> Path:
    path = desk.folder / f"{name}.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def count(results: dict[str, Any], column: str, part: str) -> float:
    (found,) = (
        each["value"]
        for each in results["figures"]
        if (each["column"], each["figure"], each["part"], each["group"]) == (column, "count", part, "overall")
    )
    return float(found)


def test_a_table_that_is_cut_is_described_on_stdout(desk: Desk, chorale: Calls) -> None:
    arguments = ("simulate", analysis(desk), "--data", "csv", "--path", table(desk, ROWS))
    ended = chorale(*arguments, "--silos", "4")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("table-one by sex: 240 records of 4 silos at most\n")
    assert "analysis-counts: 4 silos\nanalysis-values: 4 silos\n" in ended.err
    # however it is cut and summed, the table is of the same records
    again = chorale(*arguments, "--split-seed", "3", "--secure")
    assert again.out == ended.out.replace("4 silos", "3 silos")


def test_a_formula_is_fitted(desk: Desk, chorale: Calls) -> None:
    columns = [{key: value for key, value in each.items() if key != "show"} for each in COLUMNS]
    model = {"formula": "sex ~ age", "family": "logistic"}
    file = analysis(desk, group=None, columns=columns[:2], model=model)
    ended = chorale("simulate", file, "--data", "csv", "--path", table(desk, ROWS))
    assert ended.code == 0, ended.err
    assert "logistic model of sex m by age: 240 complete records" in " ".join(ended.out.split())


def test_the_folder_takes_every_form(desk: Desk, chorale: Calls) -> None:
    out = desk.folder / "runs" / "one"
    arguments = ("simulate", analysis(desk), "--data", "csv", "--path", table(desk, ROWS), "--out", out)
    ended = chorale(*arguments)
    assert ended.code == 0, ended.err
    names = ["results.csv", "results.html", "results.json", "results.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert sorted(ended.out.splitlines()) == [str(out / name) for name in names]
    results = json.loads((out / "results.json").read_text())
    assert count(results, "chol", "60 to 200 or missing") == sum(
        int(row.rpartition(",")[2]) < 200 for row in ROWS
    )
    assert len(list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))) > 20
    (out / "results.txt").unlink()
    assert chorale(*arguments).code == 0
    assert (out / "results.txt").exists()
    refused = chorale(*arguments[:-1], out / "results.txt")
    assert (refused.code, "--out: " in refused.err, "expected a folder" in refused.err) == (2, True, True)


def test_silos_own_files_are_read_by_their_own_settings(desk: Desk, chorale: Calls) -> None:
    """One in other units, one without a column, one of two data sets."""
    parts = [ROWS[:100], ROWS[100:180], ROWS[180:]]
    mmol = [f"{row.rpartition(',')[0]},{int(row.rpartition(',')[2]) / 38.67:.6f}" for row in parts[1]]
    paths = [
        table(desk, parts[0], "a"),
        table(desk, mmol, "b"),
        desk.folder / "c.csv",
    ]
    paths[2].write_text("\n".join(row.rpartition(",")[0] for row in [HEADER, *parts[2]]) + "\n")
    units = {"chol": {"unit": "mmol/L", "factors": {"mg/dL": 38.67}}}
    own: list[Any] = [{}, {"units": units}, {"absent": ["chol"]}]
    files: list[str | Path] = []
    for place, (path, more) in enumerate(zip(paths, own, strict=True)):
        data: Any = {"format": "csv", "path": str(path), "name": "ward", **more}
        data = [data, {"format": "digits", "name": "other"}] if place == 0 else data
        file = desk.silo(name=f"clinic-{place}", data=data)
        files += ["--silo", file.rename(desk.folder / f"clinic-{place}.yaml")]
    out = desk.folder / "out"
    ended = chorale("simulate", analysis(desk, data="ward"), *files, "--out", out)
    assert ended.code == 0, ended.err
    results = json.loads((out / "results.json").read_text())
    assert results["silos"] == ["clinic-0", "clinic-1", "clinic-2"]
    values = [int(row.rpartition(",")[2]) for row in ROWS[:180]]
    assert count(results, "chol", "60 to 200") == sum(value < 200 for value in values)
    assert count(results, "chol", "missing") == 60


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--parallel", "2"), "--parallel: not allowed with an analysis, which trains nothing"),
        (("--engine", "ray"), "--engine: not allowed with an analysis"),
        (("--address", "auto"), "--address: not allowed with an analysis"),
        (("--gpus", "1"), "--gpus: not allowed with an analysis"),
        (("--init", "model.safetensors"), "--init: not allowed with an analysis"),
        (("--device", "cpu"), "--device: not allowed with an analysis"),
        (("--precision", "bfloat16"), "--precision: not allowed with an analysis"),
        (("--memory-format", "channels_last"), "--memory-format: not allowed with an analysis"),
        (("--all-class-rows",), "--all-class-rows: not allowed with an analysis"),
        (("--test",), "--test: not allowed with an analysis"),
        (("--partition", "shards"), "--partition: expected iid for an analysis"),
        (("--alpha", "0.1"), "--alpha: not allowed with --partition iid, only with dirichlet"),
    ],
)
def test_options_of_trainings_are_refused_by_name(
    desk: Desk, chorale: Calls, option: tuple[str, ...], message: str
) -> None:
    arguments = ("simulate", analysis(desk), "--data", "csv", "--path", table(desk, ROWS))
    ended = chorale(*arguments, *option)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_data_that_are_no_table_are_refused(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", analysis(desk))
    assert ended.code == 2
    assert "data digits: an analysis reads a csv, a parquet file or a database" in ended.err
    assert "hint: --data, --path and --silos say what is cut, and how" in ended.err


def test_a_given_policy_may_refuse(desk: Desk, chorale: Calls) -> None:
    arguments = ("simulate", analysis(desk), "--data", "csv", "--path", table(desk, ROWS), "--policy")
    assert chorale(*arguments, desk.write("policy.yaml", ALLOWING)).code == 0
    measured = {**ALLOWING, "analyses": {"exact": "allow"}}
    for policy, why in ((measured, "analyses.measurements"), ({"federation": "test"}, "analyses.exact")):
        ended = chorale(*arguments, desk.write("policy.yaml", policy))
        assert ended.code != 0
        assert why in ended.err


def test_too_few_records_are_told(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", analysis(desk, min_cell=300), "--data", "csv", "--path", table(desk, ROWS))
    assert ended.code != 0
    assert "analysis-counts: few-records: all silos together hold fewer than min_cell" in ended.err


def test_a_noised_analysis_is_solved_for_and_simulated(desk: Desk, chorale: Calls) -> None:
    arguments = (
        "--data",
        "csv",
        "--path",
        table(desk, ROWS),
        "--policy",
        desk.write("p.yaml", {"federation": "test"}),
    )
    ended = chorale("simulate", analysis(desk, privacy={"epsilon": 5.0}), *arguments)
    assert ended.code == 0, ended.err
    assert "privacy: epsilon 4.9" in ended.err
    assert "analysis-noised: 3 silos" in ended.err
    assert "in 95 of 100" in ended.out
    assert "merged" not in ended.out
    out = desk.folder / "noised"
    chorale("simulate", analysis(desk, privacy={"epsilon": 5.0}), *arguments, "--out", out)
    figures = json.loads((out / "results.json").read_text())["figures"]
    assert any(each["value"] % 1 for each in figures if each["figure"] == "count")
