"""No record decides what becomes of another one, and what is read is what settings and job say."""

from __future__ import annotations

import gzip
import io
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas
import pydicom
import pytest
from PIL import Image
from pydantic import ValidationError
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit

from chorale.spec.samples.column_specs import ColumnSpec
from chorale.spec.samples.scan_specs import ScanSpec
from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.formats.images import nifti, series
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.table.dialect import TableDialect
from silo_agent.training.unit_marks import Admitted, UnitKey
from tests.fuzz.data import PRIVACY
from tests.support.scan_files import write_slice
from tests.unit.data import loading
from tests.unit.data.test_private_loading import make_job, moved, table, table_job


def both(data: SiloData, of: str) -> Any:
    return np.concatenate([getattr(data.train, of), getattr(data.holdout, of)])


def test_a_decimal_of_more_digits_moves_no_other_record(tmp_path: Path) -> None:
    """A column's scale is that of its longest number, so each other one was written with further zeros."""

    def written(name: str, *more: Decimal) -> SiloData:
        ages = [*(Decimal(f"{each}.5") for each in range(300)), *more]
        pandas.DataFrame({"age": ages, "ill": 0}).to_parquet(tmp_path / name)
        return load_data(DataSettings(format="parquet", path=tmp_path / name), table_job("age"))

    whole, more = written("a.parquet"), written("b.parquet", Decimal("400.25"))
    assert moved(whole, more) == (0, 0)
    assert sum(moved(more, whole)) == 1


def test_an_image_is_on_one_side_whatever_way_a_job_reads_the_folder(tmp_path: Path) -> None:
    for place in range(60):
        pixels = np.full((4, 4), place, np.uint8)
        for folder in ("images", "masks"):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(pixels * (folder == "images")).save(tmp_path / folder / f"{place}.png")
    settings = DataSettings(format="image-folder", path=tmp_path)
    held = []
    for job in (
        loading.make_job(2, (1, 4, 4), task={"name": "segmentation"}, privacy=PRIVACY),
        loading.make_job(["images", "masks"], (1, 4, 4), privacy=PRIVACY),
    ):
        found = load_data(settings, job).holdout
        is_image = found.labels.reshape(len(found), -1)[:, 0] == 0
        held.append({float(each) for each in found.features[is_image][:, 0, 0, 0]})
    assert held[0] == held[1]


@pytest.mark.parametrize("missing", [(), ("9",)])
def test_a_label_that_means_missing_is_no_class(missing: tuple[str, ...], tmp_path: Path) -> None:
    text = "age,ill\n" + "".join(f"{age},{age % 10}\n" for age in range(30, 80))
    settings = table(tmp_path, text, missing={"ill": missing})
    data = load_data(settings, table_job("age", classes=10))
    assert (9 in both(data, "labels")) == (not missing)


def test_a_category_of_the_job_is_not_missing(tmp_path: Path) -> None:
    settings = table(tmp_path, "region,ill\n" + "NA,0\nEU,1\n,1\n" * 10)
    columns = (ColumnSpec(name="region", categories=("NA", "EU")),)
    data = load_data(settings, make_job((2,), columns=columns, label_column="ill"))
    assert both(data, "features").sum(0).tolist() == [10, 10]


def test_a_mask_of_nearly_the_same_spacing_is_compared_at_its_far_end(tmp_path: Path) -> None:
    read = []
    for spacing in (0.700, 0.7004, 0.709):
        path = tmp_path / f"{spacing}.nii"
        affine = np.diag([spacing, spacing, 1, 1])
        nibabel.Nifti1Image(np.zeros((512, 512, 2), np.int16), affine).to_filename(path)
        read.append(nifti.read(path, (8, 8, 2), False, scans=ScanSpec()).grid)
    read[0].check_same(read[1], source=tmp_path)
    with pytest.raises(ConfigError, match="another grid"):
        read[0].check_same(read[2], source=tmp_path)


def test_a_ct_without_a_rescale_has_no_hounsfield_units(tmp_path: Path) -> None:
    write_slice(tmp_path / "a", np.zeros((6, 5)), RescaleSlope=None, RescaleIntercept=None)
    with pytest.raises(ConfigError, match="values in US, the job has scans.unit HU"):
        series.read(tmp_path / "a", (6, 5), False, channels=1, scans=ScanSpec(unit="HU"))


