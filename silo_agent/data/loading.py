"""A silo's data for a job: read, cut and checked against the job, in memory.

What a format's loader returns is checked here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from chorale_models.data import Data
from chorale_models.data import Samples as SampleSet
from crypto.errors import ConfigError
from silo_agent.data import private
from silo_agent.data.base import Features, Loader, RawData, Samples, SiloData, whole_labels
from silo_agent.data.formats import cifar, csv, digits, idx, image_folder, npz, parquet, scans, sql
from silo_agent.data.misfits import add_misfits
from silo_agent.data.own_data import own_data
from silo_agent.data.partition import (
    Partition,
    cut_dirichlet,
    cut_iid,
    cut_shards,
    split_holdout,
)
from silo_agent.data.problems import Problems
from silo_agent.data.settings import DataFormat, DataSettings, PartitionKind, PartitionSettings
from silo_agent.seeding import derive_seed

log = get_logger("silo_agent.data.loading")

LOADERS: dict[DataFormat, Loader] = {
    DataFormat.DIGITS: digits.load,
    DataFormat.MNIST: idx.load,
    DataFormat.NPZ: npz.load,
    DataFormat.IMAGE_FOLDER: image_folder.load,
    DataFormat.CSV: csv.load,
    DataFormat.PARQUET: parquet.load,
    DataFormat.SQL: sql.load,
    DataFormat.DICOM: scans.load,
    DataFormat.NIFTI: scans.load,
    DataFormat.CIFAR10: cifar.load,
    DataFormat.CIFAR100: cifar.load,
}
BRIGHTEST = 255  # of 8-bit pixels


def load_data(settings: DataSettings, job: JobSpec, *, problems: Problems | None = None) -> SiloData:
    """This silo's samples for a job: train and hold-out, float32 in the job's input shape.

    The hold-out is the data set's own test split where it has one, else a fixed share of each
    class that depends on the settings alone, so no sample ever changes sides. In a private job each
    record is held out by itself, and none can have the job refused (`private`).
    problems: takes all that is wrong with single records; if anything is, the rest is prepared as in a
    private job.
    Raises ConfigError that names the setting or file and what is allowed.
    """
    if settings.source is not None:
        own = own_data(settings, job)
        if not isinstance(own, Data):
            named, returned = f"{settings.format} of {settings.source}", type(own).__name__
            raise ConfigError(f"data.from: {named} returned {returned}, expected chorale_models.Data")
        test = None if own.holdout is None else _in_memory(own.holdout)
        raw = RawData(train=_in_memory(own.train), test=test)
        return next(_parts(settings, job, settings.partition, [0], problems, raw=raw))
    if settings.format is DataFormat.MODULE:
        own = own_data(settings, job)
        if not isinstance(own, SiloData):
            returned = type(own).__name__
            raise ConfigError(f"data.module: {settings.module} returned {returned}, expected SiloData")
        raw = RawData(train=own.train, test=own.holdout)
        is_strict = _is_strict(raw, job, problems)
        return _checked(own, job=job) if is_strict else _put_right_all(own, job=job, told=raw.problems)
    partition = settings.partition
    return next(_parts(settings, job, partition, [0 if partition is None else partition.index], problems))


def load_partition(settings: DataSettings, job: JobSpec) -> tuple[SiloData, ...]:
    """Every silo's part of one data set on this machine, as `load_data` gives it to each, read and cut once.

    Raises ConfigError as `load_data`, and without `partition`.
    """
    if settings.partition is None or settings.format is DataFormat.MODULE:
        raise ConfigError("data.partition: expected how a file is cut into silos")
    return tuple(_parts(settings, job, settings.partition, range(settings.partition.silos)))


def _parts(
    settings: DataSettings,
    job: JobSpec,
    partition: PartitionSettings | None,
    indices: Sequence[int],
    problems: Problems | None = None,
    *,
    raw: RawData | None = None,
) -> Iterator[SiloData]:
    """The parts of those silos; all of it where there is no partition. raw: in place of a file's."""
    raw = raw or LOADERS[DataFormat(settings.format)](settings, job)
    is_strict = _is_strict(raw, job, problems)
    cut = _plain_parts if is_strict else _private_parts
    for train, holdout in cut(raw, settings, partition, indices, job=job):
        part = SiloData(train=train, holdout=holdout, name=settings.name)
        yield _checked(part, job=job) if is_strict else _put_right_all(part, job=job, told=raw.problems)


