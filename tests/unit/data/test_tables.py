"""Tables of csv and parquet files and of databases: one reading of the job's columns for all of them."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from sqlalchemy.exc import DBAPIError

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.formats.sql import _cause
from silo_agent.training.data.problems import Problems
from silo_agent.training.unit_marks import UnitKey
from tests.fuzz.data import PRIVACY
from tests.support.databases import write_table
from tests.unit.data.loading import load, make_job

FORMATS = ("csv", "parquet", "sql")
HEADINGS = ("name", "p0", "p1", "sex", "ward", "sick")
COLUMNS = (
    ColumnSpec(name="p0..p1", mean=1.0, scale=2.0, fill=7.0),
    ColumnSpec(name="sex", categories=("f", "m")),
    ColumnSpec(name="ward", categories=("10", "11", "12"), encoding="index", fill=1.5),
)
ROWS = (
    ("x", 1.0, 3.0, "f", 10, 1),
    ("y", 5.0, None, "m", 12, 0),
    ("z", None, 1.5, None, None, 1),
)
INPUTS = [[0.0, 1.0, 1.0, 0.0, 0.0], [2.0, 3.0, 0.0, 1.0, 2.0], [3.0, 0.25, 0.0, 0.0, 1.5]]
URL_ENV = "CHORALE_TEST_DATABASE"


def table_job(columns: Sequence[ColumnSpec] = COLUMNS, label: Any = ("sick",), **fields: Any) -> JobSpec:
    width = sum(len(list(_names(column))) * column.width for column in columns)
    return make_job(2, (width,), columns=tuple(columns), label_column=label, **fields)


def _names(column: ColumnSpec) -> range:
    return range(2 if ".." in column.name else 1)


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes rows in one of the formats; gives the settings that name them."""

    def write(rows: Sequence[Sequence[object]], headings: Sequence[str] = HEADINGS) -> dict[str, Any]:
        if request.param == "csv":
            with (tmp_path / "t.csv").open("w", newline="") as file:
                csv.writer(file).writerows([headings, *rows])
            return {"format": "csv", "path": tmp_path / "t.csv", "holdout": 0.0}
        if request.param == "parquet":
            arrays = [pyarrow.array(list(column)) for column in zip(*rows, strict=True)]
            parquet.write_table(pyarrow.table(arrays, names=list(headings)), tmp_path / "t.parquet")
            return {"format": "parquet", "path": tmp_path / "t.parquet", "holdout": 0.0}
        monkeypatch.setenv(URL_ENV, write_table(tmp_path, headings, rows))
        return {"format": "sql", "database": {"url_env": URL_ENV, "table": "t"}, "holdout": 0.0}

    return write


def test_every_format_gives_the_same_inputs_and_labels(written: Any) -> None:
    data = load(table_job(), **written(ROWS))
    assert data.train.features.tolist() == INPUTS
    assert data.train.labels.tolist() == [1, 0, 1]


def test_a_cell_that_does_not_fit_is_named_with_its_column(written: Any) -> None:
    settings = written([*ROWS, ("zz", 2.0, 2.0, "w", 13, 5)])
    with pytest.raises(ConfigError, match=r"column sex: expected one of f, m, got 'w' \(the first of"):
        load(table_job(), **settings)


def test_in_a_private_job_it_is_missing_by_itself(written: Any) -> None:
    settings = written([*ROWS, ("zz", 2.0, 2.0, "w", 13, 1)])
    data = load(table_job(privacy=PRIVACY), **settings)
    assert sorted(data.train.features.tolist()) == sorted([*INPUTS, [0.5, 0.5, 0.0, 0.0, 1.5]])


def test_columns_that_are_not_there_are_named_all_at_once(written: Any) -> None:
    columns = (*COLUMNS, ColumnSpec(name="age"), ColumnSpec(name="chol"))
    with pytest.raises(ConfigError, match="no columns 'age', 'chol'; it has name, p0, p1, sex, ward, sick"):
        load(table_job(columns), **written(ROWS))


def test_the_silo_says_what_is_missing_and_what_labels_stand_for(written: Any) -> None:
    rows = [("x", 1.0, 3.0, "f", 11, "ill"), ("y", 5.0, 1.0, "u", 12, "well")]
    settings = written(rows) | {
        "missing": {"sex": ["u"], "ward": ["11"], "p0": ["5"]},
        "labels": {"well": 0, "ill": 1},
    }
    data = load(table_job(), **settings)
    assert data.train.features.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.5], [3.0, 0.0, 0.0, 0.0, 2.0]]
    assert data.train.labels.tolist() == [1, 0]


