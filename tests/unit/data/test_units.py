"""Rows of one unit: on one side, row by row in an order of their own, no more than the institution wants."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.units import Units
from tests.fuzz.data import PRIVACY
from tests.support.databases import write_table
from tests.unit.data import loading

HEADINGS = ("patient", "a", "b", "ill")
COLUMNS = (ColumnSpec(name="a"), ColumnSpec(name="b"))
Row = tuple[str | None, float, float, int]
Load = Callable[..., SiloData]


def rows_of(patients: int, *, seed: int = 1) -> list[Row]:
    """One to six rows each, in any order; `a` says whose a row is, and (a, b) is one row."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = [
        (f"p{patient}", float(patient), float(visit), int(rng.integers(0, 2)))
        for patient in range(patients)
        for visit in range(int(rng.integers(1, 7)))
    ]
    return [rows[place] for place in rng.permutation(len(rows)).tolist()]


def job_of(*, is_private: bool = True, **fields: Any) -> JobSpec:
    columns = {"columns": COLUMNS, "label_column": "ill"}
    return loading.make_job(2, (2,), privacy=PRIVACY if is_private else None, **columns, **fields)


def settings_of(
    kind: str, rows: Sequence[Row], folder: Path, module: ModuleType, **fields: Any
) -> DataSettings:
    """The rows in a format, and the settings that name it."""
    columns = list(zip(*rows, strict=True))
    fields = {"name": "visits", "holdout": 0.3} | fields
    named = {"unit": "patient"} | fields
    if kind == "csv":
        with (folder / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEADINGS, *rows])
        return DataSettings.model_validate({"format": "csv", "path": folder / "t.csv", **named})
    if kind == "parquet":
        arrays = [pyarrow.array(column) for column in columns]
        parquet.write_table(pyarrow.table(arrays, names=list(HEADINGS)), folder / "t.parquet")
        return DataSettings.model_validate({"format": "parquet", "path": folder / "t.parquet", **named})
    if kind == "sql":
        write_table(folder, HEADINGS, rows)
        given = {"url_file": folder / "url", "table": "t"}
        return DataSettings.model_validate({"format": "sql", "database": given, **named})
    inputs, labels = np.array([columns[1], columns[2]]).T, np.array(columns[3])
    if kind == "npz":
        units = np.array([each or "" for each in columns[0]])
        np.savez(folder / "t.npz", x=inputs, y=labels, patient=units)
        return DataSettings.model_validate({"format": "npz", "path": folder / "t.npz", **named})
    pairs = list(zip(inputs.astype(np.float32), labels, strict=True))
    module.visits = lambda _: Data(train=pairs, units=columns[0])  # type: ignore[attr-defined]
    return DataSettings.model_validate({"format": "module", "module": f"{module.__name__}:visits", **fields})


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of this machine; a test puts a function into it."""
    module = ModuleType("own_units")
    monkeypatch.setitem(sys.modules, "own_units", module)
    return module


@pytest.fixture(params=["csv", "parquet", "sql", "npz", "module", "streamed"])
def load(request: pytest.FixtureRequest, tmp_path: Path, own_module: ModuleType) -> Load:
    """Loads rows that were written in one of the formats. streamed: of more than fits in memory."""

    def loaded(rows: Sequence[Row], *, is_private: bool = True, **fields: Any) -> SiloData:
        if request.param == "streamed":
            monkey = request.getfixturevalue("monkeypatch")
            monkey.setattr("silo_agent.training.data.scan.sample_bytes", lambda job: 1 << 19)
            fields["cache_megabytes"] = 1
        settings = settings_of(request.param, rows, tmp_path, own_module, **fields)
        return load_data(settings, job_of(is_private=is_private))

    return loaded


def sides(data: SiloData) -> tuple[dict[float, list[float]], dict[float, list[float]]]:
    """By patient the visits on each side, in their order."""
    return visits(data.train), visits(data.holdout)


def visits(samples: SampleSet) -> dict[float, list[float]]:
    found: dict[float, list[float]] = defaultdict(list)
    for read in samples.read([np.arange(len(samples))]):
        for patient, visit in read.features.tolist():
            found[patient].append(visit)
    return dict(found)


@pytest.mark.parametrize("is_private", [True, False])
def test_all_rows_of_a_unit_are_on_one_side_where_a_record_would_be_by_itself(
    load: Load, is_private: bool
) -> None:
    rows = rows_of(60)
    train, holdout = sides(load(rows, is_private=is_private))
    assert not train.keys() & holdout.keys()
    assert 8 < len(holdout) < 32  # 18 expected, deviation 3.5
    assert sum(map(len, (*train.values(), *holdout.values()))) == len(rows)
    if is_private:
        assert load(rows).train.units.sizes_U.tolist() == [len(each) for each in train.values()]


def test_one_unit_less_moves_no_row_of_another_and_no_order(load: Load) -> None:
    rows = rows_of(40)
    whole = sides(load(rows, max_rows_per_unit=3))
    less = sides(load([row for row in reversed(rows) if row[0] != "p17"], max_rows_per_unit=3))
    for side, other in zip(whole, less, strict=True):
        assert {patient: each for patient, each in side.items() if patient != 17.0} == other
    assert any(17.0 in side for side in whole)


def test_of_more_rows_than_wanted_a_choice_stays_that_follows_from_the_unit(
    load: Load,
) -> None:
    rows = rows_of(40)
    every, kept = load(rows, holdout=0.0), load(rows, holdout=0.0, max_rows_per_unit=2)
    for patient, chosen in visits(kept.train).items():
        assert chosen == visits(every.train)[patient][:2]
    assert max(map(len, visits(kept.train).values())) == 2
    assert kept.train.units.sizes_U.max() == 2
    assert (every.rows_beyond, kept.rows_beyond) == (0, len(every.train) - len(kept.train))


def test_rows_without_a_unit_are_left_out_alone(load: Load) -> None:
    rows = rows_of(20)
    lost = [(None, *row[1:]) if place % 7 == 3 else row for place, row in enumerate(rows)]
    kept = [row for row in lost if row[0] is not None]
    train, holdout = sides(load(lost))
    assert sides(load(kept)) == (train, holdout)
    with pytest.raises(ConfigError, match=r"expected whose it is \((patient|units)\), got nothing"):
        load(lost, is_private=False)


def test_a_missing_unit_is_told_with_its_place(tmp_path: Path, own_module: ModuleType) -> None:
    settings = settings_of("csv", [("", 1.0, 2.0, 0), ("p", 3.0, 4.0, 1)], tmp_path, own_module, holdout=0.0)
    problems = Problems()
    assert len(load_data(settings, job_of(), problems=problems).train) == 1
    assert problems.lines == [f"{tmp_path}/t.csv, line 2: expected whose it is (patient), got nothing"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"format": "digits", "unit": "patient"},
            "unit: not allowed with format digits, only with csv",
        ),
        ({"format": "csv", "path": "t.csv", "max_rows_per_unit": 3}, "max_rows_per_unit: needs unit"),
        (
            {
                "format": "csv",
                "path": "t.csv",
                "unit": "patient",
                "partition": {"kind": "iid", "silos": 2, "index": 0},
            },
            "partition: not allowed with unit",
        ),
    ],
)
def test_settings_that_cannot_be_met_are_one_sentence(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        DataSettings.model_validate(fields)


def test_data_that_have_no_units_throughout_are_refused(tmp_path: Path, own_module: ModuleType) -> None:
    rows = rows_of(5)
    for kind, missing in (("csv", "no column 'person'"), ("npz", r"no array person \(data.unit\)")):
        with pytest.raises(ConfigError, match=missing):
            load_data(settings_of(kind, rows, tmp_path, own_module, unit="person"), job_of())
    with np.load(tmp_path / "t.npz") as arrays:
        np.savez(tmp_path / "t.npz", **arrays, x_test=arrays["x"], y_test=arrays["y"])
    settings = DataSettings(format="npz", path=tmp_path / "t.npz", unit="patient")
    with pytest.raises(ConfigError, match="expected no hold-out of its own beside units"):
        load_data(settings, job_of())
    own_module.visits = lambda _: Data(train=[(np.zeros(2), 0)] * 3, units=["p", "q"])  # type: ignore[attr-defined]
    of_module = DataSettings(format="module", module=f"{own_module.__name__}:visits")
    with pytest.raises(ConfigError, match="units: expected one for each of 3 samples, got 2"):
        load_data(of_module, job_of())


@pytest.mark.parametrize(("unit", "read_as"), [("ill", "label_column"), ("a", "one of columns")])
def test_a_unit_that_the_job_reads_is_refused(
    tmp_path: Path, own_module: ModuleType, unit: str, read_as: str
) -> None:
    """A silo had two units, the ill and the others, and its epsilon was told of these."""
    message = f"data.unit: expected a column that says whose a row is, .*; got {unit}, {read_as} of job"
    for kind in ("csv", "parquet", "sql"):
        with pytest.raises(ConfigError, match=message):
            load_data(settings_of(kind, rows_of(5), tmp_path, own_module, unit=unit), job_of())
    with pytest.raises(ConfigError, match=r"data\.unit: .* whose a sample is, got y"):
        load_data(settings_of("npz", rows_of(5), tmp_path, own_module, unit="y"), job_of())


def test_weights_of_a_unit_add_up_to_a_row_in_whole_steps() -> None:
    units = Units.of(np.repeat(np.arange(5), [1, 2, 3, 20, 7]), 33)
    for steps in (1, 4, 64, 1 << 20):
        weights_N = units.weights_N(steps)
        sums = np.add.reduceat(weights_N, units.first_U1[:-1])
        assert sums.tolist() == [1.0] * 5
        assert (weights_N * steps == np.floor(weights_N * steps)).all()
        assert np.ptp(weights_N[6:26]) <= 1 / steps
    assert Units.of(None, 3).weights_N(1).tolist() == [1.0, 1.0, 1.0]
    assert len(Units.of(np.zeros(0, np.int64), 0)) == 0