def _in_memory(samples: SampleSet) -> Samples:
    """Every sample, asked for once."""
    inputs, targets = zip(*(samples[place] for place in range(len(samples))), strict=True)
    features, labels = (np.stack([np.asarray(each) for each in column]) for column in (inputs, targets))
    return Samples(features=features, labels=labels)


def _is_strict(raw: RawData, job: JobSpec, problems: Problems | None) -> bool:
    """Whether no record needs to be put right by itself. Raises ConfigError for the first one that does,
    where neither the job is private nor somebody collects problems."""
    add_misfits(raw, job)
    if problems is not None:
        problems.take(raw.problems)
    elif job.privacy is None:
        raw.problems.raise_first()
    return job.privacy is None and not raw.problems.count


def _put_right_all(data: SiloData, *, job: JobSpec, told: Problems) -> SiloData:
    """Every record by itself; the log of this silo alone says how many did not fit."""
    name = data.name
    train, misfits, outside = _put_right(data.train, name=name, job=job)
    holdout, held_misfits, held_outside = _put_right(data.holdout, name=name, job=job)
    counts = {
        "problems": told.count,
        "left_out": misfits + held_misfits,
        "values_out_of_range": outside + held_outside,
    }
    if any(counts.values()):
        log.warning("records that do not fit the job", data=name, **counts)
    return SiloData(train=train, holdout=holdout, name=name)


def _private_parts(
    raw: RawData,
    settings: DataSettings,
    partition: PartitionSettings | None,
    indices: Sequence[int],
    *,
    job: JobSpec,
) -> Iterator[tuple[Samples, Samples]]:
    """Train and hold-out of those silos, of a pool that is cut before the hold-out where there is a
    partition."""
    pool, test = raw.train, raw.test
    parts = [(np.arange(len(pool)), np.arange(len(test) if test is not None else 0))]
    if partition is not None:
        target = job.method.task.target
        fits = np.flatnonzero(target.fitting(pool.labels))
        rest = pool.take(fits[:0]) if test is None else test
        fits_test = np.flatnonzero(target.fitting(rest.labels))
        cut = _cut(pool.take(fits), rest.take(fits_test), partition, classes=job.classes)
        parts = [(fits[cut.train[index]], fits_test[cut.test[index]]) for index in indices]
    if test is not None:
        yield from ((pool.take(mine), test.take(tested)) for mine, tested in parts)
        return
    is_held = private.held_out(pool, raw.identities, name=settings.name, fraction=settings.holdout)
    for mine, _ in parts:
        yield pool.take(mine[~is_held[mine]]), pool.take(mine[is_held[mine]])


def _put_right(samples: Samples, *, name: str, job: JobSpec) -> tuple[Samples, int, int]:
    """As `_prepared`, and how many records had no label of the job and how many values were out of range."""
    target, source, labels = job.method.task.target, f"data {name}", samples.labels
    if job.method.task.has_classes:
        labels = whole_labels(labels, source=source, is_private=True)
    fits = np.flatnonzero(target.fitting(labels))
    kept_labels = target.checked(labels[fits], source=source)
    kept = Samples(features=samples.features[fits], labels=kept_labels)
    _check_numbers(kept.features)
    features, outside = private.boxed(kept.features)
    features = _as_input(features, job, name=name)
    return Samples(features=features, labels=kept.labels), len(samples) - len(kept), outside


