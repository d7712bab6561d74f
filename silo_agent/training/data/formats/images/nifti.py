"""NIfTI by nibabel: scaled values, and the axes of sform, else of qform."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.grids import Affine, Picture, in_form
from silo_agent.training.data.formats.memory import check_values

LEAST_EXTENSION = 16  # bytes
MILLIMETERS = {"meter": 1e3, "micron": 1e-3}  # in a unit of lengths; others are taken as millimeters


def read(path: Path, size: tuple[int, ...], is_mask: bool, *, scans: ScanSpec) -> Picture:
    """As scans.Read; a fourth axis is the channels. Raises ConfigError, and whatever a decoder does."""
    from nibabel import Nifti1Image, Nifti2Image

    form: Any = (Nifti1Image, Nifti2Image)[_checked(path, size)]
    file = form.from_filename(path)
    if file.get_data_dtype().kind not in "iuf":
        raise ConfigError(f"{path}: values of type {file.get_data_dtype()}, expected one number each")
    affine = _affine(file.header, path)
    found = np.asarray(file.dataobj, np.float32)
    if len(size) == 2 and found.ndim == 3 and found.shape[2] == 1:
        found = found[..., 0]
    if found.ndim not in (len(size), len(size) + 1):
        raise ConfigError(f"{path}: an image of {found.ndim} dimensions, expected {len(size)}")
    values = found[np.newaxis] if found.ndim == len(size) else np.moveaxis(found, -1, 0)
    return in_form(values, affine, size, scans, is_mask=is_mask, source=path)


def _checked(path: Path, size: tuple[int, ...]) -> bool:
    """Whether it is NIfTI-2. Raises ConfigError for a file that is neither, or declares too much."""
    from nibabel import Nifti1Header, Nifti2Header

    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        start = file.read(Nifti2Header.sizeof_hdr)
    form: Any
    for form in (Nifti1Header, Nifti2Header):
        if form.may_contain_header(start):
            header = form(start[: form.sizeof_hdr], check=False)
            break
    else:
        raise ConfigError(f"{path}: not a readable image (no header of NIfTI)")
    # what lies before the image is read, too
    declared = math.prod(map(abs, header.get_data_shape())) + abs(int(header["vox_offset"]))
    check_values(declared, size, source=path)
    with opened(path, "rb") as file:
        _check_extensions(file.read(max(int(header["vox_offset"]), header.sizeof_hdr + 4)), header, path)
    return form is Nifti2Header


def _check_extensions(before: bytes, header: Any, path: Path) -> None:
    """Raises ConfigError for header extensions that do not end before the image. before: all that lies
    there."""
    place, end = header.sizeof_hdr + 4, int(header["vox_offset"])
    if before[place - 4 : place - 3] in (b"", b"\0"):
        return
    order: Any = "little" if header.endianness == "<" else "big"
    while end - place >= LEAST_EXTENSION:
        length = int.from_bytes(before[place : place + 4], order)
        if not LEAST_EXTENSION <= length <= end - place:
            raise ConfigError(f"{path}: a header extension of {length} bytes, expected 16 to {end - place}")
        place += length
    if end < place:
        raise ConfigError(f"{path}: header extensions, and vox_offset is {end}")


def _affine(header: Any, path: Path) -> Affine:
    scale = np.diag([MILLIMETERS.get(header.get_xyzt_units()[0], 1.0)] * 3 + [1.0])
    for found, code in (header.get_sform(coded=True), header.get_qform(coded=True)):
        if code > 0:
            return np.asarray(scale @ found, np.float64)
    raise ConfigError(f"{path}: neither sform_code nor qform_code says how its axes lie")
