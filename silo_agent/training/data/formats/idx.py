"""MNIST and Fashion-MNIST: idx files, plain or gzipped, under their official names in one folder."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, Samples, required_path
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.private import stored
from silo_agent.training.data.settings import DataSettings

IMAGES_MAGIC = 2051  # unsigned bytes in three dimensions
LABELS_MAGIC = 2049  # unsigned bytes in one dimension


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (60000, 28, 28) uint8 for the official files, with their own test split.

    Raises ConfigError if a file is missing, of another kind or not of its declared length.
    """
    folder = required_path(settings)
    return RawData(train=_split(folder, "train"), holdout=_split(folder, "t10k"))


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `load`."""
    folder = required_path(settings)
    return Records(train=stored(_split(folder, "train")), holdout=stored(_split(folder, "t10k")))


def _split(folder: Path, prefix: str) -> Samples:
    images = _read(folder, f"{prefix}-images-idx3-ubyte", magic=IMAGES_MAGIC)
    labels = _read(folder, f"{prefix}-labels-idx1-ubyte", magic=LABELS_MAGIC)
    if len(images) != len(labels):
        raise ConfigError(f"{folder}: {prefix} has {len(images)} images but {len(labels)} labels")
    return Samples(features=images, labels=labels.astype(np.int64))


def _read(folder: Path, name: str, *, magic: int) -> NDArray[Any]:
    path = folder / name
    if path.is_file():
        with path.open("rb") as file:
            shape, content = _read_declared(file, path, magic=magic)
    else:
        path = folder / f"{name}.gz"
        if not path.is_file():
            raise ConfigError(f"data.path: {folder} holds neither {name} nor {name}.gz")
        try:
            with gzip.open(path) as file:
                shape, content = _read_declared(cast(BinaryIO, file), path, magic=magic)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{path}: not a whole gzip file") from error
    try:
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)
    except ValueError as error:  # no images, of more pixels than an array can have
        raise ConfigError(f"{path}: no array has the shape {shape}") from error


def _read_declared(file: BinaryIO, path: Path, *, magic: int) -> tuple[tuple[int, ...], bytes]:
    """The shape that the file declares, and as many bytes. Raises ConfigError for more or fewer."""
    dimensions = magic & 0xFF
    start = file.read(4 * (1 + dimensions))
    header = np.frombuffer(start, dtype=">u4", count=len(start) // 4)
    if len(header) < 1 + dimensions or header[0] != magic:
        found = int(header[0]) if len(header) else "nothing"
        raise ConfigError(f"{path}: expected an idx file with magic number {magic}, got {found}")
    shape = tuple(int(size) for size in header[1:])
    declared = math.prod(shape)
    check_bytes(declared, source=path)
    content = file.read(declared)
    if len(content) != declared or file.read(1):
        got = "more" if len(content) == declared else len(content)
        raise ConfigError(f"{path}: expected {declared} bytes of data, got {got}")
    return shape, content
