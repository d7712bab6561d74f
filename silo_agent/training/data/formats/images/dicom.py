"""The values of one DICOM file, as the standard defines them, by pydicom's own pixel pipeline.

Gray: the modality's values (Hounsfield units of a CT) by its lookup table or rescale slope and intercept;
stored windows are left alone, but where the job wants what is shown (`scans.values: voi`). MONOCHROME1 and
the presentation INVERSE are turned, within the stored range or in what is shown, so a picture reads the same
in either way. PixelPaddingValue is no value: such pixels get the lowest of
their picture. Color: red, green and blue from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.codestreams import stated_pixels

GRAY = ("MONOCHROME1", "MONOCHROME2")
COLOR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "PALETTE COLOR")
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
NEEDED = ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated")
OF_WHOLE_NUMBERS = ("BitsStored", "PixelRepresentation")
WITH_A_UNIT = ("CT", "PT")  # whose rescaled values mean the same whatever way they are shown
WITHOUT_VOI = (*WITH_A_UNIT, "MR")  # whose stored windows are what somebody liked to look at
HOUNSFIELD, HAS_NO_UNIT = "HU", "US"  # the standard's terms
FARTHEST = 1e9  # beyond every window
DECODERS = "python-gdcm"  # of every compressed syntax that pydicom lists; in the extra `medical`

Dataset = Any  # of pydicom, whose types come with the extra


def header(file: Path) -> Dataset:
    """All but the pixels. Raises ConfigError for a file that is no DICOM or declares nothing of its size."""
    from pydicom import dcmread
    from pydicom.misc import is_dicom

    if not is_dicom(file):
        raise ConfigError(f"{file}: not a readable image (no DICOM file: no DICM at byte 128)")
    check_not_deflated(file)
    return dcmread(file, stop_before_pixels=True)


def check_not_deflated(file: Path) -> None:
    """Raises ConfigError for a file whose header can only be read by inflating all of it."""
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    if read_file_meta_info(file).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        raise ConfigError(f"{file}: deflated DICOM does not declare its size: store it in another syntax")


def declared(found: Dataset) -> int:
    """How many values it has, of all frames."""
    tags = ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")
    return math.prod(abs(int(found.get(tag) or 1)) for tag in tags)


def values(file: Path, *, channels: int, is_mask: bool, scans: ScanSpec) -> NDArray[np.float32]:
    """Shapes: -> (channels, rows, columns); NaN where a pixel is padding. A mask is what is stored.

    Raises ConfigError for what this silo does not read, and whatever a decoder does.
    """
    from pydicom import dcmread
    from pydicom.pixels.utils import pixel_array

    found = dcmread(file)
    lacking = _checked(found, file, channels=1 if is_mask else channels)
    _check_frame(found, file)
    try:
        stored = pixel_array(found)
    except RuntimeError as error:  # of each decoder that is there
        if not lacking:
            raise
        why = " ".join(str(error).split())
        raise ConfigError(f"{file}: {_syntax(found)}: {why}; others: {'; '.join(lacking)}") from error
    if is_mask:
        return np.asarray(stored, np.float32)[np.newaxis]
    if channels == 1:
        _check_meaning(found, scans, file)
        return _gray(found, stored, file, is_shown=scans.values == "voi")[np.newaxis]
    return _color(found, stored).transpose(2, 0, 1)


def filled(picture: NDArray[np.float32], pad: float | None, *, source: Path) -> NDArray[np.float32]:
    """With `pad`, else the lowest value, in place of padding. Raises ConfigError where there is nothing
    else."""
    is_padding = np.isnan(picture)
    if is_padding.all():
        raise ConfigError(f"{source}: every pixel is padding (PixelPaddingValue)")
    if not is_padding.any():
        return picture
    return np.where(is_padding, picture[~is_padding].min() if pad is None else np.float32(pad), picture)


def _checked(found: Dataset, file: Path, *, channels: int) -> Sequence[str]:
    """Decoders that are not installed. Raises ConfigError that names the tag."""
    if not any(tag in found for tag in PIXELS):
        raise ConfigError(f"{file}: no PixelData, so no image (modality {found.get('Modality')})")
    needed = (*NEEDED, *(OF_WHOLE_NUMBERS if "PixelData" in found else ()))
    for tag in needed:
        if found.get(tag) is None:
            raise ConfigError(f"{file}: tag {tag} is missing")
    if int(found.get("NumberOfFrames") or 1) > 1:
        raise ConfigError(f"{file}: NumberOfFrames is {found.NumberOfFrames}, expected one frame a file")
    if found.get("PresentationIntentType") == "FOR PROCESSING":
        raise ConfigError(
            f"{file}: PresentationIntentType is FOR PROCESSING, the detector's own numbers; expected those "
            "for presentation"
        )
    if "DoseGridScaling" in found:
        raise ConfigError(f"{file}: modality {found.get('Modality')}: a grid of doses is not an image")
    photometric, expected = found.PhotometricInterpretation, GRAY if channels == 1 else COLOR
    if photometric not in expected:
        raise ConfigError(
            f"{file}: PhotometricInterpretation is {photometric}, expected {' or '.join(expected)} for "
            f"{channels} channel{'' if channels == 1 else 's'}"
        )
    return _lacking(found, file)


def _lacking(found: Dataset, file: Path) -> Sequence[str]:
    """Decoders of its syntax that are not installed. Raises ConfigError where none is, or it has none."""
    from pydicom.pixels.decoders.base import get_decoder

    if (syntax := found.file_meta.get("TransferSyntaxUID")) is None:
        raise ConfigError(f"{file}: tag TransferSyntaxUID is missing")
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise ConfigError(f"{file}: {_syntax(found)} is not read") from None
    if not decoder.is_available:
        raise ConfigError(f"{file}: no decoder for {_syntax(found)}: pip install {DECODERS}")
    return decoder.missing_dependencies


def _check_frame(found: Dataset, file: Path) -> None:
    """Raises ConfigError for a compressed picture of another size than the file declares, by which memory
    was planned."""
    from pydicom.encaps import get_frame
    from pydicom.uid import JPEG2000TransferSyntaxes, JPEGLSTransferSyntaxes, JPEGTransferSyntaxes

    syntaxes = (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG2000TransferSyntaxes)
    if found.file_meta.TransferSyntaxUID not in syntaxes:
        return
    stated = stated_pixels(get_frame(found.PixelData, 0, number_of_frames=1))
    if stated != found.Rows * found.Columns:
        raise ConfigError(
            f"{file}: Rows and Columns say {found.Rows * found.Columns} pixels, its compressed picture "
            f"{'does not say' if stated is None else stated}"
        )


def _syntax(found: Dataset) -> str:
    syntax = found.file_meta.TransferSyntaxUID
    return f"transfer syntax {syntax.name} ({syntax})"


def _check_meaning(found: Dataset, scans: ScanSpec, file: Path) -> None:
    """Raises ConfigError for values that are not those of the job."""
    modality = str(found.get("Modality"))
    if scans.values == "voi":
        if modality in WITHOUT_VOI:
            raise ConfigError(
                f"{file}: modality {modality}: its windows are what somebody liked, expected scans.values "
                "modality"
            )
        return
    said = found.get("Units") if modality == "PT" else found.get("RescaleType")
    is_scaled = bool(found.get("ModalityLUTSequence")) or found.get("RescaleSlope") is not None
    own = str(said or (HOUNSFIELD if modality == "CT" and is_scaled else HAS_NO_UNIT))
    if own != scans.unit and (scans.unit is not None or own not in (HOUNSFIELD, HAS_NO_UNIT)):
        stated = "does not state a unit" if scans.unit is None else f"has scans.unit {scans.unit}"
        raise ConfigError(f"{file}: values in {own}, the job {stated}")


def _gray(found: Dataset, stored: NDArray[Any], file: Path, *, is_shown: bool) -> NDArray[np.float32]:
    from pydicom.pixels.processing import apply_modality_lut

    scale = [tag for tag in ("RescaleSlope", "RescaleIntercept") if found.get(tag) is not None]
    if len(scale) == 1:
        raise ConfigError(f"{file}: {scale[0]} without its other half (RescaleSlope, RescaleIntercept)")
    if scale and (not math.isfinite(float(found.RescaleSlope)) or float(found.RescaleSlope) == 0):
        raise ConfigError(f"{file}: RescaleSlope is {found.RescaleSlope}, expected another number than 0")
    if not np.isfinite(stored).all():
        raise ConfigError(f"{file}: pixels hold NaN or infinity")
    is_padding = _padding(found, stored)
    has_table = bool(found.get("ModalityLUTSequence"))
    is_turned = _is_inverted(found) and not is_shown  # what is shown is turned at the end
    if is_turned:
        if stored.dtype.kind == "f" or (scale and found.get("Modality") in WITH_A_UNIT):
            raise ConfigError(
                f"{file}: PhotometricInterpretation is {found.PhotometricInterpretation} beside values with "
                "a unit, expected MONOCHROME2"
            )
        if not has_table:
            stored = _range_sum(found) - stored.astype(np.int64)
    for tag in ("RescaleSlope", "RescaleIntercept"):
        if not scale and tag in found:  # empty
            del found[tag]
    made = apply_modality_lut(stored, found)
    if is_shown:
        made = _shown(found, made, file)
    elif has_table and is_turned:
        made = (1 << int(found.ModalityLUTSequence[0].LUTDescriptor[2])) - 1 - made.astype(np.int64)
    return np.where(is_padding, np.float32(np.nan), made.astype(np.float32))


def _shown(found: Dataset, made: NDArray[Any], file: Path) -> NDArray[np.float64]:
    """Black is 0 and white is 1, by the first VOI LUT or window. Raises ConfigError where there is none."""
    from pydicom.pixels.processing import apply_voi, apply_windowing

    if found.get("VOILUTSequence"):
        low, high = 0.0, float((1 << int(found.VOILUTSequence[0].LUTDescriptor[2])) - 1)
        picture = apply_voi(made, found).astype(np.float64)
    elif found.get("WindowWidth") is not None and found.get("WindowCenter") is not None:
        # what the window makes of the two ends of all numbers is black and white
        ends = apply_windowing(np.array([-FARTHEST, FARTHEST]), found)
        low, high = float(ends[0]), float(ends[1])
        picture = apply_windowing(made.astype(np.float64), found)
    else:
        raise ConfigError(f"{file}: neither VOILUTSequence nor WindowCenter, which scans.values voi needs")
    share = (picture - low) / (high - low)
    return 1.0 - share if _is_inverted(found) else share


def _is_inverted(found: Dataset) -> bool:
    is_inverse = found.get("PresentationLUTShape") == "INVERSE"
    return is_inverse or str(found.PhotometricInterpretation) == "MONOCHROME1"


def _range_sum(found: Dataset) -> int:
    """Of the lowest and the highest value that its bits can hold."""
    return -1 if found.PixelRepresentation else (1 << int(found.BitsStored)) - 1


def _padding(found: Dataset, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which pixels are none. Shapes: -> that of stored."""
    kind = "Float" if "FloatPixelData" in found else "DoubleFloat" if "DoubleFloatPixelData" in found else ""
    ends = [found.get(f"{kind}PixelPadding{each}") for each in ("Value", "RangeLimit")]
    if ends[0] is None:
        return np.zeros(stored.shape, np.bool_)
    low, high = sorted((ends[0], ends[0] if ends[1] is None else ends[1]))
    return np.asarray((stored >= low) & (stored <= high))


def _color(found: Dataset, stored: NDArray[Any]) -> NDArray[np.float32]:
    """Shapes: -> (rows, columns, 3). pydicom has made RGB of YBR."""
    from pydicom.pixels.processing import apply_color_lut

    if found.PhotometricInterpretation == "PALETTE COLOR":
        made = apply_color_lut(stored, found)[..., :3]
        top = np.iinfo(made.dtype).max
    else:
        made, top = stored, (1 << int(found.BitsStored)) - 1
    return made.astype(np.float32) / np.float32(top)
