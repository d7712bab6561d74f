"""Tables: the columns that are read, what counts as missing, and the one line about what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from tests.support.shared_data import shared_folder
from tests.unit.data.loading import load, make_job

COLUMNS = (ColumnSpec(name="age", mean=50, scale=10, fill=40), ColumnSpec(name="chol", scale=100, fill=200))


def csv_job(classes: int = 2) -> JobSpec:
    return make_job(classes, (2,), columns=COLUMNS, label_column="sick")


def load_csv(tmp_path: Path, text: str, **fields: Any) -> SiloData:
    file = tmp_path / "table.csv"
    file.write_text(text)
    return load(csv_job(), format="csv", path=file, holdout=0.0, **fields)


def test_csv_takes_the_jobs_columns_in_the_jobs_order(tmp_path: Path) -> None:
    data = load_csv(tmp_path, "sick,chol,note,age\n1,250,x,60\n0, 100.0,y,.5e2\n")
    np.testing.assert_allclose(data.train.features, [[1.0, 2.5], [0.0, 1.0]])
    assert data.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("missing", ["", "?", "NA", "nan", " ? "])
def test_csv_fills_what_is_missing_in_the_columns_own_units(tmp_path: Path, missing: str) -> None:
    data = load_csv(tmp_path, f"age,chol,sick\n{missing},300,1\n60,{missing},0\n")
    np.testing.assert_allclose(data.train.features, [[-1.0, 3.0], [1.0, 2.0]])


def test_csv_without_header_takes_names_from_the_settings(tmp_path: Path) -> None:
    data = load_csv(tmp_path, "60,0,1\n50,100,0\n", columns_in_file=["age", "chol", "sick"])
    assert data.train.labels.tolist() == [1, 0]
    assert len(data.train) == 2


def test_csv_settings_say_what_else_is_missing_and_what_labels_mean(tmp_path: Path) -> None:
    data = load_csv(
        tmp_path,
        "age,chol,sick\n60,0,yes\n0,100,no\n",
        missing={"chol": ["0"]},
        labels={"no": 0, "yes": 1},
    )
    np.testing.assert_allclose(data.train.features, [[1.0, 2.0], [-5.0, 1.0]])
    assert data.train.labels.tolist() == [1, 0]


def test_csv_number_that_means_missing_does_so_however_it_is_written(tmp_path: Path) -> None:
    written = ["0", "0.0", ".0", "-0", "0e5"]
    text = "age,chol,sick\n" + "".join(f"60,{cell},0\n" for cell in [*written, "0.1"])
    data = load_csv(tmp_path, text, missing={"chol": ["none", "0"]})
    np.testing.assert_allclose(data.train.features[:, 1], [2.0] * len(written) + [0.001])


@pytest.mark.parametrize(
    "text, fields, message",
    [
        ("age,sick\n1,0\n", {}, r"table\.csv: no column 'chol'; it has age, sick"),
        ("age,chol,ill\n1,2,0\n", {}, r"table\.csv: no column 'sick'; it has age, chol, ill"),
        ("age,chol,sick\n1,2,0\n3,many,0\n", {}, r"line 3, column chol: expected a number, got 'many'"),
        ("age,chol,sick\n1,inf,0\n", {}, r"line 2, column chol: expected a number, got 'inf'"),
        ("age,chol,sick\n1,2,0.5\n", {}, r"line 2, column sick: expected a whole number, got '0\.5'"),
        # an OverflowError left
        ("age,chol,sick\n1,2,1e300\n", {}, r"line 2, column sick: expected a whole number, got '1e\+300'"),
        ("age,chol,sick\n1,2,?\n", {}, r"line 2, column sick: expected a number, got '\?'"),
        ("age,chol,sick\n1,2\n", {}, r"line 2: expected 3 values, got 2"),
        ("age,age,sick\n1,2,0\n", {}, r"a column is named twice: 'age'$"),
        ("age,chol,sick\n1,2,7\n", {}, r"table\.csv, line 2: labels must be 0 to 1 .*, got 7"),
        (
            "age,chol,sick\n1,2,maybe\n",
            {"labels": {"no": 0}},
            r"column sick: expected one of no, got 'maybe'",
        ),
        ("age,chol,sick\n1,2,0\n", {"missing": {"choll": ["0"]}}, r"no column 'choll'"),
        ("age,chol,sick\n", {}, "no training samples in this silo"),
        ("", {}, "expected a header line, the file is empty"),
    ],
)
def test_csv_mistakes_are_named(tmp_path: Path, text: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_csv(tmp_path, text, **fields)


def test_csv_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="line 1, byte 1: not utf-8; data.dialect.encoding names another"):
        load(csv_job(), format="csv", path=file)


def test_csv_needs_a_job_that_declares_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("a,b\n1,0\n")
    with pytest.raises(ConfigError, match="format csv needs columns and label_column"):
        load(make_job(2, (1,)), format="csv", path=file)


HEART = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
HEART += ["slope", "ca", "thal", "num"]


@pytest.mark.parametrize(
    "hospital, patients, sick",
    [("cleveland", 303, 139), ("hungarian", 294, 106), ("switzerland", 123, 115), ("va", 200, 149)],
)
def test_four_real_hospitals_load_with_their_missing_values(hospital: str, patients: int, sick: int) -> None:
    columns = tuple(ColumnSpec(name=name, fill=-1.0) for name in HEART[:-1])
    data = load(
        make_job(2, (13,), columns=columns, label_column="num"),
        format="csv",
        path=shared_folder("heart_disease") / f"processed.{hospital}.data",
        columns_in_file=HEART,
        missing={"chol": ["0"]},
        labels={"0": 0, "1": 1, "2": 1, "3": 1, "4": 1},
        holdout=0.0,
    )
    assert len(data.train) == patients
    assert int(data.train.labels.sum()) == sick
    missing_chol = {"cleveland": 0, "hungarian": 23, "switzerland": 123, "va": 56}
    assert int((data.train.features[:, HEART.index("chol")] == -1).sum()) == missing_chol[hospital]