def _plain_parts(
    raw: RawData,
    settings: DataSettings,
    partition: PartitionSettings | None,
    indices: Sequence[int],
    *,
    job: JobSpec,
) -> Iterator[tuple[Samples, Samples]]:
    """Train and hold-out of those silos, each of which is cut from the whole set's."""
    train, holdout = _with_targets(raw.train, job), None if raw.test is None else _with_targets(raw.test, job)
    if holdout is None:
        rng = np.random.default_rng(derive_seed("holdout", settings.name))
        kept, held = split_holdout(train.strata_N, fraction=settings.holdout, rng=rng)
        train, holdout = train.take(kept), train.take(held)
    if partition is None:
        yield train, holdout
        return
    cut = _cut(train, holdout, partition, classes=job.classes)
    for index in indices:
        yield train.take(cut.train[index]), holdout.take(cut.test[index])


def _cut(train: Samples, holdout: Samples, settings: PartitionSettings, *, classes: int) -> Partition:
    rng = np.random.default_rng(derive_seed("partition", settings.seed))
    classes = max(classes, 1)  # without classes there is one stratum
    match settings.kind:
        case PartitionKind.IID:
            return cut_iid(train.strata_N, holdout.strata_N, silos=settings.silos, rng=rng)
        case PartitionKind.SHARDS:
            return cut_shards(
                train.strata_N,
                holdout.strata_N,
                classes=classes,
                silos=settings.silos,
                shards_per_silo=settings.shards_per_silo,
                rng=rng,
            )
        case PartitionKind.DIRICHLET:
            return cut_dirichlet(
                train.strata_N,
                holdout.strata_N,
                classes=classes,
                silos=settings.silos,
                alpha=settings.alpha,
                min_samples=settings.min_samples,
                balance=settings.balance,
                rng=rng,
            )


def _checked(data: SiloData, *, job: JobSpec) -> SiloData:
    """The same data as float32 in the job's shape. Raises ConfigError for what training cannot use."""
    if not len(data.train):
        raise ConfigError(f"data {data.name}: no training samples in this silo, expected at least 1")
    # the agent cuts the hold-out's end, which must not be all one class; the same order every time
    rng = np.random.default_rng(derive_seed("holdout-order", data.name))
    holdout = data.holdout.take(rng.permutation(len(data.holdout)))
    return SiloData(
        train=_prepared(data.train, name=data.name, job=job),
        holdout=_prepared(holdout, name=data.name, job=job),
        name=data.name,
    )


def _prepared(samples: Samples, *, name: str, job: JobSpec) -> Samples:
    labels = _with_targets(samples, job).labels
    features = _as_input(samples.features, job, name=name)
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        raise ConfigError(f"data {name}: features hold NaN or infinity, expected finite numbers")
    return Samples(features=features, labels=labels)


def _with_targets(samples: Samples, job: JobSpec) -> Samples:
    """The same samples. Raises ConfigError for targets that are not of the job's task."""
    labels = job.method.task.target.checked(samples.labels, source="data")
    return Samples(features=samples.features, labels=labels)


def _as_input(features: Features, job: JobSpec, *, name: str) -> Features:
    """In the job's type, channels first, a gray channel added, or flat where the job asks for that."""
    found, shape = features.shape[1:], job.input_shape
    if found == shape:
        shaped = features
    elif (1, *found) == shape:
        shaped = features[:, np.newaxis]
    elif len(found) == 3 and (found[2], *found[:2]) == shape:
        shaped = np.ascontiguousarray(features.transpose(0, 3, 1, 2))
    elif shape == (math.prod(found),):
        shaped = features.reshape(len(features), *shape)
    else:
        raise ConfigError(f"data {name}: a sample has shape {found}, the job's input_shape is {shape}")
    if job.input_type == "int64":
        if shaped.dtype.kind not in "iu":
            raise ConfigError(f"data {name}: the job's input_type is int64, got {shaped.dtype}")
        return np.ascontiguousarray(shaped, dtype=np.int64)
    if shaped.dtype == np.uint8:
        return shaped.astype(np.float32) / np.float32(BRIGHTEST)
    _check_numbers(shaped)
    with np.errstate(over="ignore"):  # becomes infinity, which the caller refuses
        return np.ascontiguousarray(shaped, dtype=np.float32)


def _check_numbers(features: Features) -> None:
    if features.dtype.kind not in "iufb":
        raise ConfigError(f"data: features are numbers, got {features.dtype}")
