"""Images whose labels lie beside them: plain ones, and DICOM and NIfTI of two or three dimensions, by MONAI.

    images/NAME.nii.gz   one file an image, or for DICOM a folder of the files of one series
    masks/NAME.nii.gz    where a target is an image (segmentation): of the same name, whole numbers
    labels.csv           else: the column `image` holds NAME.nii.gz, the job's label_column the label

Volumes are turned to right, anterior, superior (x, y, z), whatever way they were stored; slices stay as they
are. All are resized to the job's input_shape, masks without mixing their numbers. Values stay what the
file says (Hounsfield units of a CT): the job's `normalize` scales them.

N = images.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import Labels, RawData, Records, required_path
from silo_agent.training.data.formats.csv import read_table
from silo_agent.training.data.formats.memory import check_values
from silo_agent.training.data.formats.tables import labels_of
from silo_agent.training.data.private import every
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataFormat, DataSettings

IMAGES, MASKS, LABELS = "images", "masks", "labels.csv"
IMAGE_COLUMN = "image"
SUFFIXES = {DataFormat.NIFTI: (".nii", ".nii.gz"), DataFormat.DICOM: ("",)}  # files of DICOM have any name

Image: TypeAlias = NDArray[Any]
Read: TypeAlias = Callable[[Path, tuple[int, ...], bool], Image]  # a file, its size, and whether it is a mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """A map-style data set. Shapes: input (channels, *size), float32 or uint8; target: a mask (*size), or the
    row of a table."""

    images: Sequence[Path]
    targets: Sequence[Path] | Labels
    read: Read
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Image, Any]:
        """Raises ConfigError for a file that is no such image."""
        image, target = self._image(self.images[place], is_mask=False), self.targets[place]
        if not isinstance(target, Path):
            return image, target
        mask = self._image(target, is_mask=True)
        if (mask != np.floor(mask)).any():
            raise ConfigError(f"{target}: a mask holds whole numbers")
        return image, mask[0].astype(np.int64)

    def _image(self, path: Path, *, is_mask: bool) -> Image:
        try:
            image = self.read(path, self.shape[1:], is_mask)
        except ConfigError:
            raise
        except Exception as error:  # what decoders raise is on no list
            raise ConfigError(f"{path}: not a readable image") from error
        expected = (1 if is_mask else self.shape[0], *self.shape[1:])
        if image.shape != expected:
            raise ConfigError(f"{path}: an image has shape {image.shape}, expected {expected}")
        return image


class Files:
    """What is stored of each image: its files, and its name, which its label goes by."""

    def __init__(self, images: Sequence[Path], root: Path) -> None:
        self._images, self._root = images, root

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: int) -> bytes:
        path = self._images[place]
        digest = hashlib.sha256(path.relative_to(self._root).as_posix().encode("utf-8", "surrogateescape"))
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.digest()


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `load_with`, DICOM or NIfTI. Raises ConfigError, too, for a job of other images."""
    _import_monai()
    if len(job.input_shape) not in (3, 4):
        raise ConfigError(
            f"input_shape: format {settings.format} expects (channels, x, y) or (channels, x, y, z), "
            f"got {job.input_shape}"
        )
    read = _read_nifti if settings.format is DataFormat.NIFTI else _read_dicom
    raw = load_with(read, settings, job, suffixes=SUFFIXES[DataFormat(settings.format)])
    if settings.unit is None:
        return raw
    assert isinstance(raw.train, Scans)
    return replace(raw, units=_tagged(raw.train.images, settings.unit))


def _tagged(images: Sequence[Path], tag: str) -> list[str | None]:
    """What each image's first file has under that keyword of DICOM; None where it cannot be read."""
    from pydicom import datadict, dcmread

    if datadict.tag_for_keyword(tag) is None:
        raise ConfigError(f"data.unit: {tag} is no keyword of DICOM, such as PatientID")
    found: list[str | None] = []
    for path in images:
        try:
            first = min(path.iterdir()) if path.is_dir() else path
            _check_not_deflated(first)
            header = dcmread(first, stop_before_pixels=True, specific_tags=[tag])
            found.append(str(header.get(tag, "")))
        except Exception:  # what a decoder raises is on no list; the image is then told as unreadable
            found.append(None)
    return found


def records(settings: DataSettings) -> Records:
    """Every image in the folder, whether a job's table or masks name it or not. Raises ConfigError."""
    root = required_path(settings)
    images = list(_listed(root / IMAGES, SUFFIXES[DataFormat(settings.format)]).values())
    units = None if settings.unit is None else _tagged(images, settings.unit)
    return Records(train=every(Files(images, root)), units=units)


def stored_in(root: Path, suffixes: tuple[str, ...]) -> Iterator[bytes | None]:
    """What is stored of each image. Raises ConfigError."""
    return every(Files(list(_listed(root / IMAGES, suffixes).values()), root))


def load_with(read: Read, settings: DataSettings, job: JobSpec, *, suffixes: tuple[str, ...]) -> RawData:
    """Images by place. Raises ConfigError for folders or a table that are not there."""
    root, shape, problems = required_path(settings), job.input_shape, Problems()
    images, targets = (_labelled if job.label_column else _masked)(root, settings, job, problems, suffixes)
    return RawData(
        train=Scans(images=images, targets=targets, read=read, shape=shape),
        identities=Files(images, root),
        places=[str(path) for path in images],
        problems=problems,
    )


