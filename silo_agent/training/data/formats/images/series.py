"""A DICOM series as a volume: the order of its slices, and where they lie.

By ImagePositionPatient along the normal of ImageOrientationPatient; where no slice has a position, by
InstanceNumber. Spacing comes from positions, never from SliceThickness. A file that does not belong to the
volume is refused by its name: nothing is left out.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images import dicom
from silo_agent.training.data.formats.images.grids import NEAR_MM, Affine, Picture, in_form
from silo_agent.training.data.formats.images.names import files_of
from silo_agent.training.data.formats.memory import check_values

NEAR_PART = 0.01  # of the distance of slices
NEAR_COSINE = 1e-3
AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # of slices that do not say how they lie
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # a file's axes run to the left, to the back and upwards


def read(path: Path, size: tuple[int, ...], is_mask: bool, *, channels: int, scans: ScanSpec) -> Picture:
    """As scans.Read: a slice is rows by columns, as it is shown. Raises ConfigError, and whatever a decoder
    does."""
    with warnings.catch_warnings(action="ignore"):  # of values that no reader here asks for
        return _read(path, size, is_mask, channels, scans)


def _read(path: Path, size: tuple[int, ...], is_mask: bool, channels: int, scans: ScanSpec) -> Picture:
    files = files_of(path)
    headers = [dicom.header(file) for file in files]
    check_values(sum(map(dicom.declared, headers)), size, source=path)
    order, affine, is_placed = [0], None, False
    if len(size) == 2 and len(files) != 1:
        raise ConfigError(f"{path}: a series of {len(files)} slices, expected one slice")
    if len(size) == 3:
        if len(files) < 2:
            raise ConfigError(f"{path}: a volume needs a folder of its slices, got {len(files)} file")
        order, affine, is_placed = arranged(files, headers)
    slices = [dicom.values(files[each], channels=channels, is_mask=is_mask, scans=scans) for each in order]
    found = slices[0] if len(size) == 2 else np.stack(slices, axis=-1).transpose(0, 2, 1, 3)
    values = dicom.filled(found, scans.pad, source=path)
    return in_form(values, affine, size, scans, is_mask=is_mask, source=path, is_placed=is_placed)


def arranged(files: Sequence[Path], headers: Sequence[Any]) -> tuple[list[int], Affine, bool]:
    """The slices from the first to the last, the affine of (column, row, slice), and whether it is in
    millimeters. Raises ConfigError that names the file which does not belong there."""
    _check_alike(files, headers)
    placed = [header.get("ImagePositionPatient") is not None for header in headers]
    if not any(placed):
        return _by_number(files, headers)
    for tag in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
        for file, header in zip(files, headers, strict=True):
            if header.get(tag) is None:
                raise ConfigError(f"{file}: tag {tag} is missing")
    return _by_position(files, headers)


def _check_alike(files: Sequence[Path], headers: Sequence[Any]) -> None:
    """Raises ConfigError for a file that differs from most of its series."""

    def size(header: Any) -> Hashable:
        return f"{header.get('Rows')} x {header.get('Columns')} pixels"

    def is_scout(header: Any) -> Hashable:
        kind = header.get("ImageType") or ()
        return "a scout (ImageType LOCALIZER)" if "LOCALIZER" in kind else "no scout"

    facts = [("", size), ("", is_scout)]
    tags = ("SeriesInstanceUID", "ImageOrientationPatient", "PixelSpacing", "AcquisitionNumber", "Units")
    facts += [(f"{tag} ", _rounded(tag)) for tag in (*tags, "PatientID")]
    for name, of in facts:
        found = [of(header) for header in headers]
        usual = Counter(found).most_common(1)[0][0]
        for file, each in zip(files, found, strict=True):
            if each != usual:
                raise ConfigError(f"{file}: {name}{each}, the other slices of its series have {usual}")


def _rounded(tag: str) -> Any:
    def of(header: Any) -> str:
        found = header.get(tag)
        if tag not in ("ImageOrientationPatient", "PixelSpacing") or found is None:
            return str(found)
        return str([round(float(each), 3) + 0.0 for each in found])

    return of


def _by_position(files: Sequence[Path], headers: Sequence[Any]) -> tuple[list[int], Affine, bool]:
    cosines = np.asarray(headers[0].ImageOrientationPatient, np.float64)
    normal = _normal(cosines, files[0])
    places = np.asarray([header.ImagePositionPatient for header in headers], np.float64)
    along = places @ normal
    order = [int(each) for each in np.argsort(along, kind="stable")]
    gaps = np.diff(along[order])
    usual = float(np.median(gaps))
    near = max(NEAR_MM, NEAR_PART * usual)
    for at, gap in enumerate(gaps):
        before, file = files[order[at]], files[order[at + 1]]
        if gap < NEAR_MM:
            raise ConfigError(f"{file}: at the same position as {before.name}")
        if abs(gap - usual) > near:
            raise ConfigError(
                f"{file}: {gap:.3f} mm from {before.name}, the other slices are {usual:.3f} mm apart"
            )
    step = (places[order[-1]] - places[order[0]]) / (len(order) - 1)
    aside = places - places[order[0]] - np.outer(along - along[order[0]], normal)
    for file, distance in zip(files, np.linalg.norm(aside, axis=1), strict=True):
        if distance > near:
            raise ConfigError(
                f"{file}: {distance:.3f} mm beside the normal of the first slice (a tilted gantry, or "
                "another series)"
            )
    spacing = [float(each) for each in headers[0].PixelSpacing]
    return order, _affine(cosines, spacing, step, places[order[0]]), True


def _by_number(files: Sequence[Path], headers: Sequence[Any]) -> tuple[list[int], Affine, bool]:
    """Raises ConfigError unless every slice has a number of its own, and none lacks between them."""
    first: dict[int, Path] = {}
    for file, header in zip(files, headers, strict=True):
        number = header.get("InstanceNumber")
        if number is None:
            raise ConfigError(f"{file}: neither ImagePositionPatient nor InstanceNumber says its place")
        if int(number) in first:
            raise ConfigError(f"{file}: InstanceNumber {number} is that of {first[int(number)].name}, too")
        first[int(number)] = file
    numbers = sorted(first)
    for before, after in pairwise(numbers):
        if after - before != numbers[1] - numbers[0]:
            raise ConfigError(f"{first[after]}: InstanceNumber {after} follows {before}: a slice is missing")
    order = [files.index(first[number]) for number in numbers]
    cosines = np.asarray(headers[0].get("ImageOrientationPatient") or AXIAL, np.float64)
    normal = _normal(cosines, files[0])
    return order, _affine(cosines, [1.0, 1.0], normal, np.zeros(3)), False


def _normal(cosines: Any, file: Path) -> Any:
    """Raises ConfigError for directions that are not two of length 1 at a right angle."""
    row, column = cosines[:3], cosines[3:]
    if len(cosines) == 6:
        found = (row @ row - 1, column @ column - 1, row @ column)
        if np.allclose(found, 0, rtol=0, atol=NEAR_COSINE):
            return np.cross(row, column)
    raise ConfigError(f"{file}: ImageOrientationPatient is {cosines.tolist()}, expected two directions")


def _affine(cosines: Any, spacing: Sequence[float], step: Any, first: Any) -> Affine:
    made = np.eye(4)
    # PixelSpacing is between rows, then between columns
    made[:3, 0], made[:3, 1] = cosines[:3] * spacing[1], cosines[3:] * spacing[0]
    made[:3, 2], made[:3, 3] = step, first
    return np.asarray(TO_RAS @ made)
