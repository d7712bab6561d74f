"""What a table's numbers, days and people mean, by job and settings: the same at every silo."""

from __future__ import annotations

import datetime
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataSettings, SettingsFault, reading_in_words
from silo_agent.training.data.table.units import units_in_words
from silo_agent.training.data.units import Excluded
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import make_job

PLAIN = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
FORMATS = ("csv", "parquet", "sql")
MG = {"glucose": {"unit": "mg/dL", "factors": {"mmol/L": 0.0555}}}


def stored(folder: Path, form: str, table: dict[str, list[Any]]) -> dict[str, Any]:
    """The settings of a table that is stored so. None: missing."""
    rows = list(zip(*table.values(), strict=True))
    if form == "csv":
        lines = [table.keys(), *(("" if cell is None else str(cell) for cell in row) for row in rows)]
        (folder / "t.csv").write_text("\n".join(map(",".join, lines)) + "\n")
        return {"format": form, "path": folder / "t.csv"}
    if form == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(table), folder / "t.parquet")
        return {"format": form, "path": folder / "t.parquet"}
    pytest.importorskip("sqlalchemy")
    (folder / "t.sqlite").unlink(missing_ok=True)
    connection = sqlite3.connect(folder / "t.sqlite")
    connection.execute(f"create table t ({', '.join(table)})")
    texts = [[str(cell) if hasattr(cell, "year") else cell for cell in row] for row in rows]
    connection.executemany(f"insert into t values ({', '.join('?' * len(table))})", texts)
    connection.commit()
    connection.close()
    (folder / "url").write_text(f"sqlite:///{folder / 't.sqlite'}")
    return {"format": form, "database": {"url_file": folder / "url", "table": "t"}}


AGE = ColumnSpec(name="age")


def job_of(*columns: ColumnSpec, **fields: Any) -> JobSpec:
    return make_job(2, (len(columns),), columns=columns, label_column="ill", **fields)


def inputs(job: JobSpec, **data: Any) -> tuple[list[float], Problems]:
    """Of the first column, sorted, as files and databases have no common order."""
    problems = Problems()
    found = load_data(DataSettings(holdout=0.0, **data), job, problems=problems)
    return sorted(found.train.features[:, 0].tolist()), problems


@PLAIN
@given(
    values=st.lists(st.integers(-50, 50).map(float) | st.none(), min_size=1, max_size=8),
    low=st.integers(-30, 10),
    width=st.integers(0, 40),
    factor=st.sampled_from([1.0, 0.5, 4.0]),
    form=st.sampled_from(FORMATS),
    is_private=st.booleans(),
)
def test_an_implausible_value_is_missing_and_counted_in_the_jobs_unit(
    tmp_path: Path, values: list[Any], low: int, width: int, factor: float, form: str, is_private: bool
) -> None:
    plausible = (float(low), float(low + width))
    column = ColumnSpec(name="glucose", fill=99.0, plausible=plausible, unit="mmol/L")
    job = job_of(column, privacy=PRIVACY if is_private else None)
    data = stored(tmp_path, form, {"glucose": values, "ill": [0] * len(values), "row": [*range(len(values))]})
    units = {"glucose": {"unit": "mg/dL", "factors": {"mmol/L": factor}}}
    read, problems = inputs(job, **data, units=units)
    meant = [None if value is None else value * factor for value in values]
    outside = [value for value in meant if value is not None and not low <= value <= low + width]
    assert read == sorted(99.0 if value is None or value in outside else value for value in meant)
    assert problems.counted.total() == len(outside)
    assert problems.count == 0, "nothing is wrong with the record"


