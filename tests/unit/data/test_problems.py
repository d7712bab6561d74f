"""Everything that is wrong with single records is found in one reading; what it means depends on the job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import PrivacySpec, RecordsSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import MAX_LINES, Problems
from silo_agent.training.data.settings import DataSettings
from tests.unit.data.loading import make_job

TABLE = """age,chol,sick
60,250,1
old,many,0
50,200
40,nan,2
30,1e400,maybe
20,100,0.5
"""
FOUND = [
    "line 4: expected 3 values, got 2",
    "line 3, column age: expected a number, got 'old'",
    "line 3, column chol: expected a number, got 'many'",
    "line 6, column chol: expected a number, got '1e400'",
    "line 4, column sick: expected a number, got ''",
    "line 6, column sick: expected a number, got 'maybe'",
    "line 7, column sick: expected a whole number, got '0.5'",
    "line 5: labels must be 0 to 1 (by the job's task and classes), got 2",
]
COLUMNS = (ColumnSpec(name="age"), ColumnSpec(name="chol", fill=200))
RECORDS = RecordsSpec(clip_norm=1.0, noise_multiplier=1.0, sample_rate=0.5)


def table_job(*, is_private: bool = False) -> JobSpec:
    privacy = PrivacySpec(epsilon=1.0, records=RECORDS) if is_private else None
    return make_job(2, (2,), columns=COLUMNS, label_column="sick", privacy=privacy)


@pytest.mark.parametrize("is_private", [False, True])
def test_every_bad_cell_of_a_table_is_found_with_its_place(tmp_path: Path, is_private: bool) -> None:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    problems = Problems()
    settings = DataSettings(format="csv", path=file, holdout=0.0)
    data = load_data(settings, table_job(is_private=is_private), problems=problems)
    assert problems.lines == [f"{file}, {line}" for line in FOUND]
    assert len(data.train) == 2, "records without a usable label are left out, the others put right"


def test_without_privacy_the_first_problem_refuses_and_says_how_to_see_all(
    tmp_path: Path,
) -> None:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    with pytest.raises(ConfigError, match=r"line 4: expected 3 values, got 2 \(the first .*silo check"):
        load_data(DataSettings(format="csv", path=file), table_job())


def test_every_unreadable_image_is_found(tmp_path: Path) -> None:
    for place in range(2):
        folder = tmp_path / f"class-{place}"
        folder.mkdir()
        Image.new("L", (4, 4)).save(folder / "fine.png")
        (folder / "cut.png").write_bytes((folder / "fine.png").read_bytes()[:30])
    problems = Problems()
    data = load_data(
        DataSettings(format="image-folder", path=tmp_path, holdout=0.0),
        make_job(["class-0", "class-1"], (1, 4, 4)),
        problems=problems,
    )
    assert [line.split(": ")[0] for line in problems.lines] == [
        str(tmp_path / f"class-{place}" / "cut.png") for place in range(2)
    ]
    assert len(data.train) == 2


def test_records_of_arrays_are_named_by_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "arrays.npz"
    features = np.zeros((5, 2), np.float32)
    features[1, 0], features[3, 1] = np.nan, np.inf
    np.savez(file, x_train=features, y_train=[0, 1, 2, 1, 0], x_test=features, y_test=[0, 1, 0, 1, -3])
    problems = Problems()
    load_data(DataSettings(format="npz", path=file), make_job(2, (2,)), problems=problems)
    features_told = "features hold NaN or infinity, expected finite numbers"
    labels_told = "labels must be 0 to 1 (by the job's task and classes)"
    assert problems.lines == [
        f"record 1: {features_told}",
        f"record 2: {labels_told}, got 2",
        f"record 3: {features_told}",
        f"test record 1: {features_told}",
        f"test record 3: {features_told}",
        f"test record 4: {labels_told}, got -3",
    ]


def test_of_a_file_of_nothing_but_mistakes_some_lines_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    rows = [f"x{row},y{row},z{row}\n" for row in range(MAX_LINES)]
    file.write_text("".join(["age,chol,sick\n", *rows]))
    problems = Problems()
    load_data(DataSettings(format="csv", path=file), table_job(), problems=problems)
    assert (len(problems.lines), problems.count) == (MAX_LINES, 3 * MAX_LINES)
    assert problems.unlisted == 2 * MAX_LINES


def test_the_same_mistake_in_a_column_is_one_line_with_its_count_and_first_place(tmp_path: Path) -> None:
    """A category that the job lacked was a line for each of 153 rows, and a label beyond its classes too."""
    file = tmp_path / "table.csv"
    file.write_text("age,smoker,sick\n" + "60,yes,0\n60,no,0\n60,never,2\n" * 50 + "60,no,1\n")
    columns = (ColumnSpec(name="age"), ColumnSpec(name="smoker", categories=("yes",)))
    job = make_job(2, (2,), columns=columns, label_column="sick")
    settings, problems = DataSettings(format="csv", path=file), Problems()
    load_data(settings, job, problems=problems)
    expected = "column smoker: expected one of yes, got"
    assert problems.lines == [
        f"{file}, line 3, {expected} 'no', and 50 more like it",
        f"{file}, line 4, {expected} 'never', and 49 more like it",
        f"{file}, line 4: labels must be 0 to 1 (by the job's task and classes), got 2, and 49 more like it",
    ]
    assert (problems.count, problems.unlisted) == (151, 0)
    twice = Problems()
    for _ in range(2):
        twice.take(problems)
    assert (twice.count, twice.lines[0]) == (302, f"{file}, line 3, {expected} 'no', and 101 more like it")
    with pytest.raises(ConfigError, match=r"line 3, .* got 'no' \(the first of several"):
        load_data(settings, job)
