"""One .npz file of numpy arrays: x, y or x_train, y_train and, if there is a test split, x_test, y_test.

MedMNIST's names (train_images, train_labels, test_images, test_labels) are read too. Never unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import RawData, Samples, required_path, whole_labels
from silo_agent.data.settings import DataSettings

TRAIN_KEYS = (("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y"))
TEST_KEYS = (("x_test", "y_test"), ("test_images", "test_labels"))


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Features as stored, classes as int64 and other targets as stored. Raises ConfigError if keys or file
    are unusable."""
    path = required_path(settings)
    known = {name for pair in TRAIN_KEYS + TEST_KEYS for name in pair} | {settings.unit}
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ConfigError(f"{path}: expected an .npz archive, got a single array")
            arrays = {name: archive[name] for name in archive.files if name in known}
    except ConfigError:
        raise
    except Exception as error:  # what zipfile and numpy raise is on no list
        raise ConfigError(f"{path}: not a readable .npz archive of plain arrays") from error
    train = _first(arrays, TRAIN_KEYS, path, job)
    if train is None:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise ConfigError(f"{path}: expected arrays x and y, or x_train and y_train; it holds {names}")
    units = None if settings.unit is None else _units(arrays, settings.unit, path)
    return RawData(train=train, holdout=_first(arrays, TEST_KEYS, path, job), units=units)


def _units(arrays: Mapping[str, NDArray[Any]], name: str, path: Path) -> list[str | int]:
    """Whose each sample is."""
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
    arrays: Mapping[str, NDArray[Any]], pairs: tuple[tuple[str, str], ...], path: Path, job: JobSpec
) -> Samples | None:
    """Samples of the first pair of names that the file has."""
    for features_name, labels_name in pairs:
        if features_name in arrays and labels_name in arrays:
            features = arrays[features_name]
            labels = arrays[labels_name]
            if job.method.task.has_classes:
                labels = whole_labels(labels, source=str(path), is_private=job.privacy is not None)
            if features.shape[:1] != labels.shape[:1]:
                count = labels.shape[0] if labels.ndim else 1
                raise ConfigError(f"{path}: {count} labels for features of shape {features.shape}")
            return Samples(features=features, labels=labels)
    return None