@pytest.mark.parametrize("form", FORMATS)
def test_what_means_missing_and_what_values_say_is_not_converted(tmp_path: Path, form: str) -> None:
    data = stored(tmp_path, form, {"glucose": ["100", "-9", "high", "200"], "ill": [0, 1, 0, 1]})
    values = {"glucose": {"high": "30"}}
    column = ColumnSpec(name="glucose", fill=-1.0, unit="mmol/L")
    read, problems = inputs(job_of(column), **data, units=MG, values=values, missing={"glucose": ["-9"]})
    np.testing.assert_allclose(read, [-1.0, 5.55, 11.1, 30.0], rtol=1e-6)
    assert problems.count == 0


@pytest.mark.parametrize(
    "unit, units, told",
    [
        ("mmol/L", MG, "glucose: mg/dL times 0.0555 is the job's mmol/L"),
        ("mg/dL", MG, "glucose: mg/dL, also in the job"),
        (None, MG, "glucose: mg/dL, unit not stated by the job"),
        ("mmol/L", {}, "glucose: read as mmol/L; unit not stated by this silo (data.units)"),
        (None, {}, None),
    ],
)
def test_units_are_told_and_one_without_a_factor_is_refused(
    tmp_path: Path, unit: str | None, units: dict[str, Any], told: str | None
) -> None:
    data = stored(tmp_path, "csv", {"glucose": [100], "ill": [1]})
    job, silo = job_of(ColumnSpec(name="glucose", unit=unit)), DataSettings(**data, units=units)
    assert units_in_words(silo.units, job) == ([] if told is None else [told])
    inputs(job, **data, units=units)
    other = job_of(ColumnSpec(name="glucose", unit="g/L"))
    if units:
        with pytest.raises(ConfigError, match="glucose: the job reads g/L, the data hold mg/dL: expected"):
            inputs(other, **data, units=units)
    else:
        inputs(other, **data, units=units)


def test_units_are_of_tables_and_a_factor_is_to_another_unit() -> None:
    with pytest.raises(ValidationError, match="units: not allowed with format digits"):
        DataSettings(format="digits", units=MG)
    with pytest.raises(ValidationError, match="expected other units than mg/dL, which the file holds"):
        DataSettings(format="csv", path="t", units={"glucose": {"unit": "mg/dL", "factors": {"mg/dL": 2}}})
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValidationError, match="factors"):
            DataSettings(format="csv", path="t", units={"a": {"unit": "x", "factors": {"y": factor}}})


@pytest.mark.parametrize("form", ["parquet", "sql"])
def test_digits_with_a_line_between_them_are_no_number_in_typed_tables(tmp_path: Path, form: str) -> None:
    data = stored(tmp_path, form, {"age": ["4_0", "50"], "ill": [0, 1]})
    with pytest.raises(ConfigError, match="column age: expected a number, got '4_0'"):
        load_data(DataSettings(**data), job_of(ColumnSpec(name="age")))


DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)) | st.none()


def completed(first: datetime.date, second: datetime.date) -> int:
    """Birthdays between the two, counted one by one; a 29 February is kept on 1 March."""

    def birthday(year: int) -> datetime.date:
        try:
            return first.replace(year=year)
        except ValueError:
            return datetime.date(year, 3, 1)

    return sum(birthday(year) <= second for year in range(first.year + 1, second.year + 1))


