"""`chorale silo describe`: what the files hold, without a job and without a change to any file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silo_agent.training.data.formats.proposals import likely_dialect
from silo_agent.training.data.settings import DataSettings
from tests.support.class_folders import write_folders
from tests.unit.cli.conftest import Calls, Desk, Ended

ROWS = [(f"P{place:03}", 1.5 + place, ("mild", "schwer")[place % 2], place % 3) for place in range(60)]
NAMES = ("fall", "größe", "grad", "klasse")
GIVEN = ["{name: größe}", "{name: grad, categories: [mild, schwer]}", "{name: klasse}"]


def described(desk: Desk, chorale: Calls, *options: Any, **data: Any) -> Ended:
    return chorale("silo", "describe", "--config", desk.silo(data=data), *options)


def semicolons(folder: Path) -> dict[str, Any]:
    lines = [";".join(map(str, row)).replace(".", ",") for row in [NAMES, *ROWS]]
    (folder / "t.csv").write_text("\n".join(lines), encoding="cp1252")
    return {"format": "csv", "path": str(folder / "t.csv")}


def parquet(folder: Path) -> dict[str, Any]:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    pyarrow.write_table(table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True))), folder / "t.parquet")
    return {"format": "parquet", "path": str(folder / "t.parquet")}


def database(folder: Path) -> dict[str, Any]:
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(folder / "t.sqlite") as connection:
        connection.execute('create table t (fall text, "größe" real, grad text, klasse int)')
        connection.executemany("insert into t values (?, ?, ?, ?)", ROWS)
    connection.close()
    (folder / "url").write_text(f"sqlite:///{folder / 't.sqlite'}")
    return {"format": "sql", "database": {"url_file": str(folder / "url"), "table": "t"}}


@pytest.mark.parametrize("stored", [semicolons, parquet, database])
def test_a_table_is_described_and_proposed_whatever_holds_it(desk: Desk, chorale: Calls, stored: Any) -> None:
    data = stored(desk.folder)
    file = desk.folder / "proposal.yaml"
    ended = described(desk, chorale, "--write", file, **data)
    assert ended.code == 0, ended.err
    assert "60 records, 4 columns" in ended.out
    assert "for this institution's own eyes" in ended.out
    assert "größe   numbers 1.5 to 60.5, 60 distinct, 0 missing\n" in ended.out
    assert "grad    texts, 2 distinct, 0 missing; 'mild' 30, 'schwer' 30\n" in ended.out
    assert "klasse  whole numbers 0 to 2, 3 distinct, 0 missing; '0' 20, '1' 20, '2' 20\n" in ended.out
    proposed = yaml.safe_load(file.read_text())
    assert proposed["columns"] == [yaml.safe_load(each) for each in GIVEN]
    assert "may be: grad, klasse" in file.read_text()
    assert "P001" not in file.read_text(), "a text of one record goes to nobody"
    again = described(desk, chorale, **proposed["data"])
    assert (again.code, "written otherwise" in again.out) == (0, False)
    assert described(desk, chorale, "--write", file, **data).code == 2, "nothing is overwritten"


def test_what_the_settings_say_of_a_table_is_in_its_proposal(desk: Desk, chorale: Calls) -> None:
    """It proposed categories as the file spells them, which a job of `values` does not know."""
    days = "02.01.1960;03.01.2020;1;müde\n03.01.1970;04.01.2020;0;\n" * 5
    (desk.folder / "t.csv").write_text(f"born;seen;raucht;größe\n{days}")
    ended = described(
        desk,
        chorale,
        format="csv",
        path=str(desk.folder / "t.csv"),
        rename={"raucht": "smoker"},
        values={"smoker": {"1": "yes", "0": "no"}, "größe": {"müde": "tired"}},
        derive={"age": {"years": ["born", "seen"]}},
    )
    assert "columns:\n- {name: age}\n# not born: days\n" in ended.out
    assert "- {name: smoker, categories: ['no', 'yes']}\n- {name: größe, categories: [tired]}\n" in ended.out
    assert "  values: {größe: {müde: tired}, smoker: {'0': 'no', '1': 'yes'}}\n" in ended.out


def test_texts_beside_numbers_rare_texts_and_missing_ones_are_told(desk: Desk, chorale: Calls) -> None:
    rows = ["age,sex\n"] + [f"{place},{'fm'[place % 2]}\n" for place in range(20)]
    (desk.folder / "t.csv").write_text("".join([*rows, "old,x\n", "?,\x1b[2J\n", '1,"f\n']))
    ended = described(desk, chorale, format="csv", path=str(desk.folder / "t.csv"))
    assert "23 records, 2 columns" in ended.out
    assert "line 24: a quote opens a cell and does not close" in ended.out
    assert "2 missing; not of the kind: 'old' 1 (data.missing or data.values)" in ended.out
    assert "\x1b" not in ended.out
    assert "- {name: sex, categories: [f, m]}\n  # without 2 texts of fewer than 5 records" in ended.out


def test_a_column_that_no_job_reads_is_named_and_the_others_are_described(desk: Desk, chorale: Calls) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    parquet.write_table(table({"age": [1, 2], "scans": [[1], [2]]}), desk.folder / "t.parquet")
    ended = described(desk, chorale, format="parquet", path=str(desk.folder / "t.parquet"))
    assert (ended.code, "- {name: age}\n" in ended.out) == (0, True), ended.err
    assert "column scans holds list<element: int64>, expected numbers or texts" in ended.out


def test_folders_are_counted_with_the_sizes_of_their_images(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("PIL")
    write_folders(desk.folder / "images", {"well": [1, 2, 3], "ill": [4, 5]})
    ended = described(desk, chorale, format="image-folder", path=str(desk.folder / "images"))
    assert ended.code == 0, ended.err
    assert "ill: 2 images; the first 2: 'L 2x2' 2" in ended.out
    assert "well: 3 images" in ended.out


@pytest.mark.parametrize(
    "options, data, message",
    [
        ((), {"format": "csv", "path": "none.csv"}, "data.path: none.csv: No such file or directory"),
        (("--data-set", "other"), {"format": "digits"}, "--data-set: expected one of data, got other"),
        (("--write", "x.yaml"), {"format": "digits"}, "--write: not allowed with format digits"),
    ],
)
def test_what_cannot_be_described_is_one_sentence(
    desk: Desk, chorale: Calls, options: tuple[str, ...], data: dict[str, Any], message: str
) -> None:
    ended = described(desk, chorale, *options, **data)
    assert (ended.code, message in ended.err) == (2, True), ended.err


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(
    form=st.sampled_from(["DD.MM.YYYY", "DD/MM/YYYY", "MM/DD/YYYY", "YYYY/MM/DD", "DD-MM-YYYY"]),
    days=st.lists(st.dates(), min_size=1, max_size=5),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
)
def test_days_and_cells_are_proposed_as_they_are_written(
    tmp_path: Path, form: str, days: list[Any], delimiter: str
) -> None:
    """What has two meanings is asked."""
    written = [
        form.replace("YYYY", f"{day.year:04}").replace("MM", f"{day.month:02}").replace("DD", f"{day.day:02}")
        for day in days
    ]
    rows = [f"a{delimiter}born", *(f"1{delimiter}{day}" for day in written)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    best, doubts = likely_dialect(DataSettings(format="csv", path=tmp_path / "t.csv"))
    assert best.delimiter == delimiter
    assert best.dates == form or f"days may also be {form}" in doubts
    may_be_either = form[2:3] == "/" and all(day.day <= 12 and day.month <= 12 for day in days)
    assert bool(doubts) == may_be_either


def test_a_number_of_two_meanings_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n1.500;x\n2.250;y\n")
    best, doubts = likely_dialect(DataSettings(format="csv", path=tmp_path / "t.csv"))
    assert (best.decimal, best.thousands) == (".", None)
    assert "numbers may also have decimal ',', thousands '.'" in doubts


def test_no_name_in_a_proposal_turns_a_line_around(desk: Desk, chorale: Calls) -> None:
    """Those that YAML takes as they are stood in it as they were."""
    names = ["age", "b\u202e", "größe", "c\u2066d"]
    (desk.folder / "t.csv").write_text(f"{','.join(names)}\n" + "1,2,3,\u202eevil\n" * 9)
    ended = described(desk, chorale, format="csv", path=str(desk.folder / "t.csv"))
    assert all(line.isprintable() for line in ended.out.splitlines())
    columns = yaml.safe_load(ended.out.partition("columns:")[2])
    assert [each["name"] for each in columns] == names
    assert columns[-1]["categories"] == ["\u202eevil"]
