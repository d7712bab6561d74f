"""Images in one folder a class, by the job's names of the classes. Where the job's labels are no classes of
folders they lie beside the images, as masks or in a table (scans.py). What a file's pixels mean is in
images/plain.py.

Images in sub-folders are of the class of the folder around them. A class without a folder has no images at
this silo. Images in a folder that is no class of the job are problems, unless the settings drop it:
numbers are never inferred from what this silo happens to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats import scans
from silo_agent.training.data.formats.images import names
from silo_agent.training.data.formats.images.names import Endings, listed
from silo_agent.training.data.formats.images.plain import FORMATS, MODES, read
from silo_agent.training.data.formats.tables import class_numbers, some
from silo_agent.training.data.private import every
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings

ENDINGS = Endings(known=tuple(FORMATS))


class Images:
    """Images by place, each decoded when it is asked for. Shapes of one: (channels, H, W) uint8, class."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], *, shape: tuple[int, ...]) -> None:
        self._files, self._labels, self._shape = files, labels, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: int) -> tuple[NDArray[Any], int]:
        """Raises ConfigError for an image that cannot be read."""
        try:
            image = read(self._files[place], self._shape[1:], False, channels=self._shape[0])
        except ConfigError:
            raise
        except Exception as error:  # what decoders raise is on no list
            raise ConfigError(scans.unreadable(error)) from error
        return image.values, self._labels[place]


class Contents:
    """The record of each image: the bytes of its file and the name of its class's folder."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        self._files, self._root = files, root

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: int) -> bytes:
        path = self._files[place]
        folder = path.relative_to(self._root).parts[0]
        if folder == scans.IMAGES:  # as where its label lies beside it: no job moves it to another side
            return scans.Files([path], self._root)[0]
        return path.read_bytes() + folder.encode("utf-8", "surrogateescape")


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Images by place, resized to the job's input shape. Raises ConfigError if the folders are not one a
    class."""
    root = required_path(settings)
    if len(job.input_shape) != 3 or job.input_shape[0] not in MODES:
        raise ConfigError(
            f"input_shape: expected (1 or 3, height, width) for format image-folder, got {job.input_shape}"
        )
    if job.label_column is not None or job.method.task.target.shape:
        beside = partial(read, channels=job.input_shape[0])
        return scans.load_with(beside, settings, job, endings=ENDINGS)
    problems = Problems()
    files, labels = _files(root, settings, job, problems)
    return RawData(
        train=Images(files, labels, shape=job.input_shape),
        identities=Contents(files, root),
        place=[str(path) for path in files].__getitem__,
        problems=problems,
    )


def records(settings: DataSettings) -> Records:
    """Images in folders of classes and, where a folder `images` is there, those beside masks or a table: the
    job says which of both they are. Raises ConfigError as `load`."""
    root = required_path(settings)
    files = [path for folder in _folders(root) for path in listed(folder, ENDINGS).images.values()]
    return Records(train=every(Contents(files, root)))


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ConfigError(f"data.path: {root} is not a folder")
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(
    root: Path, settings: DataSettings, job: JobSpec, problems: Problems
) -> tuple[list[Path], list[int]]:
    """Every image of the job's classes with its class, folder by folder. Raises ConfigError where neither
    the job nor the settings say which folder is which class."""
    folders = _folders(root)
    if not job.class_names and not any(isinstance(each, int) for each in settings.labels.values()):
        raise ConfigError(
            "classes: format image-folder needs the name of each class, such as [healthy, pneumonia], or "
            f"data.labels with the number of each folder here; the job says {job.classes}"
        )
    numbers, files, labels = class_numbers(settings, job), list[Path](), list[int]()
    for folder in folders:
        found = listed(folder, ENDINGS)
        images = list(found.images.values())
        if folder.name in settings.drop:
            problems.dropped[folder.name] += len(images)
            continue
        if found.left_out:
            problems.say(found.flow(len(images), (), of="a class"))
        if folder.name in numbers:
            files += images
            labels += [numbers[folder.name]] * len(images)
        else:
            message = f"folder {folder.name!r} is none of the job's classes {some([*numbers])}"
            for path in images:
                problems.add(f"{path}: {message}", alike=message)
    if outside := [path.name for path in sorted(root.iterdir()) if path not in folders]:
        problems.say(f"{root}: left out, in no class folder: {names.some(outside)}")
    return files, labels
