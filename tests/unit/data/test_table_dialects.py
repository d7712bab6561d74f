"""Tables as institutions export them: the same values whatever a file's dialect, and no row lost unsaid."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.formats.proposals import proposed_dialect
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataSettings, SettingsFault, reading_in_words
from silo_agent.training.data.table.derived import DerivedColumn
from silo_agent.training.data.table.dialect import TableDialect
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import load, make_job

COLUMNS = (ColumnSpec(name="age", fill=40.0), ColumnSpec(name="smoker", categories=("yes", "no")))
HEAD = "age,smoker,ill"
PLAIN = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


def table_job(**fields: Any) -> JobSpec:
    return make_job(2, (3,), columns=COLUMNS, label_column="ill", **fields)


def read(path: Path, text: str | bytes, *, job: JobSpec | None = None, **fields: Any) -> SiloData:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(job or table_job(), format="csv", path=path, holdout=0.0, **fields)


def found(path: Path, text: str, **fields: Any) -> tuple[SiloData, list[str]]:
    path.write_text(text)
    problems, given = Problems(), DataSettings(format="csv", path=path, holdout=0.0, **fields)
    data = load_data(given, table_job(), problems=problems)
    return data, [line.removeprefix(f"{path}, ") for line in problems.lines]


NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9).map(float), st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))
)
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from(["yes", "no"]), st.integers(0, 1)), min_size=1, max_size=8)
DIALECTS = st.fixed_dictionaries(
    {
        "delimiter": st.sampled_from([",", ";", "\t", "|"]),
        "decimal": st.sampled_from([".", ","]),
        "thousands": st.sampled_from([None, ".", ",", "'", " "]),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252", "iso-8859-15"]),
    }
).filter(lambda each: each["thousands"] != each["decimal"])


def written(value: float, dialect: dict[str, Any]) -> str:
    text = f"{value:_f}" if dialect["thousands"] else f"{value:f}"
    return text.replace(".", dialect["decimal"]).replace("_", dialect["thousands"] or "")


@PLAIN
@given(rows=ROWS, dialect=DIALECTS, quoted=st.booleans(), is_private=st.booleans(), ends=st.booleans())
def test_a_file_reads_the_same_in_every_dialect(
    tmp_path: Path, rows: Any, dialect: dict[str, Any], quoted: bool, is_private: bool, ends: bool
) -> None:
    job = table_job(privacy=PRIVACY if is_private else None)
    twin = "\n".join([HEAD, *(f"{value:f},{smoker},{ill}" for value, smoker, ill in rows)])
    with (tmp_path / "t.csv").open("w", newline="", encoding=dialect["encoding"]) as file:
        writer = csv.writer(
            file,
            delimiter=dialect["delimiter"],
            quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL,
            lineterminator="\r\n" if ends else "\n",
        )
        writer.writerow([*HEAD.split(","), "größe"])
        writer.writerows([written(value, dialect), *rest, "é"] for value, *rest in rows)
    silo = DataSettings(format="csv", path=tmp_path / "t.csv", holdout=0.0, dialect=dialect)
    listed = records_of(silo)
    assert listed is not None
    assert len(list(listed.train)) >= len(rows)
    if is_private and dialect["encoding"] == "utf-16":
        with pytest.raises(SettingsFault, match="a private job reads line by line, which utf-16 does"):
            load_data(silo, job)
        return
    other = load_data(silo, job)
    expected = read(tmp_path / "twin.csv", twin, job=job)
    assert sorted(other.train.features.tolist()) == sorted(expected.train.features.tolist())
    assert len(other.train) == len(rows)


@pytest.mark.parametrize(
    "text", ["4_0", "1_000.5", "\u0663", "\uff14\uff10", "0x10", "1e", "+-1", "1 000", "1,5", "infinity"]
)
def test_what_python_takes_for_a_number_and_nobody_meant_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="line 2, column age: expected a number, got"):
        read(tmp_path / "t.csv", f'{HEAD}\n"{text}",yes,1\n')


def test_a_group_of_digits_has_three_and_a_point_is_not_guessed() -> None:
    german = TableDialect(decimal=",", thousands=".")
    texts = ("1.234,5", "1234,5", "1.234", "12.34", "1.5", "1.234.567", ",5", "-1.234,5e2", "1,234")
    read = [german.number(text) for text in texts]
    np.testing.assert_array_equal(
        read, [1234.5, 1234.5, 1234.0, np.nan, np.nan, 1234567.0, 0.5, -123450.0, 1.234]
    )
    french = TableDialect(decimal=",", thousands=" ")
    assert [french.number(f"1{space}234,5") for space in " \u00a0\u202f"] == [1234.5] * 3


@PLAIN
@given(
    day=st.dates(datetime.date(1000, 1, 1)),
    form=st.permutations(["YYYY", "MM", "DD"]),
    by=st.sampled_from("./-"),
)
def test_a_day_is_one_text_however_it_is_written(day: datetime.date, form: list[str], by: str) -> None:
    parts = {"YYYY": f"{day.year:04}", "MM": f"{day.month:02}", "DD": f"{day.day:02}"}
    dialect = TableDialect(dates=by.join(form))
    assert dialect.date(by.join(parts[part] for part in form)) == day.isoformat()
    assert dialect.date(day.strftime("%d %b")) == day.strftime("%d %b")


@pytest.mark.parametrize(
    "dialect, message",
    [
        ({"delimiter": "ab"}, "delimiter"),
        ({"delimiter": '"'}, "delimiter"),
        ({"encoding": "base64"}, "expected an encoding of texts"),
        ({"encoding": "klingon"}, "expected an encoding of texts"),
        ({"encoding": "unicode_escape"}, "expected an encoding of texts"),
        ({"encoding": "utf-7"}, "expected an encoding of texts"),
        ({"encoding": "idna"}, "expected an encoding of texts"),
        ({"dates": "%d.%m.%Y"}, "expected YYYY, MM and DD once each"),
        ({"decimal": ",", "thousands": ","}, "expected another character than decimal"),
        ({"quote": "'"}, "quote"),
    ],
)
def test_a_dialect_that_no_file_has_is_refused(dialect: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSettings(format="csv", path="t.csv", dialect=dialect)


def test_a_dialect_and_values_are_of_tables_alone() -> None:
    for fields in ({"dialect": {"delimiter": ";"}}, {"values": {"age": {"a": "1"}}}):
        with pytest.raises(ValidationError, match="not allowed with format digits"):
            DataSettings(format="digits", **fields)


@PLAIN
@given(rows=ROWS, dialect=DIALECTS.filter(lambda each: each["encoding"] != "iso-8859-15"))
def test_what_check_proposes_reads_the_file_as_it_is_meant(
    tmp_path: Path, rows: Any, dialect: dict[str, Any]
) -> None:
    """The rows hold a number that no other form reads as one; else two forms are as good as each other."""
    rows = [*rows, (-1234567.5, "yes", 1), (1234.5678, "no", 0)]
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding=dialect["encoding"]) as file:
        writer = csv.writer(file, delimiter=dialect["delimiter"])
        writer.writerow([*HEAD.split(","), "größe"])
        writer.writerows([written(value, dialect), *rest, "é"] for value, *rest in rows)
    given = DataSettings(format="csv", path=path, holdout=0.0)
    proposed = yaml.safe_load(proposed_dialect(given) or "{}").get("dialect", {})
    read = load(table_job(), format="csv", path=path, holdout=0.0, dialect=proposed)
    assert read.train.features[:, 0].tolist() == [np.float32(f"{value:f}") for value, *_ in rows]
    told = given.model_copy(update={"dialect": TableDialect(**proposed)})
    assert proposed_dialect(told) == "", "nothing is better than what reads all"


def test_days_are_proposed_where_another_column_derives_from_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("born,seen,smoker\n03.05.1960,31.12.2020,yes\n")
    given = DataSettings(format="csv", path=tmp_path / "t.csv")
    assert proposed_dialect(given) == "", "they are texts that nothing computes with"
    deriving = given.model_copy(update={"derive": {"age": DerivedColumn(years=("born", "seen"))}})
    assert proposed_dialect(deriving) == 'dialect: {dates: "DD.MM.YYYY"}'


def test_settings_of_a_table_are_told_to_who_approves() -> None:
    told = reading_in_words(
        DataSettings(
            format="csv",
            path="t.csv",
            dialect={"delimiter": ";", "decimal": ","},
            values={"smoker": {"ja": "yes", "nein": "no"}},
            missing={"age": ["0"]},
        )
    )
    assert told == (
        "written with delimiter ';', decimal ',', encoding 'utf-8'",
        "age: '0' is missing",
        "smoker: 'ja' is yes, 'nein' is no",
    )
    assert reading_in_words(DataSettings(format="csv", path="t.csv")) == ()


def test_the_flow_counts_what_is_left_out_and_why(tmp_path: Path) -> None:
    rows = ["p,60,yes,1", 'q,"50,no,0', ",40,no,0", "p,40,no,2", "p,30,no,1", "p,20,no,0", "q,70,yes,1"]
    (tmp_path / "t.csv").write_text("\n".join([f"who,{HEAD}", *rows]) + "\n")
    given = DataSettings(format="csv", path=tmp_path / "t.csv", unit="who", max_rows_per_unit=2, holdout=0.0)
    flow = load_data(given, table_job(), problems=Problems()).flow
    assert flow is not None
    assert (flow.found, flow.readable, flow.eligible, flow.labeled) == (7, 6, 5, 4)
    assert flow.in_words().startswith("7 records found, 6 readable, 5 eligible, 4 labeled, ")
    assert "1 cannot be read; 1 do not say whose they are; 1 have no label of the job" in flow.in_words()


# rows that a quote takes


@PLAIN
@given(
    at=st.integers(0, 19),
    spoiled=st.sampled_from(['"{0},yes,1', '{0},"yes,1', '{0},yes,"1', '"{0}"x,yes,1', '"{0},yes,1""']),
    after=st.sampled_from(["{0},no,0", '{0},"no",0', '"{0}",no,0']),
)
def test_a_stray_quote_costs_its_own_row_and_names_its_line(
    tmp_path: Path, at: int, spoiled: str, after: str
) -> None:
    rows = [after.format(number) for number in range(20)]
    rows[at] = spoiled.format(99)
    data, lines = found(tmp_path / "t.csv", "\n".join([HEAD, *rows]) + "\n")
    assert [line.partition(":")[0] for line in lines] == [f"line {at + 2}"]
    assert "a quote" in lines[0]
    assert sorted(data.train.features[:, 0].tolist()) == [each for each in range(20) if each != at]
    with pytest.raises(ConfigError, match=rf"t\.csv, line {at + 2}: a quote"):
        load(table_job(), format="csv", path=tmp_path / "t.csv")
    private = load(table_job(privacy=PRIVACY), format="csv", path=tmp_path / "t.csv", holdout=0.0)
    assert {*range(20)} - {at} <= {*private.train.features[:, 0].tolist()}


def test_rows_between_two_stray_quotes_are_rows(tmp_path: Path) -> None:
    """The quotes make one row of three cells of them, which nothing else would tell."""
    rows = ["50,no,0", '"60,yes,1', "70,yes,1", '80",yes,1', "90,no,0"]
    data, lines = found(tmp_path / "t.csv", "\n".join([HEAD, *rows]) + "\n")
    assert lines == [
        "line 3: a quote opens a cell that takes the rows in the 2 lines after it",
        "line 5, column age: expected a number, got '80\"'",
    ]
    assert data.train.features[:, 0].tolist() == [50.0, 70.0, 40.0, 90.0]


def test_a_cell_of_several_lines_is_one_cell(tmp_path: Path) -> None:
    text = 'age,smoker,ill,note\n60,yes,1,"first, with a comma\nsecond ""line""\n\nlast"\n50,no,0,x\n'
    data, lines = found(tmp_path / "t.csv", text)
    assert (data.train.features[:, 0].tolist(), lines) == ([60.0, 50.0], [])


@pytest.mark.parametrize(
    "row, message",
    [
        ("60,yes", "line 3: expected 3 values, got 2"),
        ("60,yes,1,1", "line 3: expected 3 values, got 4"),
        ("6\x000,yes,1", "line 3: a NUL character"),
        ("1" * 200_000 + ",yes,1", "line 3: a cell has more than 131072 characters"),
        ('"' + "1,\n" * 100_000, "line 3: a quote opens a cell of more than 131072 characters"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "t.csv", f"{HEAD}\n50,no,0\n{row}\n40,no,0\n")
    data = read(tmp_path / "t.csv", f"{HEAD}\n50,no,0\n{row}\n40,no,0\n", job=table_job(privacy=PRIVACY))
    assert {50.0, 40.0} <= {*data.train.features[:, 0].tolist()}


def test_an_encoding_that_is_another_is_named_by_line_and_byte(tmp_path: Path) -> None:
    text = f"{HEAD}\n50,no,0\n60,größer,1\n".encode("cp1252")
    with pytest.raises(ConfigError, match=r"line 3, byte 6: not utf-8; data\.dialect\.encoding"):
        read(tmp_path / "t.csv", text)
    fields: dict[str, Any] = {"dialect": {"encoding": "cp1252"}, "values": {"smoker": {"größer": "yes"}}}
    assert read(tmp_path / "t.csv", text, **fields).train.features.tolist() == [[50, 0, 1], [60, 1, 0]]


@PLAIN
@given(encoding=st.sampled_from(["utf-8", "cp1252", "shift_jis", "gb18030", "iso2022_jp"]), wrong=st.binary())
@example(encoding="iso2022_jp", wrong=b"\x1b$B")
def test_no_byte_of_a_private_record_reaches_another(tmp_path: Path, encoding: str, wrong: bytes) -> None:
    """Escapes of iso2022_jp hold until they are taken back: decoded as one, they took the rows after them."""
    row = wrong.replace(b"\n", b"") or b"x"
    path, rows = tmp_path / "t.csv", b"\n50,no,0\n" + row + b"\n40,no,0\n60,yes,1\n"
    path.write_bytes(HEAD.encode() + rows)
    fields: dict[str, Any] = {"path": path, "holdout": 0.0, "dialect": {"encoding": encoding}}
    data = load(table_job(privacy=PRIVACY), format="csv", **fields)
    assert {50.0, 40.0, 60.0} <= {*data.train.features[:, 0].tolist()}


def test_lines_that_a_quote_takes_are_read_in_linear_time(tmp_path: Path) -> None:
    """Each line is parsed at most twice, which the calls of the line's parser count."""
    from silo_agent.training.data.formats.csv import _by_quotes

    rows = [f'"{number},yes,1' if number % 7 == 0 else f"{number},yes,1" for number in range(3_000)]
    read = list(_by_quotes("\n".join([HEAD, *rows]), ",", width=None))
    assert len(read) == 3_001, "a row each, spoiled or not"
    assert [line for line, row, _ in read if not row] == [number + 2 for number in range(0, 3_000, 7)]


