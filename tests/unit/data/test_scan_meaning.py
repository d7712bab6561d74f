"""What a job says of scans: values as shown or of the modality, their unit and range, and the grid.

Expected values follow from the standard's formulas and from where a point lies in millimeters.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from pydantic import ValidationError

from chorale.spec.samples.scan_specs import GridSpec, ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images import nifti, series
from silo_agent.training.data.formats.images.grids import back
from tests.support.scan_files import write_nifti, write_slice
from tests.unit.data.loading import load, make_job
from tests.unit.data.test_dicom_series import SPACING_MM, write_volume

SHOWN = ScanSpec(values="voi")
RADIOGRAPH: dict[str, Any] = {
    "Modality": "DX",
    "RescaleSlope": None,
    "RescaleIntercept": None,
    "BitsStored": 12,
    "HighBit": 11,
}
WINDOW = {"WindowCenter": 1000.0, "WindowWidth": 800.0}
PIXELS = np.array([[0, 100, 900, 1000], [1001, 1500, 2000, 4095]])


def shown(path: Path, scans: ScanSpec = SHOWN) -> Any:
    return series.read(path, PIXELS.shape, False, channels=1, scans=scans).values[0]


def linear(pixels: Any, center: float, width: float) -> Any:
    return np.clip((pixels - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


def exact(pixels: Any, center: float, width: float) -> Any:
    return np.clip((pixels - center) / width + 0.5, 0, 1)


def sigmoid(pixels: Any, center: float, width: float) -> Any:
    return 1 / (1 + np.exp(-4 * (pixels - center) / width))


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    "function, formula",
    [(None, linear), ("LINEAR", linear), ("LINEAR_EXACT", exact), ("SIGMOID", sigmoid)],
)
def test_a_window_shows_black_as_0_and_white_as_1(
    function: str | None, formula: Any, photometric: str, tmp_path: Path
) -> None:
    tags = RADIOGRAPH | WINDOW | {"PhotometricInterpretation": photometric}
    if function is not None:
        tags["VOILUTFunction"] = function
    write_slice(tmp_path / "a", PIXELS, **tags)
    expected = formula(PIXELS, 1000.0, 800.0)
    np.testing.assert_allclose(
        shown(tmp_path / "a"), 1 - expected if photometric == "MONOCHROME1" else expected, atol=1e-6
    )


def test_bits_of_the_detector_and_a_rescale_change_nothing_of_what_is_shown(tmp_path: Path) -> None:
    write_slice(tmp_path / "a", PIXELS, **RADIOGRAPH | WINDOW)
    write_slice(tmp_path / "b", PIXELS, **RADIOGRAPH | WINDOW | {"BitsStored": 16, "HighBit": 15})
    scaled = {"RescaleSlope": 2.0, "RescaleIntercept": -10.0}
    double = {"WindowCenter": 1989.5, "WindowWidth": 1599.0}  # twice center - 0.5 and width - 1
    write_slice(tmp_path / "c", PIXELS, **RADIOGRAPH | double | scaled)
    for name in "bc":
        np.testing.assert_allclose(shown(tmp_path / name), shown(tmp_path / "a"), atol=1e-6)


def test_a_table_comes_before_a_window(tmp_path: Path) -> None:
    from pydicom.dataset import Dataset

    table = Dataset()
    table.LUTDescriptor = [4, 100, 10]  # of the pixels 100 to 103, 10 bits
    table.LUTData = np.array([0, 255, 511, 1023], np.uint16).tobytes()
    tags = RADIOGRAPH | {"WindowCenter": 5.0, "WindowWidth": 10.0, "VOILUTSequence": [table]}
    write_slice(tmp_path / "a", np.array([[0, 100, 101, 102], [103, 104, 200, 4095]]), **tags)
    expected = np.array([[0, 0, 255, 511], [1023, 1023, 1023, 1023]]) / 1023
    np.testing.assert_allclose(shown(tmp_path / "a"), expected, atol=1e-6)


@pytest.mark.parametrize(
    "tags, scans, message",
    [
        (RADIOGRAPH, SHOWN, "neither VOILUTSequence nor WindowCenter, which scans.values voi needs"),
        ({}, SHOWN, "modality CT: its windows are what somebody liked, expected scans.values modality"),
        ({"Modality": "MR"}, SHOWN, "modality MR: its windows"),
        ({"RescaleType": "OD"}, ScanSpec(), "values in OD, the job does not state a unit"),
        ({"Modality": "PT", "Units": "BQML"}, ScanSpec(), "values in BQML, the job does not state a unit"),
        ({"Modality": "PT", "Units": "GML"}, ScanSpec(unit="BQML"), "in GML, the job has scans.unit BQML"),
        ({"Modality": "MR"}, ScanSpec(unit="ms"), "values in US, the job has scans.unit ms"),
        ({"RescaleType": "US"}, ScanSpec(unit="HU"), "values in US, the job has scans.unit HU"),
    ],
)
def test_values_that_mean_something_else_are_refused(
    tags: dict[str, Any], scans: ScanSpec, message: str, tmp_path: Path
) -> None:
    write_slice(tmp_path / "a", PIXELS, **tags)
    with pytest.raises(ConfigError, match=f"a: .*{message}"):
        shown(tmp_path / "a", scans)


@pytest.mark.parametrize(
    "tags, scans",
    [
        ({}, ScanSpec(unit="HU")),
        ({"Modality": "PT", "Units": "BQML"}, ScanSpec(unit="BQML")),
        ({"Modality": "MR"}, ScanSpec(unit="US")),
        ({"Modality": "MR", "RescaleType": "ms"}, ScanSpec(unit="ms")),
    ],
)
def test_values_in_the_unit_of_the_job_are_as_they_are(
    tags: dict[str, Any], scans: ScanSpec, tmp_path: Path
) -> None:
    write_slice(tmp_path / "a", PIXELS, **tags)
    assert shown(tmp_path / "a", scans).tolist() == (2.0 * PIXELS - 1000).tolist()


def test_the_range_becomes_0_to_1_and_padding_its_lowest(tmp_path: Path) -> None:
    pixels = PIXELS.copy()
    pixels[0, 2] = 3000
    write_slice(tmp_path / "a", pixels, PixelPaddingValue=3000)
    found = shown(tmp_path / "a", ScanSpec(range=(-1000, 1002)))
    expected = np.clip(2.0 * pixels / 2002, 0, 1)
    expected[0, 2] = 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


def field(points_mm: Any) -> Any:
    """A value that is linear in millimeters of (right, anterior, superior)."""
    return 1000 + points_mm @ np.array([20.0, 30.0, -10.0])


@pytest.mark.parametrize("seed", range(8))
def test_a_volume_in_the_grid_of_the_job_has_the_value_of_each_place(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(5, 9, 3)
    places = np.moveaxis(np.indices(shape), 0, -1)
    volume = np.round(field(places * SPACING_MM) * 2) / 2  # what a slope of 2 can store, near enough
    axes = [*itertools.permutations(range(3))][seed % 6]
    write_volume(tmp_path / "a", (volume + 1000) / 2, axes, rng.choice([-1, 1], 3), rng)
    letters = [
        "".join(each)
        for axes in itertools.permutations(["RL", "AP", "SI"])
        for each in itertools.product(*axes)
    ][rng.integers(48)]
    spacing = tuple(rng.uniform(0.4, 3.0, 3))
    size = tuple(int(each) for each in rng.integers(3, 12, 3))
    scans = ScanSpec(grid=GridSpec(orientation=letters, spacing_mm=spacing, pad=-5000.0))
    found = series.read(tmp_path / "a", size, False, channels=1, scans=scans)
    # where each place of the input lies: about the center of the volume, along the axes of the letters
    center = (shape - 1) * SPACING_MM / 2
    offsets = (np.moveaxis(np.indices(size), 0, -1) - (np.array(size) - 1) / 2) * spacing
    points = np.tile(center, (*size, 1))
    for at, letter in enumerate(letters):
        axis = next(each for each, pair in enumerate(("RL", "AP", "SI")) if letter in pair)
        points[..., axis] += offsets[..., at] * (1 if letter in "RAS" else -1)
    inside = points / SPACING_MM
    is_beyond = ((inside < -0.5 - 1e-9) | (inside > shape - 0.5 + 1e-9)).any(-1)
    edge = np.clip(inside, 0, shape - 1) * SPACING_MM
    expected = np.where(is_beyond, -5000.0, field(edge))
    near = (abs(inside + 0.5) < 1e-9) | (abs(inside - shape + 0.5) < 1e-9)  # on a face: either will do
    np.testing.assert_allclose(found.values[0][~near.any(-1)], expected[~near.any(-1)], atol=2.1)


@pytest.mark.parametrize("unit, factor", [("mm", 1.0), ("meter", 1e-3), ("micron", 1e3), ("unknown", 1.0)])
def test_nifti_and_dicom_of_one_volume_are_one_input(unit: str, factor: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    volume = rng.integers(0, 2000, (6, 7, 5))
    write_volume(tmp_path / "a", (volume + 1000) // 2, (1, 0, 2), [1, -1, 1], rng)
    image = nibabel.Nifti1Image(
        (volume // 2 * 2)[:, ::-1].astype(np.int16),
        np.array([[2.0, 0, 0, 0], [0, -0.5, 0, 3.0], [0, 0, 3.0, 0], [0, 0, 0, 1 / factor]]) * factor,
    )
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "a.nii")
    scans = ScanSpec(range=(0, 2000), grid=GridSpec(spacing_mm=(1.0, 1.0, 2.0)))
    dicom = series.read(tmp_path / "a", (10, 6, 8), False, channels=1, scans=scans)
    same = nifti.read(tmp_path / "a.nii", (10, 6, 8), False, scans=scans)
    np.testing.assert_allclose(dicom.values, same.values, atol=1e-5)
    assert dicom.grid.steps == pytest.approx((0.5, 2.0, 2 / 3))


def test_a_mask_goes_into_the_grid_and_back_without_mixing_numbers(tmp_path: Path) -> None:
    x, y, z = np.indices((20, 24, 10))
    ball = (x - 9) ** 2 + (y - 12) ** 2 + (2.5 * (z - 5)) ** 2
    labels = np.where(ball < 30, 2, np.where(ball < 64, 1, 0)).astype(np.uint8)
    write_nifti(tmp_path / "m.nii", labels, np.diag([-1.0, -1.0, 2.5, 1.0]))
    scans = ScanSpec(range=(0, 1), grid=GridSpec(orientation="LPS", spacing_mm=(1.25, 1.25, 1.25)))
    mask = nifti.read(tmp_path / "m.nii", (20, 20, 24), True, scans=scans)
    assert set(np.unique(mask.values).tolist()) == {0, 1, 2}
    again = back(mask.values[0], mask.grid)
    assert again.shape == labels.shape
    common = 2 * ((again > 0) & (labels > 0)).sum() / ((again > 0).sum() + (labels > 0).sum())
    assert common > 0.93
    assert np.array_equal(again[9:11, 11:13, 5:6], labels[9:11, 11:13, 5:6])


def test_masks_of_dicom_volumes_may_be_nifti(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    volume = rng.integers(0, 900, (4, 5, 6))
    write_volume(tmp_path / "images" / "p1", volume, (0, 1, 2), [1, 1, 1], rng)
    mask = (volume > 500).astype(np.uint8)
    write_nifti(tmp_path / "masks" / "p1.nii.gz", mask, np.diag([*SPACING_MM, 1.0]))
    job = make_job(2, (1, 4, 5, 6), task={"name": "segmentation"})
    data = load(job, format="dicom", path=tmp_path, holdout=0.0)
    assert np.array_equal(data.train.labels[0], mask)
    write_nifti(tmp_path / "masks" / "p1.nii.gz", mask, np.diag([*SPACING_MM[::-1], 1.0]))
    with pytest.raises(ConfigError, match="a mask in another grid than its image"):
        load(job, format="dicom", path=tmp_path, holdout=0.0)


@pytest.mark.parametrize(
    "shape, scans, message",
    [
        ((1, 4, 4), {"range": [5, 5]}, "range: expected the value that becomes 0 first"),
        ((1, 4, 4), {"values": "voi", "range": [0, 1]}, "not allowed with values voi"),
        ((1, 4, 4), {"grid": {"spacing_mm": [1, 1, 1], "pad": 0}}, r"scans.grid: expected volumes"),
        ((1, 4, 4, 4), {"grid": {"spacing_mm": [1, 1, 1]}}, "grid.pad: a value is required without range"),
        ((1, 4, 4, 4), {"grid": {"spacing_mm": [1, 0, 1], "pad": 0}}, "greater than 0"),
        ((1, 4, 4, 4), {"grid": {"spacing_mm": [1, 1, 1], "orientation": "RAL"}}, "expected three letters"),
        ((5,), {}, "scans: expected float32 of input_shape"),
    ],
)
def test_a_job_that_means_nothing_is_refused(
    shape: tuple[int, ...], scans: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make_job(2, shape, scans=scans)


def test_other_formats_are_refused_for_a_job_of_scans(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(ConfigError, match="scans: the job wants DICOM or NIfTI, .* is image-folder"):
        load(make_job(2, (1, 4, 4), scans={"range": [0, 1]}), format="image-folder", path=tmp_path)
    with pytest.raises(ConfigError, match="NIfTI has no windows"):
        load(make_job(2, (1, 4, 4), scans={"values": "voi"}), format="nifti", path=tmp_path)


def test_a_volume_without_positions_has_no_place_in_a_grid(tmp_path: Path) -> None:
    for place in range(3):
        write_slice(tmp_path / "a" / str(place), PIXELS, place=place, ImagePositionPatient=None)
    scans = ScanSpec(grid=GridSpec(spacing_mm=(1, 1, 1), pad=0.0))
    with pytest.raises(ConfigError, match="a: neither positions nor spacing"):
        series.read(tmp_path / "a", (2, 2, 2), False, channels=1, scans=scans)


@pytest.mark.parametrize("classes", [3, ("background", "liver", "tumor")])
def test_numbers_in_masks_are_the_classes_that_the_silo_says(classes: Any, tmp_path: Path) -> None:
    numbers = np.array([[[0, 7], [12, 0]], [[7, 7], [12, 12]]], np.uint8)
    write_nifti(tmp_path / "images" / "a.nii", np.ones((2, 2, 2), np.int16), np.eye(4))
    write_nifti(tmp_path / "masks" / "a.nii", numbers, np.eye(4))
    job = make_job(classes, (1, 2, 2, 2), task={"name": "segmentation"})
    names = range(3) if classes == 3 else classes
    labels = dict(zip(("0", "12", "7"), names, strict=True))
    files: dict[str, Any] = {"format": "nifti", "path": tmp_path, "holdout": 0.0}
    data = load(job, **files, labels=labels)
    assert data.train.labels[0].tolist() == np.where(numbers == 12, 1, np.where(numbers == 7, 2, 0)).tolist()
    with pytest.raises(ConfigError, match=r"a.nii: a mask of 12, expected one of \[0, 7\]"):
        load(job, **files, labels={each: labels[each] for each in ("0", "7")})
    with pytest.raises(ConfigError, match="data.labels: liver: expected a number in masks"):
        load(job, **files, labels={"liver": labels["12"]})
    with pytest.raises(ConfigError, match="labels must be 0 to 2 .*, got 0 to 12"):
        load(job, **files)
    job = make_job(classes, (1, 2, 2, 2), task={"name": "segmentation", "options": {"void": 12}})
    without = load(job, **files, labels={each: labels[each] for each in ("0", "7")})
    assert without.train.labels[0].tolist() == np.select([numbers == 12, numbers == 7], [-1, 2]).tolist()
    write_nifti(tmp_path / "masks" / "a.nii", np.where(numbers == 7, 1, numbers), np.eye(4))
    assert (
        load(job, **files).train.labels[0].tolist()
        == np.select([numbers == 12, numbers == 7], [-1, 1]).tolist()
    )


def test_a_mask_whose_marks_all_lie_beyond_the_grid_is_named(tmp_path: Path) -> None:
    for name, at in (("a", 0), ("b", 8)):
        mask = np.zeros((16, 16, 16), np.uint8)
        mask[at, at, at] = 1
        write_nifti(tmp_path / "images" / f"{name}.nii", np.ones((16, 16, 16), np.int16), np.eye(4))
        write_nifti(tmp_path / "masks" / f"{name}.nii", mask, np.eye(4))
    scans = {"grid": {"spacing_mm": [1, 1, 1], "pad": 0}}
    job = make_job(2, (1, 8, 8, 8), task={"name": "segmentation"}, scans=scans)
    with pytest.raises(ConfigError, match=r"a.nii: all that it marks lies beyond the job's scans.grid"):
        load(job, format="nifti", path=tmp_path, holdout=0.0)
    (tmp_path / "masks" / "a.nii").unlink()
    (tmp_path / "images" / "a.nii").unlink()
    assert load(job, format="nifti", path=tmp_path, holdout=0.0).train.labels.sum() == 1


def test_flat_nifti_has_flat_masks(tmp_path: Path) -> None:
    mask = np.eye(4, 6, dtype=np.int16)
    for folder in ("images", "masks"):
        write_nifti(tmp_path / folder / "a.nii", mask, np.diag([0.5, 0.5, 1, 1]))
    job = make_job(2, (1, 4, 6), task={"name": "segmentation"})
    data = load(job, format="nifti", path=tmp_path, holdout=0.0)
    assert data.train.labels[0].tolist() == mask.tolist()
