"""What an image is called: by its whole relative path, and shorter where that fits one alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from silo_agent.training.data.formats.images.names import Endings, listed
from silo_agent.training.data.formats.scans import ENDINGS
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataFormat, DataSettings
from tests.fuzz.data import PRIVACY
from tests.support.scan_files import write_slice
from tests.unit.data.loading import make_job

PLAIN = Endings(known=(".png", ".jpg", ".jpeg"))
WORDS = ("p0", "p1", "1.2.826.0.1", "1.2.826.0.2", "a.b", "Ä")
FOLDERS = ("", "", "north/", "north/a.b/", "1.2/")


def write_plain(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), gray).save(path, **({"quality": 100} if path.suffix == ".jpg" else {}))


def without_ending(name: str, endings: Endings) -> str:
    return next((name[: -len(each)] for each in endings.known if name.endswith(each)), name)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_names_mean_one_image_or_all_that_they_fit(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    names = {f"{draw.choice(FOLDERS)}{draw.choice(WORDS)}{draw.choice(PLAIN.known)}" for _ in range(12)}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = listed(tmp_path, PLAIN)
    assert set(found.images) == names
    for name in names:
        assert list(found.meant(name)) == [name]
        stem = without_ending(name, PLAIN)
        alike = [each for each in names if without_ending(each, PLAIN) == stem]
        assert sorted(found.meant(stem)) == sorted(alike)
        file = name.rpartition("/")[2]
        if file not in names:
            assert sorted(found.meant(file)) == sorted(each for each in names if each.endswith(f"/{file}"))
    assert list(found.meant("none.png")) == list(found.meant("")) == []


def test_files_and_series_named_by_uid_are_images_of_their_own(tmp_path: Path) -> None:
    """All were read as the last one: a name lost what stood behind its last dot."""
    for kind, shape in (("files", (1, 4, 4)), ("series", (1, 4, 4, 2))):
        lines = ["image,y"]
        for number in range(1, 5):
            name = f"1.2.826.0.1.{number}"
            lines.append(f"{name},{number % 2}")
            place = tmp_path / kind / "images" / name
            if kind == "files":
                write_slice(place, np.full((4, 4), 500 + number))
            else:
                for at in range(2):
                    write_slice(place / f"{at}", np.full((4, 4), 500 + number), place=at)
        (tmp_path / kind / "labels.csv").write_text("\n".join(lines))
        settings = DataSettings(format="dicom", path=tmp_path / kind, holdout=0.0)
        data = load_data(settings, make_job(2, shape, label_column="y"))
        assert data.train.features.mean(axis=tuple(range(1, len(shape) + 1))).tolist() == [2, 4, 6, 8]
        records = records_of(settings)
        assert records is not None
        assert len(set(records.train)) == 4
        found = listed(tmp_path / kind / "images", ENDINGS[DataFormat.DICOM])
        assert not found.meant("1.2.826.0.1")  # what stands behind a dot is no ending


def test_rows_mean_the_file_that_they_name_and_shorter_ones_must_be_unique(tmp_path: Path) -> None:
    """p0.png and p0.jpg were one picture with two labels."""
    for name, gray in (("p0.png", 10), ("p0.jpg", 90), ("sub/p1.png", 30), ("p2.png", 50), ("p3.png", 70)):
        write_plain(tmp_path / "images" / name, gray)
    for name in (".hidden.png", "notes.txt"):
        (tmp_path / "images" / name).touch()
    rows = ("p0.jpg,0", "p0,1", "p1,1", "p2,0", "images/p2.png,0", "p2.png,1")
    (tmp_path / "labels.csv").write_text("image,y\n" + "\n".join(rows))
    settings, problems = DataSettings(format="image-folder", path=tmp_path, holdout=0.0), Problems()
    job = make_job(2, (1, 4, 4), label_column="y")
    data = load_data(settings, job, problems=problems)
    assert np.round(data.train.features[:, 0, 0, 0] * 255).tolist() == [90, 30, 50]
    place, folder = f"{tmp_path}/labels.csv, line", f"{tmp_path}/images"
    assert problems.lines == [
        f"{place} 3: 'p0' may be p0.jpg, p0.png of {folder}: write which",
        f"{place} 6: no image 'images/p2.png' in {folder}",
        f"{place} 7: image p2.png is that of {place} 5, too",
    ]
    assert problems.notes == [
        f"{folder}: 7 found, 5 images, 3 with a line in labels.csv; left out: 1 hidden (.hidden.png), "
        "1 of other endings (notes.txt), 2 without a line in labels.csv (p0.png, p3.png)"
    ]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_another_persons_file_changes_no_record_of_a_private_job(tmp_path: Path, task: str) -> None:
    """p0 meant p0.png until another record brought p0.jpg: one record moved two."""
    is_table = task == "classification"
    for name, gray in (("p0.png", 10), ("p1.png", 30), ("p2.png", 50)):
        write_plain(tmp_path / "images" / name, gray)
    for name in ("p0.bmp", "p1.png", "p2.png"):
        write_plain(tmp_path / "masks" / name, 1)
    (tmp_path / "labels.csv").write_text("image,y\np0,1\np1.png,1\np2.png,0\n")
    settings = DataSettings(format="image-folder", path=tmp_path, holdout=0.0)
    fields: dict[str, Any] = {"label_column": "y"} if is_table else {"task": {"name": "segmentation"}}
    job = make_job(2, (1, 4, 4), privacy=PRIVACY, **fields)

    def grays() -> list[int]:
        return [round(float(each.mean()) * 255) for each in load_data(settings, job).train.features]

    assert grays() == [30, 50], "whole names alone"
    write_plain(tmp_path / "images" / "p0.jpg", 90)
    write_plain(tmp_path / "images" / "p1.jpg", 90)
    assert grays() == [30, 50]
    open_job = make_job(2, (1, 4, 4), **fields)
    (tmp_path / "images" / "p0.jpg").unlink()
    assert len(load_data(settings, open_job, problems=Problems()).train) == 3


def test_a_mask_is_that_of_the_same_path_or_of_the_only_one_of_its_stem(tmp_path: Path) -> None:
    for name in ("a.png", "a.jpg", "b.png", "b.jpg", "sub/c.jpg", "c.jpg"):
        write_plain(tmp_path / "images" / name, 9)
    for name, value in (("a.png", 1), ("b.bmp", 0), ("sub/c.png", 1)):
        write_plain(tmp_path / "masks" / name, value)
    settings, problems = DataSettings(format="image-folder", path=tmp_path, holdout=0.0), Problems()
    data = load_data(settings, make_job(2, (1, 4, 4), task={"name": "segmentation"}), problems=problems)
    assert data.train.labels[:, 0, 0].tolist() == [1, 1]
    told = "which mask is its own is unclear: b.bmp of"
    assert [line.removeprefix(f"{tmp_path}/images/")[:49] for line in problems.lines] == [
        f"a.jpg: no mask of its name in {tmp_path}/masks"[:49],
        f"b.jpg: {told}"[:49],
        f"b.png: {told}"[:49],
        f"c.jpg: no mask of its name in {tmp_path}/masks"[:49],
    ]


def test_a_class_folder_gives_what_lies_in_its_sub_folders_and_says_the_rest(tmp_path: Path) -> None:
    for name in ("ill/p1/0.png", "ill/0.png", "ill/._0.png", "well/0.png"):
        write_plain(tmp_path / name, 9)
    (tmp_path / "list.txt").touch()
    labels, problems = {"ill": 0, "well": 1}, Problems()
    settings = DataSettings(format="image-folder", path=tmp_path, holdout=0.0, labels=labels)
    data = load_data(settings, make_job(2, (1, 4, 4)), problems=problems)
    assert data.train.labels.tolist() == [0, 0, 1]
    assert problems.notes == [
        f"{tmp_path}/ill: 3 found, 2 images, 2 with a class; left out: 1 hidden (._0.png)",
        f"{tmp_path}: left out, in no class folder: list.txt",
    ]
    records = records_of(settings)
    assert records is not None
    assert len(list(records.train)) == 3


def test_a_link_to_a_folder_around_it_ends(tmp_path: Path) -> None:
    (tmp_path / "1.2" / "1.3").mkdir(parents=True)
    (tmp_path / "1.2" / "1.3" / "0").touch()
    (tmp_path / "1.2" / "back").symlink_to(tmp_path)
    (tmp_path / "none").mkdir()
    found = listed(tmp_path, ENDINGS[DataFormat.DICOM])
    assert (list(found.images), found.left_out) == (["1.2/1.3"], {"of empty folders": ["none"]})
