"""Images whose labels lie beside them: plain ones, and DICOM and NIfTI of two or three dimensions.

    images/NAME.nii.gz   one file an image, or for DICOM a folder of the files of one series
    masks/NAME.nii.gz    where a target is an image (segmentation): of the same name, whole numbers
    labels.csv           else: the column `image` holds NAME.nii.gz, the job's label_column the label

NAME may lie in sub-folders: an image is called by its whole relative path, or shorter where that fits one
image alone (images/names.py). The job's `scans` says what their values mean and in which grid they are taken;
else they are resized to input_shape, masks without mixing their numbers, and values stay what the file says
(Hounsfield units of a CT). Masks of DICOM volumes may be NIfTI.

N = images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.scan_specs import ScanSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import Labels, RawData, Records, required_path
from silo_agent.training.data.formats.csv import read_table
from silo_agent.training.data.formats.images.grids import Picture, Values
from silo_agent.training.data.formats.images.names import Endings, Listed, files_of, listed, some
from silo_agent.training.data.formats.tables import class_numbers, kept_rows, labels_of
from silo_agent.training.data.private import every
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataFormat, DataSettings, SettingsFault
from strategies.tasks.segmentation import VOID, Segmentation

IMAGES, MASKS, LABELS = "images", "masks", "labels.csv"
IMAGE_COLUMN = "image"
LONGEST = 300  # characters of what a decoder says
NIFTI_ENDINGS = (".nii", ".nii.gz")
ENDINGS = {
    DataFormat.NIFTI: Endings(known=NIFTI_ENDINGS),
    DataFormat.DICOM: Endings(known=(".dcm", ".dicom", ".ima", *NIFTI_ENDINGS), has_series=True),
}

Read: TypeAlias = Callable[[Path, tuple[int, ...], bool], Picture]  # a file, its size, whether it is a mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """A map-style data set. Shapes: input (channels, *size), float32 or uint8; target: a mask (*size), or the
    row of a table.

    classes: of the numbers in masks; None: they are the classes.
    """

    images: Sequence[Path]
    targets: Sequence[Path] | Labels
    read: Read
    shape: tuple[int, ...]
    classes: Mapping[int, int] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Values, Any]:
        """Raises ConfigError for a file that is no such image."""
        image, target = self.picture(self.images[place]), self.targets[place]
        if not isinstance(target, Path):
            return image.values, target
        mask = self.picture(target, is_mask=True)
        image.grid.check_same(mask.grid, source=target)
        if mask.is_lost:
            raise ConfigError(f"{target}: all that it marks lies beyond the job's scans.grid")
        if (mask.values != np.floor(mask.values)).any():
            raise ConfigError(f"{target}: a mask holds whole numbers")
        numbers = mask.values[0].astype(np.int64)
        if self.classes is None:
            return image.values, numbers
        found, places = np.unique(numbers, return_inverse=True)
        if strange := [each for each in found.tolist() if each not in self.classes]:
            raise ConfigError(f"{target}: a mask of {strange[0]}, expected one of {[*self.classes]}")
        of_each = np.array([self.classes[each] for each in found.tolist()], np.int64)
        return image.values, of_each[places.reshape(numbers.shape)]

    def picture(self, path: Path, *, is_mask: bool = False) -> Picture:
        """Raises ConfigError as a sample does."""
        try:
            picture = self.read(path, self.shape[1:], is_mask)
        except ConfigError:
            raise
        except Exception as error:  # what decoders raise is on no list
            raise ConfigError(f"{path}: {unreadable(error)}") from error
        expected = (1 if is_mask else self.shape[0], *self.shape[1:])
        if picture.values.shape != expected:
            raise ConfigError(f"{path}: an image has shape {picture.values.shape}, expected {expected}")
        return picture


def unreadable(error: Exception) -> str:
    """What a decoder raised, in one line."""
    text = " ".join(str(error).split())
    return f"not a readable image ({type(error).__name__}{': ' if text else ''}{text[:LONGEST]})"


class Files:
    """What is stored of each image: its files, and its name, which its label goes by."""

    def __init__(self, images: Sequence[Path], root: Path) -> None:
        self._images, self._root = images, root

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: int) -> bytes:
        path = self._images[place]
        digest = hashlib.sha256(path.relative_to(self._root).as_posix().encode("utf-8", "surrogateescape"))
        for file in files_of(path):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.digest()


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `load_with`, DICOM or NIfTI. Raises ConfigError, too, for a job of other images."""
    if len(job.input_shape) not in (3, 4):
        raise ConfigError(
            f"input_shape: format {settings.format} expects (channels, x, y) or (channels, x, y, z), "
            f"got {job.input_shape}"
        )
    form = DataFormat(settings.format)
    raw = load_with(reader_of(form, job), settings, job, endings=ENDINGS[form])
    if settings.unit is None:
        return raw
    assert isinstance(raw.train, Scans)
    return replace(raw, units=_tagged(raw.train.images, settings.unit))


