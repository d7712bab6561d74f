"""Every record of a data set as it is stored, without a job: an account knows by these what it covers.

They are the identities by which a private job's hold-out is split, so `loading` finds the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chorale_models import data
from silo_agent.training.data.base import Records
from silo_agent.training.data.formats import cifar, csv, digits, idx, image_folder, npz, parquet, scans, sql
from silo_agent.training.data.own_data import own_data
from silo_agent.training.data.private import every, record_bytes
from silo_agent.training.data.settings import DataFormat, DataSettings
from silo_agent.training.data.workers import Unread, read_places

ROWS = 256  # samples that are read at once

RECORDS: dict[DataFormat, Callable[[DataSettings], Records]] = {
    DataFormat.DIGITS: digits.records,
    DataFormat.MNIST: idx.records,
    DataFormat.NPZ: npz.records,
    DataFormat.IMAGE_FOLDER: image_folder.records,
    DataFormat.CSV: csv.records,
    DataFormat.PARQUET: parquet.records,
    DataFormat.SQL: sql.records,
    DataFormat.DICOM: scans.records,
    DataFormat.NIFTI: scans.records,
    DataFormat.CIFAR10: cifar.records,
    DataFormat.CIFAR100: cifar.records,
}


def records_of(settings: DataSettings) -> Records | None:
    """None where only a job's sizes make the records: the function of an installed distribution.

    Raises ConfigError where the data cannot be read.
    """
    if settings.source is not None:
        return None
    if settings.module is None:
        return RECORDS[DataFormat(settings.format)](settings)
    own = own_data(settings, None)
    train = _read(own.train) if own.identities is None else every(own.identities)
    holdout = None if own.holdout is None else _read(own.holdout)
    return Records(train=train, holdout=holdout, units=own.units)


def _read(samples: data.Samples) -> Iterator[bytes | None]:
    """None: one that cannot be read."""
    for start in range(0, len(samples), ROWS):
        for found in read_places(samples, range(start, min(start + ROWS, len(samples)))):
            yield None if isinstance(found, Unread) else record_bytes(*found)