def _masked(
    root: Path, settings: DataSettings, job: JobSpec, problems: Problems, suffixes: tuple[str, ...]
) -> tuple[list[Path], list[Path]]:
    """Every image that has a mask. Raises ConfigError where the task has none or a folder is missing."""
    if job.method.task.target.shape != job.input_shape[1:]:
        raise ConfigError(
            f"label_column: format {settings.format} needs the heading of the label in {LABELS}, or a "
            "task whose labels are masks"
        )
    images, masks = (_listed(root / folder, suffixes) for folder in (IMAGES, MASKS))
    found = []
    for name, path in images.items():
        if name in masks:
            found.append((path, masks[name]))
        else:
            problems.add(f"{path}: no mask of its name in {root / MASKS}")
    return [path for path, _ in found], [mask for _, mask in found]


def _labelled(
    root: Path, settings: DataSettings, job: JobSpec, problems: Problems, suffixes: tuple[str, ...]
) -> tuple[list[Path], Labels]:
    """Every image of the table that is there, with its label."""
    wanted = (IMAGE_COLUMN, *job.label_columns)
    table, _ = read_table(root / LABELS, settings, wanted, is_private=job.privacy is not None)
    labels, files = labels_of(table, settings.labels, job), _listed(root / IMAGES, suffixes)
    problems.take(table.problems)
    places, images = [], []
    for row, name in enumerate(table.texts(IMAGE_COLUMN)):
        path = files.get(_stem(name))
        if path is None:
            problems.add(f"{table.place(row)}: no image {name[:100]!r} in {root / IMAGES}")
        else:
            places.append(row)
            images.append(path)
    return images, labels[np.asarray(places, np.int64)]


def _listed(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Images by their name without its ending, in the order of names."""
    if not folder.is_dir():
        raise ConfigError(f"data.path: {folder} is not a folder")
    return {
        _stem(path.name): path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".") and path.name.lower().endswith(suffixes)
    }


def _stem(name: str) -> str:
    return name.removesuffix(".gz").rpartition(".")[0] or name


def _import_monai() -> None:
    try:
        import monai.transforms  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("data.format: DICOM and NIfTI need MONAI: pip install '.[medical]'") from None


def _read_nifti(path: Path, size: tuple[int, ...], is_mask: bool) -> Image:
    from monai.data import NibabelReader
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
        raise ConfigError(f"{path}: not a readable image")
    # what lies before the image is read, too
    declared = math.prod(map(abs, header.get_data_shape())) + abs(int(header["vox_offset"]))
    check_values(declared, size, source=path)
    return _read(NibabelReader(), path, size, is_mask)


def _read_dicom(path: Path, size: tuple[int, ...], is_mask: bool) -> Image:
    from monai.data import PydicomReader

    files = sorted(path.iterdir()) if path.is_dir() else [path]
    check_values(sum(map(_dicom_values, files)), size, source=path)
    # a slice is rows by columns, as it is shown
    return _read(PydicomReader(swap_ij=len(size) == 3), path, size, is_mask)


def _dicom_values(file: Path) -> int:
    """Of all frames; none where the file is not DICOM."""
    from pydicom import dcmread
    from pydicom.misc import is_dicom

    if not is_dicom(file):
        return 0
    _check_not_deflated(file)
    tags = ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")
    header = dcmread(file, stop_before_pixels=True, specific_tags=list(tags))
    return math.prod(abs(int(header.get(tag) or 1)) for tag in tags)


def _check_not_deflated(file: Path) -> None:
    """Raises ConfigError for a file whose header can only be read by inflating all of it."""
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    if read_file_meta_info(file).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        raise ConfigError(f"{file}: deflated DICOM does not declare its size: store it in another syntax")


def _read(reader: Any, path: Path, size: tuple[int, ...], is_mask: bool) -> Image:
    """Shapes: -> (channels, *size) float32. Raises whatever a decoder does."""
    from monai.data import MetaTensor
    from monai.transforms import EnsureChannelFirst, Orientation, Resize

    # not by LoadImage, which tries every reader that MONAI has, by the file's ending
    values, facts = reader.get_data(reader.read(str(path)))
    image = EnsureChannelFirst()(MetaTensor(np.asarray(values, np.float32), meta=facts))
    if len(size) == 3 and image.ndim == 4:
        image = Orientation(axcodes="RAS", labels=(("L", "R"), ("P", "A"), ("I", "S")))(image)
    if len(size) == 2 and image.ndim == 4 and image.shape[-1] == 1:
        image = image[..., 0]
    if image.ndim != len(size) + 1:
        raise ConfigError(f"{path}: an image of {image.ndim - 1} dimensions, expected {len(size)}")
    if is_mask:
        return np.asarray(Resize(size, mode="nearest")(image), np.float32)
    mode = "trilinear" if len(size) == 3 else "bilinear"
    return np.asarray(Resize(size, mode=mode, anti_aliasing=True)(image), np.float32)
