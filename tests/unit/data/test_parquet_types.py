"""Types that Parquet files hold: read by column or refused by name; a bad cell is one cell."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.parquet import _Files, _Rows
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataSettings
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import load, make_job

AGE, ALSO = (
    ColumnSpec(name="a", fill=-1.0),
    ColumnSpec(name="a", categories=("2020-01-02", "u"), encoding="index"),
)
BEYOND = 10**7  # days after 1970, after Python's last year


def write(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def read(path: Path, column: ColumnSpec = AGE, **fields: Any) -> list[float]:
    job = make_job(2, (1,), columns=(column,), label_column="y", **fields)
    found: list[float] = load(job, format="parquet", path=path, holdout=0.0).train.features[:, 0].tolist()
    return found


def made(values: Any, type_: str) -> Any:
    return (
        pyarrow.array(values).cast(type_)
        if type_ != "dictionary"
        else pyarrow.array(values).dictionary_encode()
    )


@pytest.mark.parametrize(
    "type_",
    [
        "int8",
        "uint64",
        "float16",
        "float32",
        "double",
        "bool",
        "dictionary",
        "decimal128(20, 3)",
        "decimal256(50, 3)",
    ],
)
def test_numbers_of_every_type_are_numbers(tmp_path: Path, type_: str) -> None:
    values: Any = [True, None] if type_ == "bool" else [Decimal(4), None] if "dec" in type_ else [4, None]
    cells = pyarrow.array(values, pyarrow.decimal128(20, 3)) if "dec" in type_ else made(values, type_)
    cells = cells.cast(pyarrow.decimal256(50, 3)) if "256" in type_ else cells
    path = write(tmp_path / "t.parquet", a=cells, y=[0, 1])
    assert read(path) == [1.0 if type_ == "bool" else 4.0, -1.0]


def test_a_column_of_nothing_is_missing(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.parquet", a=pyarrow.nulls(2), y=[0, 1])) == [-1.0, -1.0]


@pytest.mark.parametrize("type_", ["string", "large_string", "dictionary", "date32", "date64"])
def test_texts_and_days_of_every_type_are_texts(tmp_path: Path, type_: str) -> None:
    texts = pyarrow.array(["2020-01-02", "2020-01-02"])
    cells = texts.dictionary_encode() if type_ == "dictionary" else texts.cast(type_)
    assert read(write(tmp_path / "t.parquet", a=cells, y=[0, 1]), ALSO) == [0.0, 0.0]


def test_a_time_with_a_zone_is_a_text(tmp_path: Path) -> None:
    cells = pyarrow.array([0, 1], pyarrow.timestamp("ms", "Europe/Berlin"))
    path = write(tmp_path / "t.parquet", a=cells, y=[0, 1])
    with pytest.raises(
        ConfigError, match=r"record 0, column a: expected one of .*, got '1970-01-01 01:00:00"
    ):
        read(path, ALSO)


@pytest.mark.parametrize(
    "type_",
    ["list<item: int64>", "struct<x: int64>", "binary", "duration[s]", "map<string, int64>"],
)
def test_what_is_no_cell_is_refused_with_column_and_type(tmp_path: Path, type_: str) -> None:
    kinds = {
        "list<item: int64>": pyarrow.array([[1], [2]]),
        "struct<x: int64>": pyarrow.array([{"x": 1}, {"x": 2}]),
        "binary": pyarrow.array([b"1", b"2"]),
        "duration[s]": pyarrow.array([1, 2], pyarrow.duration("s")),
        "map<string, int64>": pyarrow.array(
            [[("x", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())
        ),
    }
    path = write(tmp_path / "t.parquet", a=kinds[type_], b=[1, 2], y=[0, 1])
    with pytest.raises(ConfigError, match=r"t\.parquet: column a holds .*, expected numbers or texts"):
        read(path)
    assert read(path, ColumnSpec(name="b")) == [1.0, 2.0], (
        "a column that the job does not read refuses nothing"
    )
    assert len(read(path, ColumnSpec(name="b"), privacy=PRIVACY)) == 2


def test_parts_of_several_number_types_are_one_column_and_equal_records_one(tmp_path: Path) -> None:
    cells = [pyarrow.array([4]), pyarrow.array([4.0]), pyarrow.array([4], "int8"), pyarrow.nulls(1)]
    for place, each in enumerate(cells):
        write(tmp_path / f"{place}.parquet", a=each, y=[1])
    assert read(tmp_path) == [4.0, 4.0, 4.0, -1.0]
    stored = list(records_of(DataSettings(format="parquet", path=tmp_path)).train)  # type: ignore[union-attr]
    assert stored == [b"4\n1", b"4\n1", b"4\n1", b"\n1"]


@pytest.mark.parametrize(
    "first, second",
    [
        (pyarrow.array([4]), pyarrow.array(["4"])),
        (pyarrow.array(["4"]), pyarrow.array([4.5])),
        (pyarrow.array([4]).cast("int32").cast("date32"), pyarrow.array([4])),
        (pyarrow.array([4], pyarrow.timestamp("ms")), pyarrow.array([4]).cast("int32").cast("date32")),
    ],
)
def test_parts_of_two_kinds_are_refused_with_file_column_and_types(
    tmp_path: Path, first: Any, second: Any
) -> None:
    write(tmp_path / "one.parquet", a=first, y=[1])
    write(tmp_path / "two.parquet", a=second, y=[1])
    parts = rf"two\.parquet: column a holds {second.type}.*, in one\.parquet it holds {first.type}"
    with pytest.raises(
        ConfigError, match=parts.replace("[", r"\[").replace("]", r"\]").replace("string", ".*string.*")
    ):
        read(tmp_path)


def test_parts_with_other_columns_say_which(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", a=[1], y=[1])
    write(tmp_path / "2.parquet", y=[1], b=[1])
    with pytest.raises(ConfigError, match=r"2\.parquet: its columns are not those of 1\.parquet: a, b"):
        read(tmp_path)
    write(tmp_path / "2.parquet", y=[1], a=[2])
    assert read(tmp_path) == [1.0, 2.0], "columns are found by their names"


def test_a_file_that_is_broken_says_why(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"t\.parquet: not a readable parquet file \(ArrowInvalid: .*size"):
        read(tmp_path / "t.parquet")


def unreadable(kind: str, rows: int, at: int) -> Any:
    if kind == "day":
        return pyarrow.array([BEYOND if row == at else 1 for row in range(rows)], "int32").cast("date32")
    texts = pyarrow.array([b"\xff\xfe" if row == at else b"u" for row in range(rows)])
    return pyarrow.StringArray.from_buffers(rows, *texts.buffers()[1:])


@pytest.mark.parametrize("kind", ["day", "text"])
@pytest.mark.parametrize("is_private", [False, True])
def test_one_cell_in_a_column_that_no_job_reads_costs_nothing(
    tmp_path: Path, kind: str, is_private: bool
) -> None:
    rows = 300
    path = write(tmp_path / "t.parquet", a=[*range(rows)], visit=unreadable(kind, rows, 150), y=[0, 1] * 150)
    problems, privacy = Problems(), PRIVACY if is_private else None
    job = make_job(2, (1,), columns=(ColumnSpec(name="a"),), label_column="y", privacy=privacy)
    data = load_data(DataSettings(format="parquet", path=path, holdout=0.0), job, problems=problems)
    assert (len(data.train), problems.count) == (rows, 0)
    stored = list(records_of(DataSettings(format="parquet", path=path)).train)  # type: ignore[union-attr]
    assert None not in stored
    assert len(set(stored)) == rows


def test_a_text_that_is_none_is_named_with_record_and_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", a=unreadable("text", 100, 40), y=[0, 1] * 50)
    with pytest.raises(
        ConfigError, match="record 40, column a: expected a text, got .*string.* cannot be read$"
    ):
        read(path, ALSO)
    assert len(read(path, ALSO, privacy=PRIVACY)) == 100


def test_records_are_made_once_each_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 rows with one such cell took 97 s: every record converted those beside it again."""
    from silo_agent.training.data.formats import parquet as reader

    rows, converted = 2_000, 0

    def counted(cell: Any) -> Any:
        nonlocal converted
        converted += 1
        return reader_value(cell)

    reader_value = reader._value
    monkeypatch.setattr(reader, "_value", counted)
    for part in (1, 2):
        write(tmp_path / f"{part}.parquet", a=np.arange(rows), visit=unreadable("day", rows, 5 * part))
    made = _Rows(_Files(DataSettings(format="parquet", path=tmp_path)))
    assert len([made[place] for place in range(len(made))]) == 2 * rows
    assert 0 < converted <= 2 * reader.BATCH, "those beside the cell, once"
