"""CIFAR-10 and CIFAR-100 from a local folder, read by torchvision. Nothing is downloaded.

The official files are pickles: torchvision opens them only if their MD5 is the official one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, Samples, required_path
from silo_agent.training.data.private import stored
from silo_agent.training.data.settings import DataFormat, DataSettings

CLASSES = {DataFormat.CIFAR10: 10, DataFormat.CIFAR100: 100}


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (50000, 32, 32, 3) and (10000, 32, 32, 3) uint8.

    Raises ConfigError if the folder does not hold the official python batches.
    """
    folder = required_path(settings)
    form = DataFormat(settings.format)
    classes = CLASSES[form]
    if job.classes != classes:
        raise ConfigError(f"classes: expected {classes} for {form}, got {job.classes}")
    return RawData(
        train=_split(folder, form, is_train=True),
        holdout=_split(folder, form, is_train=False),
    )


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `load`."""
    folder, form = required_path(settings), DataFormat(settings.format)
    of_each = (stored(_split(folder, form, is_train=is_train)) for is_train in (True, False))
    return Records(train=next(of_each), holdout=next(of_each))


def _split(folder: Path, kind: DataFormat, *, is_train: bool) -> Samples:
    from silo_agent.training.machine.torchvision_compat import torchvision

    reader = torchvision.datasets.CIFAR10 if kind is DataFormat.CIFAR10 else torchvision.datasets.CIFAR100
    try:
        found = reader(root=str(folder), train=is_train, download=False)
    except RuntimeError as error:
        raise ConfigError(
            f"data.path: {folder} does not hold the folder {reader.base_folder} with whole, official files"
        ) from error
    return Samples(features=found.data, labels=np.asarray(found.targets, dtype=np.int64))