def test_whole_numbers_are_inputs_of_their_own_type(written: Any) -> None:
    columns = (ColumnSpec(name="p0..p1"), ColumnSpec(name="ward", categories=("10", "12"), encoding="index"))
    job = table_job(columns, input_type="int64")
    data = load(job, **written([ROWS[0]]))
    assert (data.train.features.tolist(), data.train.features.dtype) == ([[1, 3, 0]], np.int64)
    with pytest.raises(ConfigError, match=r"expected whole numbers \(input_type int64\)"):
        load(job, **written([("z", 0.5, 1.0, "f", 10, 1)], headings=HEADINGS))


def holdouts(data: SiloData) -> list[list[float]]:
    return sorted(data.holdout.features.tolist())


@pytest.mark.parametrize("kind", ["parquet", "sql"])
def test_no_choice_of_columns_moves_a_private_record_to_the_holdout(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an operator could else compare sums of one record on either side
    rows = [(number, number * 0.5, number % 2) for number in range(40)]
    settings: dict[str, Any] = {"format": kind, "holdout": 0.5}
    if kind == "parquet":
        settings["path"] = tmp_path
        for name, part in (("a", rows[:25]), ("b", rows[25:])):
            arrays = [pyarrow.array(list(column)) for column in zip(*part, strict=True)]
            parquet.write_table(pyarrow.table(arrays, names=["a", "b", "y"]), tmp_path / f"{name}.parquet")
    else:
        write_table(tmp_path, "aby", rows)
        query = "SELECT * FROM t ORDER BY random()"  # as a database that gives rows in any order
        settings["database"] = {"url_file": tmp_path / "url", "query": query}
    of_a, of_b = (
        holdouts(load(table_job([ColumnSpec(name=name)], "y", privacy=PRIVACY), **settings)) for name in "ab"
    )
    assert 5 < len(of_a) < 35
    assert [[2 * value for value in row] for row in of_b] == of_a


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("kind", ["text", "day", "database"])
def test_a_cell_that_nobody_can_read_moves_and_refuses_no_other_record(
    kind: str, is_read: bool, tmp_path: Path
) -> None:
    """Red before: up to 64 records beside it were left out or hashed as others, and a job that reads it, or
    any of the database, was refused."""
    notes = [b"\xff\xfe" if number == 100 else b"old" for number in range(200)]
    days = np.array([10**7 if number == 100 else number for number in range(200)], np.int32)
    numbers, labels = list(range(200)), [number % 2 for number in range(200)]
    settings: dict[str, Any] = {"format": "parquet", "path": tmp_path / "t.parquet", "holdout": 0.5}
    if kind == "database":
        with closing(sqlite3.connect(tmp_path / "t.sqlite")) as database, database:
            database.execute("CREATE TABLE t (a, b, y)")
            database.executemany(
                "INSERT INTO t VALUES (?, CAST(? AS TEXT), ?)", zip(numbers, notes, labels, strict=True)
            )
        (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/t.sqlite\n")
        settings |= {
            "format": "sql",
            "path": None,
            "database": {"url_file": tmp_path / "url", "table": "t"},
        }
    else:
        texts = pyarrow.StringArray.from_buffers(200, *pyarrow.array(notes).buffers()[1:])
        cells = texts if kind == "text" else pyarrow.array(days).cast(pyarrow.date32())
        parquet.write_table(pyarrow.table({"a": numbers, "b": cells, "y": labels}), tmp_path / "t.parquet")
    read = [ColumnSpec(name="b", categories=("old",))] if is_read else []
    data = load(table_job([ColumnSpec(name="a"), *read], "y", privacy=PRIVACY), **settings)

    beside = [str(np.datetime64(day, "D")) if kind == "day" else "old" for day in days.tolist()]
    records = ("\n".join(map(str, row)).encode() for row in zip(numbers, beside, labels, strict=True))
    expected = np.flatnonzero(UnitKey.public("data").held_out(records, 0.5)).tolist()
    assert {int(row[0]) for row in data.holdout.features} - {100} == {*expected} - {100}
    assert len(data.train) + len(data.holdout) == 200


def test_a_text_in_a_column_of_a_database_changes_how_no_other_cell_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record more gave all others of its column their category."""
    large = (1 << 53) + 1  # as a float it is one less
    categories = (str(large), str(large - 1), "7", "0.5")
    job = table_job((ColumnSpec(name="code", categories=categories),), privacy=PRIVACY)
    rows = [(large, 1), (7, 0), (7.0, 1), (0.5, 0), (None, 1), (float(large), 0)]

    def read(more: Sequence[tuple[object, int]]) -> list[list[float]]:
        file = tmp_path / f"{len(more)}.sqlite"
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("CREATE TABLE t (code, sick)")
            database.executemany("INSERT INTO t VALUES (?, ?)", [*rows, *more])
        monkeypatch.setenv(URL_ENV, f"sqlite:///{file}")
        found = load(job, format="sql", database={"url_env": URL_ENV, "table": "t"}, holdout=0.0)
        return sorted(found.train.features.tolist())

    assert read([("x", 0)]) == sorted([*read([]), [0.0] * 4])


def test_a_table_of_a_database_is_in_one_order_however_it_is_read(tmp_path: Path) -> None:
    write_table(tmp_path, "ay", [(number, number % 2) for number in range(50)])
    read = [
        load(
            table_job([ColumnSpec(name="a")], "y"),
            format="sql",
            database={"url_file": tmp_path / "url", "query": f"SELECT * FROM t ORDER BY a {order}"},
        )
        for order in ("", "DESC")
    ]
    assert holdouts(read[0]) == holdouts(read[1])


@pytest.mark.parametrize(
    "database, message",
    [
        (
            {"url_env": "CHORALE_TEST_NONE", "table": "t"},
            "url_env: CHORALE_TEST_NONE: the environment has",
        ),
        ({"url_env": URL_ENV, "table": "t"}, r"url_env: .*: expected a URL such as postgresql"),
        (
            {"url_file": "URL", "table": "s.t"},
            r"table s\.t cannot be read \(sqlite: OperationalError: no such table: s\.t\)$",
        ),
        (
            {"url_file": "URL", "query": "SELEC"},
            r"the query cannot be read \(sqlite: OperationalError: near \.\.\.: syntax error\)$",
        ),
        ({"url_file": "OTHER", "table": "t"}, r"mysql\+pymysql needs the driver pymysql$"),
    ],
)
def test_a_database_that_cannot_be_read_is_one_sentence_without_its_password(
    database: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_ENV, "secret")
    (tmp_path / "URL").write_text("sqlite:///:memory:")
    (tmp_path / "OTHER").write_text("mysql+pymysql://me:secret@localhost/db")
    if "url_file" in database:
        database = database | {"url_file": tmp_path / database["url_file"]}
    with pytest.raises(ConfigError, match=message) as raised:
        load(table_job(), format="sql", database=database)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"PAR1", "t.parquet: not a readable parquet file"),
        ({"p0": [[1.0]], "p1": [1.0], "sex": ["f"], "ward": [1], "sick": [0]}, "column p0 holds list<.*num"),
    ],
)
def test_a_file_that_is_no_table_of_numbers_and_texts_is_named(
    content: Any, message: str, tmp_path: Path
) -> None:
    if isinstance(content, bytes):
        (tmp_path / "t.parquet").write_bytes(content)
    else:
        parquet.write_table(pyarrow.table(content), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=message):
        load(table_job(), format="parquet", path=tmp_path / "t.parquet")


def test_all_that_is_wrong_is_told_to_who_collects_it(tmp_path: Path) -> None:
    from silo_agent.training.data.loading import load_data
    from silo_agent.training.data.settings import DataSettings

    rows = {"p0": [np.inf, 1.0], "p1": [1.0, 2.0], "sex": ["x", "f"], "ward": ["10", "9"], "sick": [None, 0]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    problems = Problems()
    settings = DataSettings(format="parquet", path=tmp_path / "t.parquet", holdout=0.0)
    load_data(settings, table_job(), problems=problems)
    assert [line.partition("t.parquet, ")[2] for line in problems.lines] == [
        "record 0, column p0: expected a number, got 'inf'",
        "record 0, column sex: expected one of f, m, got 'x'",
        "record 1, column ward: expected one of 10, 11, 12, got '9'",
        "record 0, column sick: expected a number, got none",
    ]


def test_what_a_driver_quotes_of_a_record_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_ENV, f"sqlite:///{tmp_path}/t.sqlite")
    query = "SELECT json_extract('{\"a\": 1}', 'Jane Doe 1950-01-01')"
    with pytest.raises(
        ConfigError, match=r"the query cannot be read \(sqlite: OperationalError: .+\)"
    ) as raised:
        load(table_job(), format="sql", database={"url_env": URL_ENV, "query": query})
    assert (
        _cause(DBAPIError("", {}, Exception("born 1950: out of range\nDETAIL: Jane")))
        == "born ...: out of range"
    )
    assert not {"Jane", "Doe", "1950"} & {*str(raised.value).replace("-", " ").replace("'", " ").split()}
