"""DICOM, NIfTI and plain images with masks or a table of labels beside them; every file is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from tests.fuzz.data import PRIVACY
from tests.support.scan_files import write_nifti, write_slice
from tests.unit.data.loading import load, make_job

SEGMENTATION = {"task": {"name": "segmentation"}}


def volume_job(*shape: int, classes: int = 3, **fields: Any) -> JobSpec:
    return make_job(classes, shape, **fields)


def test_a_volume_and_its_mask_are_turned_and_resized_alike(tmp_path: Path) -> None:
    volume = np.zeros((4, 6, 2), np.int16)
    volume[0, 0, 0] = 100  # right and anterior, once it is turned: the last of both
    mask = (volume > 50).astype(np.uint8) * 2
    for name in ("a", "b"):
        write_nifti(tmp_path / "images" / f"{name}.nii.gz", volume)
        write_nifti(tmp_path / "masks" / f"{name}.nii.gz", mask)
    data = load(volume_job(1, 4, 6, 2, **SEGMENTATION), format="nifti", path=tmp_path, holdout=0.0)
    assert data.train.features.shape == (2, 1, 4, 6, 2)
    assert data.train.features.dtype == np.float32
    assert np.unravel_index(int(data.train.features[0, 0].argmax()), (4, 6, 2)) == (3, 5, 0)
    assert np.argwhere(data.train.labels[0]).tolist() == [[3, 5, 0]]
    small = load(volume_job(1, 2, 3, 2, **SEGMENTATION), format="nifti", path=tmp_path, holdout=0.0)
    assert set(np.unique(small.train.labels).tolist()) <= {0, 2}  # no mean of two classes


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_table_labels_dicom_slices_and_series_in_hounsfield_units(dimensions: int, tmp_path: Path) -> None:
    pixels = np.arange(12).reshape(3, 4) + 500
    for name in ("one", "two"):
        if dimensions == 2:
            write_slice(tmp_path / "images" / f"{name}.dcm", pixels)
        else:
            for place in range(3):
                write_slice(tmp_path / "images" / name / f"{place}.dcm", pixels + 100 * place, place=place)
    ending = ".dcm" if dimensions == 2 else ""
    (tmp_path / "labels.csv").write_text(f"image,age,sick\ntwo{ending},50,yes\none{ending},60,no\n")
    shape = (1, 3, 4) if dimensions == 2 else (1, 4, 3, 3)
    job = volume_job(*shape, classes=2, label_column="sick")
    data = load(job, format="dicom", path=tmp_path, holdout=0.0, labels={"no": 0, "yes": 1})
    assert data.train.labels.tolist() == [1, 0]
    units = 2.0 * pixels - 1000
    if dimensions == 2:
        assert data.train.features[0, 0].tolist() == units.tolist()
    else:  # x and y run to the left and to the back in a file, z upwards
        expected = np.stack([units.T[::-1, ::-1] + 200 * place for place in range(3)], axis=-1)
        assert data.train.features[0, 0].tolist() == expected.tolist()


def test_plain_images_have_masks_or_labels_of_several_columns_beside_them(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.full((4, 6, 3), 255, np.uint8)).save(tmp_path / "images" / f"{name}.png")
        mask = Image.fromarray(np.eye(4, 6, dtype=np.uint8))
        mask.putpalette([0, 0, 0, 255, 0, 0])
        mask.save(tmp_path / "masks" / f"{name}.png")
    data = load(volume_job(3, 4, 6, **SEGMENTATION), format="image-folder", path=tmp_path, holdout=0.0)
    assert (data.train.features.shape, data.train.features.max()) == ((2, 3, 4, 6), 1.0)
    assert data.train.labels[1].tolist() == np.eye(4, 6).tolist()
    (tmp_path / "labels.csv").write_text("image,l0,l1,l2\na.png,1,0,1\nb.png,0,0,1\n")
    job = volume_job(1, 4, 6, label_column="l0..l2", task={"name": "multi-label"})
    data = load(job, format="image-folder", path=tmp_path, holdout=0.0)
    assert data.train.labels.tolist() == [[1, 0, 1], [0, 0, 1]]


def test_each_image_that_cannot_be_used_is_named_and_left_out_alone(tmp_path: Path) -> None:
    for name in "abcd":
        write_nifti(tmp_path / "images" / f"{name}.nii", np.zeros((4, 4, 4), np.int16))
        write_nifti(tmp_path / "masks" / f"{name}.nii", np.zeros((4, 4, 4), np.uint8))
    (tmp_path / "images" / "b.nii").write_bytes(b"none")
    write_nifti(tmp_path / "images" / "c.nii", np.zeros((4, 4, 4, 2), np.int16))
    (tmp_path / "masks" / "d.nii").unlink()
    settings, problems = DataSettings(format="nifti", path=tmp_path, holdout=0.0), Problems()
    job = volume_job(1, 4, 4, 4, **SEGMENTATION)
    data = load_data(settings, job, problems=problems)
    assert [line.removeprefix(f"{tmp_path}/images/") for line in problems.lines] == [
        f"d.nii: no mask of its name in {tmp_path}/masks",
        "b.nii: not a readable image (no header of NIfTI)",
        "c.nii: an image has shape (2, 4, 4, 4), expected (1, 4, 4, 4)",
    ]
    assert len(data.train) == 1
    with pytest.raises(ConfigError, match="d.nii: no mask of its name"):
        load_data(settings, job)
    private = load_data(settings, job.model_copy(update={"privacy": PRIVACY}))
    assert len(private.train) == 1


def test_what_a_decoder_raises_is_told_with_its_type_and_text(tmp_path: Path) -> None:
    """`not a readable image` was all."""
    for name in ("a", "b"):
        data = bytes(8) if name == "a" else bytes(24)
        write_slice(tmp_path / "images" / name, np.zeros((3, 4)), PixelData=data)
    (tmp_path / "labels.csv").write_text("image,y\na,0\nb,1\n")
    settings = DataSettings(format="dicom", path=tmp_path, holdout=0.0)
    job = volume_job(1, 3, 4, classes=2, label_column="y")
    with pytest.raises(
        ConfigError, match=r"images/a: not a readable image \(ValueError: .*less than expected"
    ):
        load_data(settings, job)
    assert len(load_data(settings, job.model_copy(update={"privacy": PRIVACY})).train) == 1


@pytest.mark.parametrize(
    "fields, shape, message",
    [
        (
            {},
            (1, 4, 4, 4),
            "label_column: format nifti needs the heading of the label in labels.csv, or",
        ),
        ({"label_column": "sick"}, (1, 4, 4, 4), "labels.csv: No such file"),
        ({"label_column": "sick"}, (16,), r"input_shape: format nifti expects \(channels, x, y\)"),
        (SEGMENTATION, (1, 4, 4, 4), "data.path: .*/images is not a folder"),
    ],
)
def test_folders_that_do_not_fit_the_job_are_one_sentence(
    fields: dict[str, Any], shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(make_job(2, shape, **fields), format="nifti", path=tmp_path)


def test_a_tag_of_dicom_says_whose_a_slice_is(tmp_path: Path) -> None:
    lines = ["image,sick"]
    for place in range(6):
        write_slice(tmp_path / "images" / f"{place}.dcm", np.full((3, 4), 500 + place), series=str(place % 3))
        lines.append(f"{place}.dcm,{place % 2}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    job = make_job(2, (1, 3, 4), privacy=PRIVACY, label_column="sick")
    fields: dict[str, Any] = {"format": "dicom", "path": tmp_path, "holdout": 0.0}
    data = load(job, **fields, unit="SeriesInstanceUID")
    values = (data.train.features[:, 0, 0, 0] // 2).astype(int) % 3
    assert data.train.units.sizes_U.tolist() == [2, 2, 2]
    assert all(values[2 * unit] == values[2 * unit + 1] for unit in range(3))
    with pytest.raises(ConfigError, match="data.unit: patient is no keyword of DICOM, such as PatientID"):
        load(job, **fields, unit="patient")
