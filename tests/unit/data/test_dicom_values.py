"""What the pixels of one DICOM file mean, tag by tag, and which files are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.pixels.decoders.base import Decoder
from pydicom.uid import MPEG2MPML, JPEGLSLossless

from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.series import read
from silo_agent.training.data.formats.scans import unreadable
from tests.support.scan_files import write_slice

ROWS, COLUMNS = 6, 5
UNSCALED = {"RescaleSlope": None, "RescaleIntercept": None}
PACKAGED = Path(pydicom.__file__).parent / "data" / "test_files"


def values(path: Path, *, channels: int = 1, is_mask: bool = False) -> Any:
    return read(path, (ROWS, COLUMNS), is_mask, channels=channels, scans=ScanSpec()).values


@pytest.mark.parametrize("seed", range(12))
def test_a_picture_stored_black_or_white_first_reads_the_same(seed: int, tmp_path: Path) -> None:
    """MONOCHROME1 came in as its negative."""
    rng = np.random.default_rng(seed)
    bits, is_signed = int(rng.integers(2, 17)), int(rng.integers(2))
    low = -(1 << (bits - 1)) if is_signed else 0
    pixels = rng.integers(low, low + (1 << bits), (ROWS, COLUMNS))
    tags: dict[str, Any] = {"BitsStored": bits, "HighBit": bits - 1, "PixelRepresentation": is_signed}
    slope, intercept = (float(rng.integers(1, 9)) / 4, float(rng.integers(-50, 50))) if seed % 3 else (1, 0)
    tags |= {"Modality": "CR", "RescaleSlope": slope, "RescaleIntercept": intercept} if seed % 3 else UNSCALED
    write_slice(tmp_path / "two", pixels, **tags)
    turned = 2 * low + (1 << bits) - 1 - pixels
    tag = "PresentationLUTShape" if seed % 2 else "PhotometricInterpretation"
    write_slice(tmp_path / "one", turned, **tags, **{tag: "INVERSE" if seed % 2 else "MONOCHROME1"})
    expected = (slope * pixels + intercept).astype(np.float32)
    assert np.array_equal(values(tmp_path / "two")[0], expected)
    assert np.array_equal(values(tmp_path / "one")[0], expected)
    assert np.array_equal(values(tmp_path / "one", is_mask=True)[0], turned)  # numbers of classes


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("limit", [None, 60_010, 59_990])
def test_padding_is_the_lowest_of_its_picture(photometric: str, limit: int | None, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(100, 4000, (ROWS, COLUMNS))
    pixels[0], pixels[1, 0] = 60_000, 60_000 if limit is None else limit
    tags: dict[str, Any] = UNSCALED | {"PhotometricInterpretation": photometric, "PixelPaddingValue": 60_000}
    write_slice(
        tmp_path / "a", pixels, **tags, **({} if limit is None else {"PixelPaddingRangeLimit": limit})
    )
    found, shown = values(tmp_path / "a")[0], pixels[1:] if photometric.endswith("2") else 65535 - pixels[1:]
    lowest = np.delete(shown.ravel(), 0).min()
    assert found[0].tolist() == [lowest] * COLUMNS
    assert found[1, 0] == lowest
    assert np.array_equal(np.delete(found[1:].ravel(), 0), np.delete(shown.ravel(), 0))


@pytest.mark.parametrize(
    "tags, channels, message",
    [
        (
            {"PhotometricInterpretation": "MONOCHROME1"},
            1,
            "PhotometricInterpretation is MONOCHROME1 beside val",
        ),
        ({"RescaleIntercept": None}, 1, "RescaleSlope without its other half"),
        ({"RescaleSlope": 0}, 1, r"RescaleSlope is 0\.0, expected another number"),
        ({"BitsStored": None}, 1, "tag BitsStored is missing"),
        ({"PhotometricInterpretation": None}, 1, "tag PhotometricInterpretation is missing"),
        ({}, 3, "PhotometricInterpretation is MONOCHROME2, expected RGB or YBR_FULL or"),
        ({"NumberOfFrames": 2, "PixelData": bytes(2 * 2 * ROWS * COLUMNS)}, 1, "NumberOfFrames is 2"),
        ({"PresentationIntentType": "FOR PROCESSING"}, 1, "PresentationIntentType is FOR PROCESSING"),
        ({"PixelPaddingValue": 7}, 1, "every pixel is padding"),
        ({"PixelData": None}, 1, r"no PixelData, so no image \(modality CT\)"),
    ],
)
def test_what_a_tag_makes_unusable_is_refused_by_its_name(
    tags: dict[str, Any], channels: int, message: str, tmp_path: Path
) -> None:
    write_slice(tmp_path / "a", np.full((ROWS, COLUMNS), 7), **tags)
    with pytest.raises(ConfigError, match=f"a: {message}"):
        values(tmp_path / "a", channels=channels)


def test_color_is_a_part_of_its_brightest_whatever_way_it_is_stored(tmp_path: Path) -> None:
    rgb = np.random.default_rng(3).integers(0, 256, (ROWS, COLUMNS, 3), np.uint8)
    eight = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    three = eight | {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    gray = np.zeros((ROWS, COLUMNS))
    write_slice(tmp_path / "rgb", gray, **three, PixelData=rgb.tobytes())
    planes = rgb.transpose(2, 0, 1).tobytes()
    write_slice(tmp_path / "planes", gray, **three | {"PlanarConfiguration": 1}, PixelData=planes)
    places = np.arange(ROWS * COLUMNS, dtype=np.uint8)
    tables = {
        f"{color}PaletteColorLookupTable{what}": value
        for at, color in enumerate(("Red", "Green", "Blue"))
        for what, value in (
            ("Descriptor", [ROWS * COLUMNS, 0, 8]),
            ("Data", rgb.reshape(-1, 3)[:, at].tobytes()),
        )
    }
    palette = eight | tables | {"PhotometricInterpretation": "PALETTE COLOR"}
    write_slice(tmp_path / "palette", gray, **palette, PixelData=places.tobytes())
    expected = rgb.transpose(2, 0, 1) / np.float32(255)
    for name in ("rgb", "planes", "palette"):
        np.testing.assert_allclose(values(tmp_path / name, channels=3), expected, atol=1e-6)
        with pytest.raises(
            ConfigError, match=f"{name}: PhotometricInterpretation is (RGB|PALETTE COLOR), exp"
        ):
            values(tmp_path / name)


def test_a_syntax_without_decoder_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = get_testdata_file("MR_small_jpeg_ls_lossless.dcm", download=False)
    assert isinstance(file, str)
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "is_available", property(lambda decoder: False))
        with pytest.raises(
            ConfigError, match=rf"JPEG-LS Lossless .*\({JPEGLSLossless}\): pip install python-"
        ):
            values(Path(file))
    scan = pydicom.dcmread(file)
    scan.file_meta.TransferSyntaxUID = MPEG2MPML
    scan.save_as(tmp_path / "film")
    with pytest.raises(ConfigError, match=r"film: transfer syntax MPEG2 .* is not read"):
        values(tmp_path / "film")


def test_files_that_pydicom_ships_are_read_or_refused_with_the_cause() -> None:
    causes = (
        r"no DICOM file: no DICM",
        r"NumberOfFrames is \d+",
        r"no PixelData, so no image",
        r"tag \w+ is missing",
        r"deflated DICOM does not declare",
        r"modality RTDOSE",
        r"Rows and Columns say \d+ pixels, its compressed picture",
        r"transfer syntax JPEG .*others: .*(pylibjpeg|gdcm)",
        r"no decoder for transfer syntax .*: pip install python-gdcm",
        r"\((ValueError|RuntimeError): .{20}",
    )
    known = re.compile("|".join(causes))
    read_files = set()
    for file in sorted(PACKAGED.glob("*.dcm")):
        refused = []
        for channels in (1, 3):
            try:
                found = values(file, channels=channels)
            except ConfigError as error:
                refused.append(str(error))
            except Exception as error:
                refused.append(unreadable(error))
            else:
                assert np.isfinite(found).all()
                read_files.add(file.stem)
        assert len(refused) == 2 or file.stem in read_files, file
        told = [each for each in refused if "PhotometricInterpretation is" not in each]
        assert all(known.search(each) for each in told), told
    assert len(read_files) >= 25
    assert {"CT_small", "MR_small", "examples_palette", "SC_ybr_full_422_uncompressed"} <= read_files
    same = [values(PACKAGED / f"MR_small{kind}.dcm") for kind in ("", "_bigendian", "_implicit", "_RLE")]
    assert all(np.array_equal(same[0], other) for other in same)
