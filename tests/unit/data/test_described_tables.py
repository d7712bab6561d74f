"""Tables as analyses read them: all records that the settings admit, each cell in one part of its column."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from chorale.spec.analysis_spec import AnalysisSpec
from crypto.errors import ConfigError
from silo_agent.training.analysis.table import DescribedTable, load_table, tables_of
from silo_agent.training.data.base import Cancelled
from silo_agent.training.data.settings import DataSettings, SettingsFault
from silo_agent.training.unit_marks import Admitted, SideMarks, UnitKey
from tests.support.databases import write_table
from tests.support.described import analysis

SEX = {"name": "sex", "categories": ("f", "m")}
AGE = {"name": "age", "edges": (0.0, 40.0, 60.0, 120.0), "show": ("mean", "counts")}
HEADINGS = ("patient", "sex", "age")
ROWS = (("p1", "f", 39.5), ("p2", "m", 40.0), ("p2", None, 120.0), ("p3", "f", None), ("p3", "m", 0.0))
PARTS = [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]]


def by_sex(**fields: Any) -> AnalysisSpec:
    return analysis(SEX, AGE, group="sex", **fields)


def written(
    folder: Path,
    rows: Sequence[Sequence[object]] = ROWS,
    *,
    headings: Sequence[str] = HEADINGS,
    kind: str = "csv",
    **fields: Any,
) -> DataSettings:
    """The rows in a format, and the settings that name it."""
    given: dict[str, Any] = {"format": kind, "path": folder / f"t.{kind}"}
    if kind == "csv":
        with (folder / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([headings, *rows])
    elif kind == "parquet":
        arrays = [pyarrow.array(list(column)) for column in zip(*rows, strict=True)]
        parquet.write_table(pyarrow.table(arrays, names=list(headings)), folder / "t.parquet")
    else:
        write_table(folder, headings, rows)
        given = {"format": "sql", "database": {"url_file": folder / "url", "table": "t"}}
    return DataSettings.model_validate(given | fields)


def parts_of(table: DescribedTable) -> list[list[int]]:
    """In any order: a database has one of its own."""
    return sorted(table.parts_NC.tolist())


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_every_format_gives_the_same_parts_and_values(kind: str, tmp_path: Path) -> None:
    table = load_table(written(tmp_path, kind=kind), by_sex())
    assert parts_of(table) == sorted(PARTS)
    assert sorted(np.nan_to_num(table.z_NK, nan=9.0).ravel()) == pytest.approx(
        sorted([39.5 / 60 - 1, 40 / 60 - 1, 1.0, 9.0, -1.0])
    )
    assert (table.records, table.misfits) == (5, 0)


def test_a_value_that_is_an_edge_is_in_the_part_above_it(tmp_path: Path) -> None:
    """By the number as it is written: as z, 0.3 of 0.1 to 0.7 would be below its own edge."""
    edges = (0.1, 0.3, 0.6, 0.7)
    cells = [0.1, 0.3, 0.6, 0.7, *(np.nextafter(edge, 0.0) for edge in edges), np.nextafter(0.7, 1.0)]
    column = {"name": "x", "edges": edges, "show": ("mean",)}
    settings = written(tmp_path, [[repr(float(cell))] for cell in cells], headings=["x"])
    table = load_table(settings, analysis(column))
    assert table.parts_NC[:, 0].tolist() == [0, 1, 2, 2, 3, 0, 1, 2, 3]
    assert np.nanmax(np.abs(table.z_NK)) == 1.0


def test_a_cell_that_does_not_fit_is_missing_and_counted_for_the_silo_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        ("", "f", "30"),
        ("", "w", "31"),
        ("", "u", "n/a"),
        ("", "m", "old"),
        ("", "NA", "-9"),
        ("", "m", "230"),
    ]
    settings = written(tmp_path, rows, missing={"sex": ("u",), "age": ("n/a", "-9")})
    with caplog.at_level(logging.INFO, logger="chorale"):
        table = load_table(settings, by_sex())
    assert table.parts_NC.tolist() == [[0, 0], [2, 0], [2, 3], [1, 3], [2, 3], [1, 3]]
    assert table.misfits == 2  # the sex w and the age old; what no person has is missing by the job's edges
    said = [(record.getMessage(), record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    assert [fields for _, fields in said] == [
        {"data": "data", "times": 1},
        {"data": "data", "problems": 2, "rows_left_out": 0},
    ]
    assert "230" not in str(said)
    assert "old" not in str(said)


def test_a_row_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    settings = written(tmp_path)
    with settings.path.open("a") as file:  # type: ignore[union-attr]
        file.write('p4,"m,50\n')
    table = load_table(settings, by_sex())
    assert (parts_of(table), table.misfits) == (sorted(PARTS), 1)


def test_hold_outs_and_labels_to_drop_are_no_matter_of_an_analysis(tmp_path: Path) -> None:
    table = load_table(written(tmp_path, holdout=0.9, drop=("f",)), by_sex())
    assert parts_of(table) == sorted(PARTS)


def test_columns_are_renamed_derived_and_read_in_the_tables_own_writing(tmp_path: Path) -> None:
    text = "Geschlecht;geboren;da;Zucker\nweibl;01.02.1960;31.01.2000;5,5\nm;1.2.1960;1.2.2000;1.000,5\n"
    (tmp_path / "t.csv").write_text(text)
    settings = DataSettings.model_validate(
        {
            "format": "csv",
            "path": tmp_path / "t.csv",
            "dialect": {"delimiter": ";", "decimal": ",", "thousands": ".", "dates": "DD.MM.YYYY"},
            "rename": {"Geschlecht": "sex", "Zucker": "glucose"},
            "values": {"sex": {"weibl": "f"}},
            "derive": {"age": {"years": ("geboren", "da")}},
            "units": {"glucose": {"unit": "mmol/L", "factors": {"mg/dL": 18.0}}},
        }
    )
    glucose = {"name": "glucose", "edges": (0.0, 99.0, 20_000.0), "unit": "mg/dL", "show": ("mean",)}
    table = load_table(settings, analysis(SEX, AGE, glucose))
    assert table.parts_NC.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert table.z_NK[:, 1] * 10_000 + 10_000 == pytest.approx([99.0, 18_009.0])


def test_a_column_that_the_settings_call_absent_is_missing_throughout(tmp_path: Path) -> None:
    rows, smoker = [row[:2] for row in ROWS], {"name": "smoker", "categories": ("no", "yes")}
    settings = written(tmp_path, rows, headings=HEADINGS[:2], absent=("age", "smoker"))
    table = load_table(settings, analysis(AGE, smoker))
    assert table.parts_NC.tolist() == [[3, 2]] * 5
    assert np.isnan(table.z_NK).all()
    with pytest.raises(ConfigError, match="no column 'smoker'; it has patient, sex, age"):
        load_table(written(tmp_path), analysis(AGE, smoker))


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_units_have_no_more_rows_than_in_training_and_who_withdrew_has_none(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "left.txt").write_text("p3\n")
    rows = [*ROWS, (None, "f", 50.0)]
    fields: dict[str, Any] = {"unit": "patient", "max_rows_per_unit": 1, "exclude": tmp_path / "left.txt"}
    table = load_table(written(tmp_path, rows, kind=kind, **fields), by_sex())
    assert parts_of(table) in ([[0, 0], [1, 1]], [[0, 0], [2, 2]])
    assert (table.rows_beyond, table.misfits, table.is_current) == (1, 1, True)
    (tmp_path / "left.txt").write_text("p3\np1\n")
    assert not table.is_current


def test_under_noise_each_unit_has_one_row_and_records_count_for_what_is_declared(tmp_path: Path) -> None:
    """With all its rows a patient moved sums by more than one record's sensitivity."""
    noised = by_sex(privacy={"epsilon": 1.0, "statistics_noise_multiplier": 1.0})
    settings = written(tmp_path, unit="patient")
    units = len({row[0] for row in ROWS if row[0]})
    assert load_table(settings, noised).records == units < load_table(settings, by_sex()).records
    with pytest.raises(ConfigError, match="private jobs expect at most 0 records here"):
        load_table(settings, noised, most=0)
    load_table(settings, by_sex(), most=0)
    # a quote that is never closed spoils its own line alone, or one record would move all
    settings = written(tmp_path)
    assert settings.path is not None
    settings.path.write_text('patient,sex,age\np1,f,39.5\np2,"m,40\np3,f,50\np4,m,60\n')
    assert parts_of(load_table(settings, noised)) == [[0, 0], [0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("unit", [None, "patient"])
def test_records_that_are_not_admitted_are_left_out(unit: str | None, tmp_path: Path) -> None:
    key = UnitKey.public("data")
    records = [b"p1\nf\n39.5", b"p2\nm\n40.0"]
    marks = np.concatenate([key.rows(records), key.units(["p2"])])
    admitted = Admitted(key, SideMarks(train=np.sort(marks[:1]), held_out=np.sort(marks[1:])))
    table = load_table(written(tmp_path, unit=unit), by_sex(), admitted=admitted)
    assert parts_of(table) == ([[1, 1]] if unit else [[0, 0], [1, 1]])


def test_a_partition_gives_each_record_to_one_silo(tmp_path: Path) -> None:
    rows = [("", "fm"[number % 2], number) for number in range(100)]
    ages = {"name": "age", "edges": tuple(map(float, range(101))), "show": ("mean",)}
    cut = {"kind": "iid", "silos": 3, "index": 1, "seed": 4}
    settings = written(tmp_path, rows, partition=cut)
    parts = [*tables_of(settings, analysis(SEX, ages))]
    assert [part.records for part in parts] == [34, 33, 33]
    assert sorted(age for part in parts for age in part.parts_NC[:, 1]) == [*range(100)]
    mine = load_table(settings, analysis(SEX, ages))
    assert mine.parts_NC.tolist() == parts[1].parts_NC.tolist()
    assert parts_of(mine) != parts_of(parts[0])
    by_class = settings.model_validate(settings.model_dump() | {"partition": {**cut, "kind": "shards"}})
    with pytest.raises(ConfigError, match=r"data.partition.kind: expected iid, an analysis has no classes"):
        load_table(by_class, by_sex())


def test_settings_that_no_analysis_can_use_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    arrays = DataSettings.model_validate({"format": "npz", "path": tmp_path / "t.npz"})
    own = DataSettings.model_validate({"format": "module", "module": "hospital:data"})
    for settings, what in ((arrays, "format npz"), (own, "a function of the silo's own")):
        with pytest.raises(ConfigError, match=f"a csv, a parquet file or a database, not data of {what}"):
            load_table(settings, by_sex())
    with pytest.raises(ConfigError, match="expected a column that says whose a row is"):
        load_table(written(tmp_path, unit="sex"), by_sex())
    in_units = written(tmp_path, units={"age": {"unit": "months"}})
    with pytest.raises(ConfigError, match="the job reads years, the data hold months: expected a factor"):
        load_table(in_units, analysis({**AGE, "unit": "years"}))
    with pytest.raises(SettingsFault, match="data.exclude"):
        load_table(written(tmp_path, unit="patient", exclude=tmp_path / "none.txt"), by_sex())


def test_reading_ends_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        load_table(written(tmp_path), by_sex(), is_cancelled=lambda: True)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"name": "x", "edges": (0.0, 5e-324)}, "edges: expected the outermost ones 1e-30 to 1e\\+30 apart"),
        ({"name": "p0..p3", "edges": (0.0, 1.0)}, "name: expected one column, got a range"),
    ],
)
def test_columns_that_no_silo_could_read_are_no_analysis(column: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        analysis(column)