def reader_of(form: DataFormat, job: JobSpec) -> Read:
    """Of DICOM or NIfTI. Raises ConfigError where a reader is not installed, or for a job that it cannot
    serve."""
    import_readers()
    from silo_agent.training.data.formats.images import nifti, series

    scans, channels = job.scans or ScanSpec(), job.input_shape[0]
    if form is DataFormat.NIFTI:
        if scans.values == "voi":
            raise ConfigError("scans.values: NIfTI has no windows, expected modality")
        return partial(nifti.read, scans=scans)
    if channels not in (1, 3):
        raise ConfigError(f"input_shape: format dicom expects 1 or 3 channels, got {job.input_shape}")
    if channels == 3 and job.scans is not None:
        raise ConfigError("scans: expected one channel, color has values from 0 to 1")

    def read(path: Path, size: tuple[int, ...], is_mask: bool) -> Picture:
        if is_mask and len(size) == 3 and path.name.lower().endswith(NIFTI_ENDINGS):
            return nifti.read(path, size, is_mask, scans=scans)
        return series.read(path, size, is_mask, channels=channels, scans=scans)

    return read


def _tagged(images: Sequence[Path], tag: str) -> list[str | None]:
    """What each image's first file has under that keyword of DICOM; None where it cannot be read."""
    from pydicom import datadict, dcmread

    from silo_agent.training.data.formats.images.dicom import check_not_deflated

    if datadict.tag_for_keyword(tag) is None:
        raise ConfigError(f"data.unit: {tag} is no keyword of DICOM, such as PatientID")
    found: list[str | None] = []
    for path in images:
        try:
            first = files_of(path)[0]
            check_not_deflated(first)
            header = dcmread(first, stop_before_pixels=True, specific_tags=[tag])
            found.append(str(header.get(tag, "")))
        except Exception:  # what a decoder raises is on no list; the image is then a problem
            found.append(None)
    return found


def records(settings: DataSettings) -> Records:
    """Every image in the folder, whether a job's table or masks name it or not. Raises ConfigError."""
    root = required_path(settings)
    images = list(listed(root / IMAGES, ENDINGS[DataFormat(settings.format)]).images.values())
    units = None if settings.unit is None else _tagged(images, settings.unit)
    return Records(train=every(Files(images, root)), units=units)


def load_with(read: Read, settings: DataSettings, job: JobSpec, *, endings: Endings) -> RawData:
    """Images by place. Raises ConfigError for folders or a table that are not there."""
    root, shape, problems = required_path(settings), job.input_shape, Problems()
    images, targets = (_labelled if job.label_column else _masked)(root, settings, job, problems, endings)
    classes = None if job.label_column else _mask_classes(settings, job)
    return RawData(
        train=Scans(images=images, targets=targets, read=read, shape=shape, classes=classes),
        identities=Files(images, root),
        place=[str(path) for path in images].__getitem__,
        problems=problems,
    )