def compressed(path: Path, form: str, syntax: str, *, side: tuple[int, int], **options: Any) -> None:
    """A file that declares 6 x 5 pixels, and holds a compressed picture of that size."""
    held = io.BytesIO()
    Image.new("L", side).save(held, form, **options)
    write_slice(path, np.zeros((6, 5)), BitsAllocated=8, BitsStored=8, HighBit=7)
    file = pydicom.dcmread(path)
    file.file_meta.TransferSyntaxUID = syntax
    file.PixelData = encapsulate([held.getvalue()])
    file["PixelData"].VR = "OB"
    file["PixelData"].is_undefined_length = True
    file.save_as(path)


@pytest.mark.parametrize(
    "form, syntax, options",
    [
        ("JPEG", JPEGBaseline8Bit, {}),
        ("JPEG2000", JPEG2000Lossless, {"no_jp2": True}),
        ("JPEG2000", JPEG2000Lossless, {}),
    ],
)
def test_a_compressed_picture_of_another_size_is_not_decoded(
    form: str, syntax: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """872 bytes that declared 6 x 5 pixels took 841 MiB."""
    compressed(tmp_path / "a", form, syntax, side=(5, 6), **options)
    assert series.read(tmp_path / "a", (6, 5), False, channels=1, scans=ScanSpec()).values.shape == (1, 6, 5)
    compressed(tmp_path / "b", form, syntax, side=(640, 500), **options)
    with pytest.raises(ConfigError, match="b: Rows and Columns say 30 pixels, its .* 320000"):
        series.read(tmp_path / "b", (6, 5), False, channels=1, scans=ScanSpec())


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize(
    "length, offset, message",
    [
        (32, 384, ""),
        (2_000_000_000, 384, "a header extension of 2000000000 bytes, expected 16 to 32"),
        (-16, 384, "a header extension of 4294967280 bytes"),
        (0, 384, "a header extension of 0 bytes"),
        (32, 0, "header extensions, and vox_offset is 0"),
    ],
)
def test_header_extensions_end_before_the_image(
    name: str, length: int, offset: int, message: str, tmp_path: Path
) -> None:
    """8 MB of a file took 1.9 GiB."""
    header = nibabel.Nifti1Image(np.zeros((2, 2, 2), np.float32), np.eye(4)).header.copy()
    header["vox_offset"], header["magic"] = offset, b"n+1"
    content = header.binaryblock + b"\1\0\0\0" + struct.pack("<ii", length, 6) + bytes(24 + 32)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    if not message:
        found = nifti.read(tmp_path / name, (2, 2, 2), False, scans=ScanSpec())
        assert found.values.shape == (1, 2, 2, 2)
        return
    with pytest.raises(ConfigError, match=message):
        nifti.read(tmp_path / name, (2, 2, 2), False, scans=ScanSpec())


def test_two_patients_are_no_volume(tmp_path: Path) -> None:
    """Slices of the second were protected, and withdrawn, as the first one's."""
    for place in range(4):
        write_slice(tmp_path / "a" / str(place), np.zeros((6, 5)), place=place, PatientID="AAAB"[place])
    with pytest.raises(ConfigError, match="a/3: PatientID B, the other slices of its series have A"):
        series.read(tmp_path / "a", (5, 6, 4), False, channels=1, scans=ScanSpec())


@pytest.mark.parametrize("encoding", ["raw_unicode_escape", "unicode-escape"])
def test_an_encoding_in_which_a_cell_can_end_its_line_is_refused(encoding: str) -> None:
    with pytest.raises(ValidationError, match="expected an encoding of texts that Python knows"):
        TableDialect(encoding=encoding)


class Numbered:
    """Samples that are read by place."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Any:
        return np.zeros((64, 64), np.float32)[np.newaxis] + place, place % 2


@pytest.mark.parametrize("most", [None, 1_000])
def test_no_number_of_records_decides_what_a_private_job_holds_in_memory(most: int | None) -> None:
    """63 images of 64 x 64 were held in 1 MiB, 64 were read at each step: six times as long."""
    job = loading.make_job(2, (1, 64, 64), privacy=PRIVACY)
    settings = DataSettings(format="module", module="m:f", name="test", cache_megabytes=1)
    admitted = Admitted(UnitKey.public("test"), None, most=most)
    held = [
        type(load_data(settings, job, admitted=admitted, own=Data(train=Numbered(count))).train)
        for count in (40, 100)
    ]
    assert (held[0] is held[1]) == (most is not None)