@PLAIN
@given(
    days=st.lists(st.tuples(DAYS, DAYS), min_size=1, max_size=6),
    form=st.sampled_from(FORMATS),
    kind=st.sampled_from(["years", "days"]),
    dates=st.sampled_from([None, "DD.MM.YYYY", "MM/DD/YYYY"]),
    is_private=st.booleans(),
)
def test_the_time_between_two_days_is_a_column(
    tmp_path: Path, days: list[Any], form: str, kind: str, dates: str | None, is_private: bool
) -> None:
    table = {"born": [day for day, _ in days], "seen": [day for _, day in days], "ill": [0] * len(days)}
    table["row"] = [*range(len(days))]
    if form == "csv" and dates is not None:
        shape = dates.replace("DD", "%d").replace("MM", "%m").replace("YYYY", "%Y")
        table |= {name: [day and day.strftime(shape) for day in table[name]] for name in ("born", "seen")}
    data = stored(tmp_path, form, table) | ({"dialect": {"dates": dates}} if form == "csv" else {})
    job = job_of(ColumnSpec(name="age", fill=-99.0), privacy=PRIVACY if is_private else None)
    read, problems = inputs(job, **data, derive={"age": {kind: ["born", "seen"]}})
    assert problems.lines == []
    whole = [(first, second) for first, second in days if first is not None and second is not None]
    expected = [float((second - first).days) for first, second in whole]
    if kind == "years":
        later = [completed(first, second) for first, second in whole if first <= second]
        assert [value for value in read if value >= 0] == sorted(map(float, later))
        assert read.count(-99.0) >= len(days) - len(whole)
    else:
        assert read == sorted([*expected, *[-99.0] * (len(days) - len(whole))])


def test_a_text_that_is_no_day_is_named_and_missing(tmp_path: Path) -> None:
    born = ["2000-02-29", "2000-02-30", "soon", "x", "?", "1900"]
    data = stored(tmp_path, "csv", {"born": born, "seen": ["2001-02-28"] * 6, "ill": [0] * 6})
    fields: dict[str, Any] = {"derive": {"age": {"years": ["born", "seen"]}}, "missing": {"born": ["x"]}}
    fields["values"] = {"born": {"1900": "1900-03-01"}}
    read, problems = inputs(job_of(ColumnSpec(name="age", fill=-1.0)), **data, **fields)
    assert read == [-1.0, -1.0, -1.0, -1.0, 0.0, 100.0]
    assert [line.partition(", ")[2] for line in problems.lines] == [
        "line 3, column born: expected a day as YYYY-MM-DD, got '2000-02-30'",
        "line 4, column born: expected a day as YYYY-MM-DD, got 'soon'",
    ]


def test_a_derived_column_is_told_and_is_none_of_the_file(tmp_path: Path) -> None:
    data = stored(tmp_path, "csv", {"born": ["2000-01-01"], "age": [3], "ill": [0]})
    derive = {"age": {"years": ["born", "seen"]}}
    assert reading_in_words(DataSettings(**data, derive=derive)) == (
        "age: completed years from born to seen",
    )
    job = job_of(ColumnSpec(name="age"))
    with pytest.raises(SettingsFault, match="no column 'seen'"):
        inputs(job, **data, derive=derive)
    with pytest.raises(SettingsFault, match=r"data.derive: .*t.csv has 'age' already"):
        inputs(job, **data, derive={"age": {"years": ["born", "born"]}})
    for wrong, message in (
        ({"derive": {"a": {}}}, "either years or days"),
        ({"derive": derive, "unit": "born"}, "derive: expected other columns than born"),
    ):
        with pytest.raises(ValidationError, match=message):
            DataSettings(**data, **wrong)


# who withdrew


@PLAIN
@given(
    people=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    gone=st.sets(st.integers(0, 7)),
    form=st.sampled_from(FORMATS),
    is_private=st.booleans(),
)
def test_the_records_of_who_withdrew_are_left_out_and_counted(
    tmp_path: Path, people: list[int], gone: set[int], form: str, is_private: bool
) -> None:
    table = {"who": people, "age": [*range(len(people))], "ill": [0] * len(people)}
    (tmp_path / "gone.txt").write_text("\ufeff" + "".join(f" {each}\r\n\n" for each in gone))
    data = stored(tmp_path, form, table) | {"unit": "who", "exclude": tmp_path / "gone.txt"}
    job = job_of(ColumnSpec(name="age"), privacy=PRIVACY if is_private else None)
    problems, kept = Problems(), [place for place, who in enumerate(people) if who not in gone]
    assume(kept)
    found = load_data(DataSettings(holdout=0.0, **data), job, problems=problems)
    assert sorted(found.train.features[:, 0].tolist()) == kept
    assert found.flow is not None
    assert (found.flow.eligible, found.flow.withdrawn) == (len(kept), len(people) - len(kept))
    unknown, left_out = len(gone - {*people}), len(people) - len(kept)
    assert sorted(problems.counted.values()) == sorted(each for each in (unknown, left_out) if each)
    assert ("are of units that withdrew" in found.flow.in_words()) == bool(left_out)
    assert found.is_current
    (tmp_path / "gone.txt").write_text("another")
    assert not found.is_current
    (tmp_path / "gone.txt").unlink()
    assert not found.is_current
    with pytest.raises(SettingsFault, match=r"data.exclude: .*gone.txt: No such file"):
        load_data(DataSettings(holdout=0.0, **data), job)