# what a text stands for


def test_values_are_the_jobs_texts_and_numbers(tmp_path: Path) -> None:
    text = "age,smoker,ill\n60,ja,1\nalt,nein,0\n50,weiß nicht,0\n?,yes,1\n"
    values = {"smoker": {"ja": "yes", "nein": "no", "weiß nicht": ""}, "age": {"alt": 90}}
    data = read(tmp_path / "t.csv", text, values=values)
    assert data.train.features.tolist() == [[60, 1, 0], [90, 0, 1], [50, 0, 0], [40, 1, 0]]


def test_values_that_the_job_lacks_are_named(tmp_path: Path) -> None:
    text = f"{HEAD}\n60,ja,1\n"
    with pytest.raises(ConfigError, match="column smoker: expected one of yes, no, got 'si'"):
        read(tmp_path / "t.csv", text, values={"smoker": {"ja": "si"}})
    with pytest.raises(ConfigError, match="no column 'smokes'"):
        read(tmp_path / "t.csv", text, values={"smokes": {"ja": "yes"}})
    with pytest.raises(ConfigError, match="column smoker: expected one of yes, no, got 'ja'"):
        read(tmp_path / "t.csv", text)


def test_a_private_record_is_the_text_that_its_file_holds(tmp_path: Path) -> None:
    """Its side and its mark in the account are no matter of how the silo reads it."""
    (tmp_path / "t.csv").write_text("age;smoker;ill\n1,5;ja;1\n")
    made = DataSettings(
        format="csv",
        path=tmp_path / "t.csv",
        dialect={"delimiter": ";", "decimal": ","},
        values={"smoker": {"ja": "yes"}},
    )
    assert list(records_of(made).train) == [b"1,5\nja\n1"]  # type: ignore[union-attr]


@given(
    texts=st.lists(st.text("0123456789+-.,eE _'\n\u00a0\u0663in", max_size=6) | st.just("1.5"), max_size=8),
    decimal=st.sampled_from([".", ","]),
    thousands=st.sampled_from([None, " ", "'"]),
)
def test_a_column_of_numbers_is_read_as_each_of_them(texts: list[str], decimal: Any, thousands: Any) -> None:
    dialect = TableDialect(decimal=decimal, thousands=thousands)
    np.testing.assert_array_equal(dialect.numbers(texts), [dialect.number(each) for each in texts])
