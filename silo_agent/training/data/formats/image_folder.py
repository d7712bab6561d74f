"""Images in one folder a class; the classes are numbered by the folders' sorted names. Where the job's labels
are no classes of folders they lie beside the images, as masks or in a table (scans.py).

A folder may be empty, but every class of the job needs one: numbers are never inferred from
what this silo happens to hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats import scans
from silo_agent.training.data.formats.memory import check_values
from silo_agent.training.data.private import every
from silo_agent.training.data.settings import DataSettings

# Pillow's names by suffix; no other decoder reads a file, whatever its name (EPS starts a program)
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
MODES = {1: "L", 3: "RGB"}  # Pillow's names by number of channels


class Images:
    """Images by place, each decoded when it is asked for. Shapes of one: (channels, H, W) uint8, class."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], *, shape: tuple[int, ...]) -> None:
        self._files, self._labels, self._shape = files, labels, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: int) -> tuple[NDArray[Any], int]:
        """Raises ConfigError for an image that cannot be read."""
        try:
            image = _read(self._files[place], self._shape[1:], False, channels=self._shape[0])
        except ConfigError:
            raise
        except Exception as error:  # what decoders raise is on no list
            raise ConfigError(f"not a readable image ({type(error).__name__})") from error
        return image, self._labels[place]


class Contents:
    """The record of each image: the bytes of its file and its folder's name."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: int) -> bytes:
        path = self._files[place]
        return path.read_bytes() + path.parent.name.encode("utf-8", "surrogateescape")


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Images by place, resized to the job's input shape. Raises ConfigError if the folders are not one a
    class."""
    root = required_path(settings)
    if len(job.input_shape) != 3 or job.input_shape[0] not in MODES:
        raise ConfigError(
            f"input_shape: expected (1 or 3, height, width) for format image-folder, got {job.input_shape}"
        )
    if job.label_column is not None or job.method.task.target.shape:
        read = partial(_read, channels=job.input_shape[0])
        return scans.load_with(read, settings, job, suffixes=tuple(FORMATS))
    files, labels = _files(root, job.classes)
    return RawData(
        train=Images(files, labels, shape=job.input_shape),
        identities=Contents(files),
        places=[str(path) for path in files],
    )


def records(settings: DataSettings) -> Records:
    """Images in folders of classes and, where a folder `images` is there, those beside masks or a table: the
    job says which of both they are. Raises ConfigError as `load`."""
    root = required_path(settings)
    files = [path for folder in _folders(root) for path in _images(folder)]
    beside = scans.stored_in(root, tuple(FORMATS)) if (root / scans.IMAGES).is_dir() else ()
    return Records(train=chain(every(Contents(files)), beside))


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise ConfigError(f"data.path: {root} is not a folder")
    return sorted(path for path in root.iterdir() if path.is_dir())


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in FORMATS)


def _files(root: Path, classes: int) -> tuple[list[Path], list[int]]:
    """Every image with its class, folder by folder."""
    folders = _folders(root)
    if len(folders) != classes:
        raise ConfigError(f"data.path: {root} has {len(folders)} class folders, expected {classes} (classes)")
    files, labels = [], []
    for label, folder in enumerate(folders):
        found = _images(folder)
        files += found
        labels += [label] * len(found)
    return files, labels


def _read(path: Path, size: tuple[int, ...], is_mask: bool, *, channels: int) -> NDArray[Any]:
    """As scans.Read. A mask is gray, or a palette whose numbers are the classes."""
    from PIL import Image

    height, width = size
    with Image.open(path, formats=tuple(FORMATS.values())) as image:
        check_values(math.prod(image.size) * len(image.getbands()), size, source=path)
        if not is_mask:
            pixels = np.asarray(image.convert(MODES[channels]).resize((width, height)))
            return pixels.reshape(height, width, channels).transpose(2, 0, 1)
        if image.mode not in ("1", "L", "P", "I", "I;16"):
            raise ConfigError(f"{path}: a mask has one channel, this one is {image.mode}")
        return np.asarray(image.resize((width, height), Image.Resampling.NEAREST), np.int64)[np.newaxis]