def test_a_file_of_who_withdrew_is_told_and_needs_units(tmp_path: Path) -> None:
    silo = DataSettings(format="csv", path="t.csv", unit="who", exclude="gone.txt")
    assert reading_in_words(silo) == ("records of each who in gone.txt are left out (data.exclude)",)
    with pytest.raises(ValidationError, match="exclude: needs unit, of which the file names values"):
        DataSettings(format="csv", path="t.csv", exclude="gone.txt")
    (tmp_path / "gone.txt").write_bytes(b"M\xfcller\n")
    with pytest.raises(SettingsFault, match="gone.txt: expected UTF-8"):
        Excluded.of(tmp_path / "gone.txt")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_private", [False, True])
def test_a_column_is_called_as_the_job_calls_it(tmp_path: Path, form: str, is_private: bool) -> None:
    """A file in another language had to be written again, its heading alone."""
    data = stored(tmp_path, form, {"Glukose": ["8", "-9"], "Befund": [0, 1], "Fall": ["a", "b"]})
    names = {"Glukose": "glucose", "Befund": "ill", "Fall": "case"}
    given = {**data, "missing": {"glucose": ["-9"]}, "unit": "case"}
    job = job_of(ColumnSpec(name="glucose", fill=5.0), privacy=PRIVACY if is_private else None)
    read, problems = inputs(job, **given, rename=names)
    assert (read, problems.count) == ([5.0, 8.0], 0)
    records = records_of(DataSettings(**given, rename=names))
    assert records is not None
    assert records.columns is not None
    assert {*names.values()} == {*records.columns}
    assert "glucose: called Glukose in the file" in reading_in_words(DataSettings(**given, rename=names))
    with pytest.raises(SettingsFault, match="no column 'Zucker'; it has Glukose, Befund, Fall"):
        inputs(job, **given, rename={"Zucker": "glucose"})
    with pytest.raises(ConfigError, match="a column is named twice"):
        inputs(job, **given, rename={**names, "Fall": "ill"})


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_that_the_file_lacks_is_missing_where_the_settings_say_so(tmp_path: Path, form: str) -> None:
    data = stored(tmp_path, form, {"age": [30, 60], "ill": [0, 1]})
    smoker = ColumnSpec(name="smoker", categories=("yes", "no"))
    job = make_job(2, (4,), columns=(ColumnSpec(name="glucose", fill=5.0), smoker, AGE), label_column="ill")
    with pytest.raises(ConfigError, match="no columns 'glucose', 'smoker'"):
        load_data(DataSettings(holdout=0.0, **data), job)
    settings_of_silo = DataSettings(holdout=0.0, **data, absent=("glucose", "smoker"))
    found = load_data(settings_of_silo, job).train.features.tolist()
    assert sorted(found) == [[5.0, 0.0, 0.0, 30.0], [5.0, 0.0, 0.0, 60.0]]
    assert "smoker: not in the file, all its values are missing" in reading_in_words(settings_of_silo)
    with pytest.raises(SettingsFault, match="data.absent: .* has 'age' already"):
        load_data(DataSettings(holdout=0.0, **data, absent=("age",)), job)
