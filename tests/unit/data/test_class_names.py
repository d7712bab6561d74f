"""Classes by the job's names: the same number at every silo, whatever its folders and texts are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataSettings, SettingsFault
from tests.support.class_folders import write_folders
from tests.support.soak import examples
from tests.unit.data.loading import load, make_job
from tests.unit.data.test_private_loading import PRIVATE

NAMES = ("healthy", "pneumonia")
FOLDER_NAMES = st.text("abXY09 -_.äß中", min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and not name.startswith(".")
)


def folder_job(names: Sequence[str] | int = NAMES, *, is_private: bool = False) -> JobSpec:
    return make_job(names, (1, 2, 2), privacy=PRIVATE if is_private else None)


def load_folders(root: Path, job: JobSpec, **fields: Any) -> list[tuple[int, int]]:
    """Gray value and class of each image."""
    data = load(job, format="image-folder", path=root, holdout=0.0, **fields)
    assert len(data.holdout) == 0
    grays = np.rint(data.train.features[:, 0, 0, 0] * 255).astype(int)
    return sorted(zip(grays.tolist(), data.train.labels.tolist(), strict=True))


@examples(25)
@given(st.lists(FOLDER_NAMES, min_size=2, max_size=5, unique=True), st.data())
def test_folders_have_the_jobs_numbers_whichever_a_silo_has(names: list[str], data: st.DataObject) -> None:
    # a class had the number of its folder's place among the silo's own
    here = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    with tempfile.TemporaryDirectory() as folder:
        root = write_folders(Path(folder) / "root", {name: [10 * names.index(name)] for name in here})
        expected = sorted((10 * names.index(name), names.index(name)) for name in here)
        assert load_folders(root, folder_job(names)) == expected
        assert load_folders(root, folder_job(names, is_private=True)) == expected


def test_a_folder_that_is_no_class_is_refused_and_left_out_of_a_private_job(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "south", {"healthy": [1, 2], "infiltrate": [3, 4], "pneumonia": [5]})
    refused = r"/infiltrate/0.png: folder 'infiltrate' is none of the job's classes healthy, pneumonia \(the"
    with pytest.raises(ConfigError, match=refused):
        load_folders(root, folder_job())
    assert load_folders(root, folder_job(is_private=True)) == [(1, 0), (2, 0), (5, 1)]
    settings, problems = DataSettings(format="image-folder", path=root, holdout=0.0), Problems()
    load_data(settings, folder_job(), problems=problems)
    assert problems.count == 2
    assert [line.split(": ")[1] for line in problems.lines] == [
        "folder 'infiltrate' is none of the job's classes healthy, pneumonia, and 1 more like it"
    ]
    assert len([*records_of(settings).train]) == 5, "a private job's account counts all of them"


def test_hidden_folders_and_files_are_no_class(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "root", {"healthy": [1], "pneumonia": [2], ".cache": [3]})
    (root / "notes.txt").write_text("not an image")
    (root / "healthy.png").write_bytes((root / "healthy" / "0.png").read_bytes())
    assert load_folders(root, folder_job()) == [(1, 0), (2, 1)]
    settings = DataSettings(format="image-folder", path=root)
    assert len([*records_of(settings).train]) == 2


def test_the_silo_says_what_its_folders_are_called_and_which_are_left_out(tmp_path: Path) -> None:
    root = write_folders(
        tmp_path / "root", {"gesund": [1], "pneumonia": [2], "krank": [3], "unknown": [4] * 3}
    )
    fields: dict[str, Any] = {"labels": {"gesund": "healthy", "krank": "pneumonia"}, "drop": ["unknown"]}
    assert load_folders(root, folder_job(), **fields) == [(1, 0), (2, 1), (3, 1)]
    problems = Problems()
    settings = DataSettings(format="image-folder", path=root, holdout=0.0, **fields)
    load_data(settings, folder_job(), problems=problems)
    assert (problems.count, dict(problems.dropped)) == (0, {"unknown": 3})


@pytest.mark.parametrize("is_private", [False, True])
def test_a_job_that_names_no_classes_is_refused_for_folders(tmp_path: Path, is_private: bool) -> None:
    root = write_folders(tmp_path / "root", {"healthy": [1], "pneumonia": [2]})
    message = r"classes: format image-folder needs the name of each class, such as .*; the job says 2"
    with pytest.raises(ConfigError, match=message):
        load_folders(root, folder_job(2, is_private=is_private))
    if not is_private:  # else the hold-out takes some
        numbered = {"labels": {"healthy": 1, "pneumonia": 0}}
        assert load_folders(root, folder_job(2), **numbered) == [(1, 1), (2, 0)]


# tables

ROWS = [(30, "gesund"), (40, "healthy"), (50, "pneumonia"), (60, "unknown")]
TEXTS = [text for _, text in ROWS]
OWN: dict[str, Any] = {"labels": {"gesund": "healthy"}, "drop": ["unknown"]}


def table_job(names: Sequence[str] | int = NAMES, *, is_private: bool = False, **fields: Any) -> JobSpec:
    columns = (ColumnSpec(name="age"),)
    privacy = PRIVATE if is_private else None
    return make_job(names, (1,), columns=columns, label_column="state", privacy=privacy, **fields)


def table(folder: Path, kind: str, rows: Sequence[tuple[int, Any]], **fields: Any) -> DataSettings:
    path = folder / f"table.{kind}"
    if kind == "csv":
        path.write_text("\n".join(["age,state", *(f"{age},{state}" for age, state in rows)]) + "\n")
    else:
        ages, states = (pyarrow.array(list(column)) for column in zip(*rows, strict=True))
        parquet.write_table(pyarrow.table([ages, states], names=["age", "state"]), path)
    return DataSettings(format=kind, path=path, holdout=0.0, **fields)


def pairs(settings: DataSettings, job: JobSpec, problems: Problems | None = None) -> list[tuple[int, int]]:
    train = load_data(settings, job, problems=problems).train
    return sorted(
        (int(age), int(label)) for age, label in zip(train.features[:, 0], train.labels, strict=True)
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_of_a_table_are_the_jobs_names_the_silos_own_or_left_out(tmp_path: Path, kind: str) -> None:
    settings, problems = table(tmp_path, kind, ROWS, **OWN), Problems()
    assert pairs(settings, table_job(), problems) == [(30, 0), (40, 0), (50, 1)]
    assert (problems.count, dict(problems.dropped)) == (0, {"unknown": 1})
    assert pairs(settings, table_job(is_private=True)) == [(30, 0), (40, 0), (50, 1)]
    assert pairs(settings, table_job(NAMES[::-1])) == [(30, 1), (40, 1), (50, 0)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("rows", "fields", "text"),
    [
        (ROWS, {"labels": {"gesund": "healthy"}}, "unknown"),
        ([*ROWS[1:3], (70, "HEALTHY")], {}, "HEALTHY"),
        ([(30, 0), (40, 1), (50, 1)], {}, "0"),
    ],
)
def test_another_text_or_a_number_is_refused_and_left_out_of_a_private_job(
    tmp_path: Path, kind: str, rows: list[tuple[int, Any]], fields: dict[str, Any], text: str
) -> None:
    settings = table(tmp_path, kind, rows, **fields)
    with pytest.raises(
        ConfigError, match=f"column state: expected one of healthy, pneumonia.*, got '{text}'"
    ):
        load_data(settings, table_job())
    known = [each for each in rows if each[1] in ("gesund", *NAMES)]
    assert len(pairs(settings, table_job(is_private=True))) == len(known)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_of_a_table_are_named_by_the_silo(tmp_path: Path, kind: str) -> None:
    settings = table(
        tmp_path, kind, [(30, 0), (40, 1), (50, 9)], labels={"0": "pneumonia", "1": "healthy"}, drop=["9"]
    )
    assert pairs(settings, table_job()) == [(30, 1), (40, 0)]


def test_records_that_are_dropped_are_so_whatever_else_is_wrong_with_them(tmp_path: Path) -> None:
    settings = table(tmp_path, "csv", [*ROWS, ("none", "unknown"), (70, "well")], **OWN)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"table.csv, line 7, column state: expected one of .*'well'"):
        load_data(settings, table_job())


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (
            NAMES,
            {"gesund": "helthy"},
            "gesund: expected one of the job's classes healthy, pneumonia, got 'helthy'",
        ),
        (NAMES, {"gesund": 0}, "gesund: expected one of the job's classes healthy, pneumonia, got 0"),
        (2, {"gesund": "healthy"}, "gesund: expected a number: no names are in the job, got 'healthy'"),
    ],
)
def test_labels_that_are_not_of_the_job_are_a_fault_of_the_settings(
    tmp_path: Path, names: Sequence[str] | int, labels: dict[str, Any], message: str
) -> None:
    for rows in (ROWS, ROWS[1:3]):
        with pytest.raises(SettingsFault, match=f"data.labels: {message}"):
            load_data(table(tmp_path, "csv", rows, labels=labels), table_job(names))


def test_images_of_a_table_are_mapped_as_its_texts(tmp_path: Path) -> None:
    write_folders(tmp_path, {"images": [1, 2, 3]})
    (tmp_path / "labels.csv").write_text("image,state\n0.png,pneumonia\n1.png,gesund\n2.png,unknown\n")
    job = make_job(NAMES, (1, 2, 2), label_column="state")
    assert load_folders(tmp_path, job, **OWN) == [(1, 1), (2, 0)]


def test_columns_of_several_labels_have_names_and_hold_numbers(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,fever,cough\n40,yes,no\n50,no,no\n")
    columns, labels = (ColumnSpec(name="age"),), ("fever", "cough")
    job = make_job(labels, (1,), columns=columns, label_column=labels, task={"name": "multi-label"})
    settings = {"format": "csv", "path": tmp_path / "table.csv", "holdout": 0.0}
    data = load(job, **settings, labels={"yes": 1, "no": 0})
    assert data.train.labels.tolist() == [[1, 0], [0, 0]]
    with pytest.raises(SettingsFault, match="yes: expected a number"):
        load(job, **settings, labels={"yes": "fever", "no": 0})


@pytest.mark.parametrize("field", [{"labels": {"0": "healthy"}}, {"drop": ["unknown"]}])
def test_a_format_without_texts_takes_no_names_of_them(field: dict[str, Any]) -> None:
    # they were accepted and ignored
    with pytest.raises(ValueError, match="not allowed with format digits, only with csv, parquet"):
        DataSettings(format="digits", **field)