def _mask_classes(settings: DataSettings, job: JobSpec) -> dict[int, int] | None:
    """The class of each number of a mask; None where they are the classes. Raises SettingsFault for `labels`
    that are no numbers of masks, or none of the job's classes."""
    task, void = job.method.task, dict[int, int]()
    if isinstance(task, Segmentation) and task.void is not None:
        void = {task.void: VOID}
    if not settings.labels:
        return {number: number for number in range(job.classes)} | void if void else None
    if wrong := [text for text in settings.labels if not (text.isascii() and text.isdigit())]:
        raise SettingsFault(f"data.labels: {wrong[0]}: expected a number in masks, such as 1")
    classes = class_numbers(settings, job)
    return void | {int(text): classes[text] for text in settings.labels}


def _masked(
    root: Path, settings: DataSettings, job: JobSpec, problems: Problems, endings: Endings
) -> tuple[list[Path], list[Path]]:
    """Every image that has a mask; in a private job of the same whole name, so that no image takes another's.
    Raises ConfigError where the task has none or a folder is missing."""
    if job.method.task.target.shape != job.input_shape[1:]:
        raise ConfigError(
            f"label_column: format {settings.format} needs the heading of the label in {LABELS}, or a "
            "task whose labels are masks"
        )
    images, masks = (listed(root / folder, endings) for folder in (IMAGES, MASKS))
    found, without = dict[str, Path](), list[str]()
    for key, path in images.images.items():
        meant, alike = _masks_of(key, images, masks, is_private=job.privacy is not None)
        if len(meant) == 1 and len(alike) == 1:
            found[key] = masks.images[meant[0]]
            continue
        without.append(key)
        if meant:
            named = f"{some(meant)} of {masks.folder} and {some(alike)} of {images.folder} have one name"
            problems.add(f"{path}: which mask is its own is unclear: {named}")
        else:
            problems.add(f"{path}: no mask of its name in {root / MASKS}")
    problems.say(images.flow(len(found), without, of="a mask"))
    chosen = set(found.values())
    unused = [key for key, path in masks.images.items() if path not in chosen]
    problems.say(masks.flow(len(chosen), unused, of="an image"))
    return [images.images[key] for key in found], [*found.values()]


def _masks_of(
    key: str, images: Listed, masks: Listed, *, is_private: bool
) -> tuple[Sequence[str], Sequence[str]]:
    """The masks that may be of this image, and the images that they may be of."""
    if key in masks.images:
        return (key,), (key,)
    if is_private:
        return (), ()
    stem = images.stem(key)
    taken = images.images.keys() & masks.images.keys()
    return [each for each in masks.of_stem(stem) if each not in taken], images.of_stem(stem)


def _labelled(
    root: Path, settings: DataSettings, job: JobSpec, problems: Problems, endings: Endings
) -> tuple[list[Path], Labels]:
    """Every image of the table that is there, with its label. In a private job a row names it whole: what a
    shorter name means depends on the other images."""
    wanted = (IMAGE_COLUMN, *job.label_columns)
    table, _ = read_table(root / LABELS, settings, wanted, is_private=job.privacy is not None)
    table = table.take(kept_rows(table, settings, job))
    labels = labels_of(table, class_numbers(settings, job), job, settings.missing)
    images = listed(root / IMAGES, endings)
    problems.take(table.problems)
    rows: dict[str, int] = {}  # by image
    for row, name in enumerate(table.texts(IMAGE_COLUMN)):
        meant = images.named(name) if job.privacy is not None else images.meant(name)
        place = table.place(row)
        if not meant:
            problems.add(f"{place}: no image {name[:100]!r} in {images.folder}")
        elif len(meant) > 1:
            problems.add(f"{place}: {name[:100]!r} may be {some(meant)} of {images.folder}: write which")
        elif meant[0] in rows:  # one image, one record: whatever its label, it counts once
            problems.add(f"{place}: image {meant[0]} is that of {table.place(rows[meant[0]])}, too")
        else:
            rows[meant[0]] = row
    without = [key for key in images.images if key not in rows]
    problems.say(images.flow(len(rows), without, of=f"a line in {LABELS}"))
    return [images.images[key] for key in rows], labels[np.asarray([*rows.values()], np.int64)]


def import_readers() -> None:
    try:
        import monai.transforms  # noqa: F401
        import nibabel  # noqa: F401
        import pydicom  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"data.format: DICOM and NIfTI need {error.name}: pip install '.[medical]'"
        ) from None
