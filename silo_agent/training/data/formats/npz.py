"""One .npz file of numpy arrays: x, y or x_train, y_train and, if there is a test split, x_test, y_test.

MedMNIST's names (train_images, train_labels, test_images, test_labels) are read too. Never unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, Samples, required_path, whole_labels
from silo_agent.training.data.fitting import check_shape
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.private import stored
from silo_agent.training.data.settings import DataSettings

MOST_TOLD, LONGEST_TOLD = 20, 60  # names of arrays in a message, and characters of one
TRAIN_KEYS = (("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y"))
TEST_KEYS = (("x_test", "y_test"), ("test_images", "test_labels"))
FEATURES = {name for name, _ in TRAIN_KEYS + TEST_KEYS}
HEADER = (1, 0)  # of plain arrays


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Features as stored, classes as int64 and other targets as stored. Raises ConfigError if keys or file
    are unusable."""
    path = required_path(settings)
    train, holdout, units = _read(path, settings.unit, job)
    if job.method.task.has_classes:
        is_private = job.privacy is not None
        train, *tests = (
            replace(each, labels=whole_labels(each.labels, source=str(path), is_private=is_private))
            for each in (train, holdout)
            if each is not None
        )
        holdout = tests[0] if tests else None
    return RawData(train=train, holdout=holdout, units=units)


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `load`."""
    train, holdout, units = _read(required_path(settings), settings.unit)
    tested = None if holdout is None else stored(holdout)
    return Records(train=stored(train), holdout=tested, units=units)


def _read(
    path: Path, unit: str | None, job: JobSpec | None = None
) -> tuple[Samples, Samples | None, list[str | int] | None]:
    """Training samples, those of a test split, and whose each training sample is. Raises ConfigError,
    too, for samples that are not of the job's shape."""
    known = {name for pair in TRAIN_KEYS + TEST_KEYS for name in pair} | {unit}
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ConfigError(f"{path}: expected an .npz archive, got a single array")
            names = list(archive.files)
            wanted = [name for name in names if name in known]
            assert archive.zip is not None
            _check_declared(path, archive.zip, wanted, job)
            arrays = {name: archive[name] for name in wanted}
    except ConfigError:
        raise
    except Exception as error:  # what zipfile and numpy raise is on no list
        raise ConfigError(f"{path}: not a readable .npz archive of plain arrays") from error
    train = _first(arrays, TRAIN_KEYS, path)
    if train is None:
        accepted = ", or ".join(" and ".join(pair) for pair in reversed(TRAIN_KEYS))
        raise ConfigError(f"{path}: expected arrays {accepted}; it holds {_listed(names)}")
    units = None if unit is None else _units(arrays, unit, path)
    return train, _first(arrays, TEST_KEYS, path), units


def _check_declared(path: Path, archive: ZipFile, names: Sequence[str], job: JobSpec | None) -> None:
    """Raises ConfigError for arrays that the job cannot use or that do not fit in memory."""
    declared_bytes = 0
    for name in names:
        # numpy takes the member without the ending where there are both
        with archive.open(name if name in archive.namelist() else f"{name}.npy") as member:
            if np.lib.format.read_magic(member) != HEADER:
                raise ValueError("a header of up to 4 GiB")
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype.hasobject:
            raise ValueError("pickled")
        declared_bytes += math.prod(shape) * dtype.itemsize
        if job is not None and name in FEATURES:
            check_shape(shape[1:], job, source=f"{path}: {name}")
    check_bytes(declared_bytes, source=path)


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MOST_TOLD} more"] if len(names) > MOST_TOLD else []
    return ", ".join([*(name[:LONGEST_TOLD] for name in names[:MOST_TOLD]), *more]) or "no array"


def _units(arrays: Mapping[str, NDArray[Any]], name: str, path: Path) -> list[str | int]:
    """Whose each sample is."""
    if any(name in pair for pair in TRAIN_KEYS + TEST_KEYS):
        raise ConfigError(f"data.unit: expected an array that says whose a sample is, got {name}")
    if name not in arrays:
        raise ConfigError(f"{path}: no array {name} (data.unit)")
    found = arrays[name]
    if found.ndim != 1 or found.dtype.kind not in "iuU":
        raise ConfigError(
            f"{path}: {name} (data.unit): expected one whole number or text for each sample, got "
            f"{found.dtype} of shape {found.shape}"
        )
    units: list[str | int] = found.tolist()
    return units


def _first(
    arrays: Mapping[str, NDArray[Any]], pairs: tuple[tuple[str, str], ...], path: Path
) -> Samples | None:
    """Samples of the first pair of names that the file has."""
    for features_name, labels_name in pairs:
        if features_name in arrays and labels_name in arrays:
            features, labels = arrays[features_name], arrays[labels_name]
            if features.shape[:1] != labels.shape[:1]:
                count = labels.shape[0] if labels.ndim else 1
                raise ConfigError(f"{path}: {count} labels for features of shape {features.shape}")
            return Samples(features=features, labels=labels)
    return None
