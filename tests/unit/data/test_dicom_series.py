"""A series as a volume: the same one, whatever way its slices are stored, and no file that is none of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images import nifti
from silo_agent.training.data.formats.images.series import read
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from tests.support.scan_files import write_nifti, write_slice
from tests.unit.data.loading import make_job

SPACING_MM = (2.0, 0.5, 3.0)  # of x, y and z


def write_volume(
    folder: Path, volume_XYZ: Any, axes: tuple[int, ...], signs: Any, rng: Any, **tags: Any
) -> None:
    """As slices whose columns, rows and order run along those axes of (right, anterior, superior)."""
    stored = np.flip(volume_XYZ.transpose(axes), [at for at in range(3) if signs[at] < 0])
    directions = np.zeros((3, 3))
    for at, axis in enumerate(axes):
        directions[at, axis] = signs[at] * SPACING_MM[axis]
    corner = np.array([0.0, 0.0, 0.0])
    for at, axis in enumerate(axes):
        if signs[at] < 0:
            corner[axis] = SPACING_MM[axis] * (volume_XYZ.shape[axis] - 1)
    to_lps = np.array([-1.0, -1.0, 1.0])
    row, column, step = (directions[at] * to_lps for at in range(3))
    names = rng.permutation(stored.shape[2])
    for at in range(stored.shape[2]):
        place = corner * to_lps + step * at
        fields = {
            "ImagePositionPatient": [round(float(each), 6) for each in place],
            "ImageOrientationPatient": [
                float(each) for each in (*row / np.linalg.norm(row), *column / np.linalg.norm(column))
            ],
            "PixelSpacing": [float(np.linalg.norm(column)), float(np.linalg.norm(row))],
            "InstanceNumber": int(names[at]) + 1,  # which says nothing beside positions
        }
        write_slice(folder / f"{names[at]}", stored[:, :, at].T, **fields | tags)


@pytest.mark.parametrize("seed", range(8))
def test_a_volume_is_the_same_whatever_way_it_was_cut(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    volume = rng.integers(500, 3000, (4, 5, 6))
    axes = [*itertools.permutations(range(3))][seed % 6]
    write_volume(tmp_path / "a", volume, axes, rng.choice([-1, 1], 3), rng)
    found = read(tmp_path / "a", (4, 5, 6), False, channels=1, scans=ScanSpec())
    assert np.array_equal(found.values[0], 2 * volume - 1000)
    assert found.grid.affine is not None
    np.testing.assert_allclose(found.grid.affine, np.diag([*SPACING_MM, 1.0]), atol=1e-5)


def write_four(folder: Path, changes: dict[int, dict[str, Any]], **tags: Any) -> None:
    for at in range(4):
        fields = {"ImagePositionPatient": [0, 0, 2 * at]} | tags | changes.get(at, {})
        pixels = np.full(fields.pop("shape", (3, 3)), 500 + at)
        write_slice(folder / f"{at}", pixels, place=at, **fields)


UNPLACED: dict[str, Any] = {"ImagePositionPatient": None}


@pytest.mark.parametrize(
    "changes, tags, message",
    [
        (
            {2: {"ImagePositionPatient": [0, 0, 4.5]}},
            {},
            r"2: 2\.500 mm from 1, the other .* 2\.000 mm",
        ),
        ({3: {"ImagePositionPatient": [0, 0, 8]}}, {}, r"3: 4\.000 mm from 2, the other"),
        ({3: {"ImagePositionPatient": [0, 0, 4]}}, {}, "3: at the same position as 2"),
        (
            {at: {"ImagePositionPatient": [0, at, 2 * at]} for at in range(4)},
            {},
            r"1: 1\.000 mm beside the",
        ),
        ({1: {"SeriesInstanceUID": "9.9"}}, {}, r"1: SeriesInstanceUID 9\.9, the other slices .* 1\.2\.3"),
        ({0: {"shape": (5, 3)}}, {}, "0: 5 x 3 pixels, the other slices of its series have 3 x 3 pixels"),
        ({0: {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}}, {}, "0: a scout .* have no scout"),
        (
            {0: {"ImageOrientationPatient": [0, 1, 0, 0, 0, 1]}},
            {},
            r"0: ImageOrientationPatient \[0\.0, ",
        ),
        ({2: {"PixelSpacing": [2, 2]}}, {}, r"2: PixelSpacing \[2\.0, 2\.0\], the other"),
        ({2: {"AcquisitionNumber": 2}}, {"AcquisitionNumber": 1}, "2: AcquisitionNumber 2, the other"),
        (
            {},
            {"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]},
            "0: ImageOrientationPatient is .*two direct",
        ),
        ({1: UNPLACED}, {}, "1: tag ImagePositionPatient is missing"),
        ({1: {"InstanceNumber": None}}, UNPLACED, "1: neither ImagePositionPatient nor InstanceNumber"),
        ({1: {"InstanceNumber": 3}}, UNPLACED, "2: InstanceNumber 3 is that of 1, too"),
        ({3: {"InstanceNumber": 5}}, UNPLACED, "3: InstanceNumber 5 follows 3: a slice is missing"),
    ],
)
def test_a_file_that_is_none_of_the_volume_is_refused_by_its_name(
    changes: dict[int, dict[str, Any]], tags: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_four(tmp_path / "a", changes, **tags)
    with pytest.raises(ConfigError, match=f"a/{message}"):
        read(tmp_path / "a", (3, 3, 4), False, channels=1, scans=ScanSpec())


def test_slices_without_positions_go_by_their_numbers_alone(tmp_path: Path) -> None:
    write_four(tmp_path / "a", {at: {"InstanceNumber": 9 - 2 * at} for at in range(4)}, **UNPLACED)
    found = read(tmp_path / "a", (3, 3, 4), False, channels=1, scans=ScanSpec())
    assert found.values[0, 0, 0].tolist() == [6, 4, 2, 0]
    write_four(tmp_path / "half", {at: {"InstanceNumber": None} for at in (1, 3)})  # positions say it
    half = read(tmp_path / "half", (3, 3, 4), False, channels=1, scans=ScanSpec())
    assert half.values[0, 0, 0].tolist() == [0, 2, 4, 6]
    (tmp_path / "half" / "notes").write_text("no image")
    with pytest.raises(ConfigError, match="half/notes: not a readable image .no DICOM file"):
        read(tmp_path / "half", (3, 3, 4), False, channels=1, scans=ScanSpec())


@pytest.mark.parametrize("form", ["nifti", "dicom"])
def test_a_mask_in_another_grid_is_refused_and_one_stored_another_way_is_not(
    form: str, tmp_path: Path
) -> None:
    rng, volume = np.random.default_rng(5), np.zeros((4, 5, 6), np.int16)
    mask = rng.integers(0, 2, volume.shape)
    shifted = np.diag([*SPACING_MM, 1.0])
    shifted[2, 3] = 1.5

    def write(kind: str, name: str, values: Any, *, is_flipped: bool = False, affine: Any = None) -> None:
        if form == "dicom":
            tags = {"RescaleSlope": None, "RescaleIntercept": None}
            signs = [-1, -1, -1] if is_flipped else [1, 1, 1]
            write_volume(tmp_path / kind / name, values, (0, 1, 2), signs, rng, **tags)
            return
        made = np.diag([*SPACING_MM, 1.0]) if affine is None else affine
        if is_flipped:
            values, made = values[::-1], made @ np.diag([-1.0, 1, 1, 1])
            made[0, 3] = SPACING_MM[0] * 3
        write_nifti(tmp_path / kind / f"{name}.nii", values.astype(np.int16), made)

    for name in ("a", "b"):
        write("images", name, volume)
    write("masks", "a", mask, is_flipped=True)
    write("masks", "b", mask[:, :, :5])
    settings = DataSettings(format=form, path=tmp_path, holdout=0.0)
    job = make_job(2, (1, *volume.shape), task={"name": "segmentation"})
    with pytest.raises(ConfigError, match=r"b.*: a mask of size \(4, 5, 5\), expected .* \(4, 5, 6\)"):
        load_data(settings, job)
    if form == "nifti":
        write("masks", "b", mask, affine=shifted)
        with pytest.raises(ConfigError, match="masks/b.nii: a mask in another grid than its image"):
            load_data(settings, job)
        write("masks", "b", mask)
        data = load_data(settings, job)
        assert np.array_equal(data.train.labels[0], mask)


def test_nifti_takes_sform_then_qform_and_is_refused_without_both(tmp_path: Path) -> None:
    import nibabel

    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    flipped = np.diag([-1.0, 1.0, 1.0, 1.0])
    for name, (sform, qform), expected in (
        ("s", (1, 1), values[::-1]),
        ("q", (0, 1), values),
        ("none", (0, 0), None),
    ):
        image = nibabel.Nifti1Image(values, np.eye(4))
        image.set_sform(flipped, sform)
        image.set_qform(np.eye(4), qform)
        nibabel.save(image, tmp_path / f"{name}.nii")
        if expected is None:
            with pytest.raises(ConfigError, match="none.nii: neither sform_code nor qform_code"):
                nifti.read(tmp_path / "none.nii", (2, 3, 4), False, scans=ScanSpec())
        else:
            assert np.array_equal(
                nifti.read(tmp_path / f"{name}.nii", (2, 3, 4), False, scans=ScanSpec()).values[0], expected
            )


def test_files_that_nibabel_ships_are_read_or_refused_with_the_cause() -> None:
    import nibabel

    became = {}
    for file in sorted((Path(nibabel.__file__).parent / "tests" / "data").glob("*.nii*")):
        try:
            became[file.name] = nifti.read(file, (4, 4, 4), False, scans=ScanSpec()).values.shape[0]
        except ConfigError as error:
            became[file.name] = str(error)
    assert became.pop("row_major.dconn.nii").endswith(
        "neither sform_code nor qform_code says how its axes lie"
    )
    assert became == {
        "anatomical.nii": 1,
        "example4d.nii.gz": 2,
        "example_nifti2.nii.gz": 2,
        "functional.nii": 20,
        "reoriented_anat_moved.nii": 1,
        "resampled_anat_moved.nii": 1,
        "standard.nii.gz": 1,
    }
