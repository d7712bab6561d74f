"""A silo's data for a job: read, cut and checked against the job.

What a format's loader or a function of the silo's own returns is checked here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.data import private
from silo_agent.training.data.base import Indices, Loader, RawData, Samples, SampleSet, SiloData
from silo_agent.training.data.fitting import known_inputs, prepared, put_right
from silo_agent.training.data.formats import cifar, csv, digits, idx, image_folder, npz, parquet, scans, sql
from silo_agent.training.data.misfits import add_misfits, add_unsteady
from silo_agent.training.data.own_data import check_named, own_data
from silo_agent.training.data.partition import (
    Partition,
    cut_dirichlet,
    cut_iid,
    cut_shards,
    split_holdout,
)
from silo_agent.training.data.problems import Flow, Problems
from silo_agent.training.data.scan import Scanned, scanned
from silo_agent.training.data.settings import (
    TABLE_FORMATS,
    DataFormat,
    DataSettings,
    PartitionKind,
    PartitionSettings,
    check_unit,
)
from silo_agent.training.data.table.units import check_units
from silo_agent.training.data.units import Excluded, admitted_names, grouped, unit_name
from silo_agent.training.machine.seeding import derive_seed
from silo_agent.training.unit_marks import Admitted, Split, Splits, unit_bytes

log = get_logger("silo_agent.training.data.loading")

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


def load_data(
    settings: DataSettings,
    job: JobSpec,
    *,
    admitted: Admitted | None = None,
    problems: Problems | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    own: Data | None = None,
) -> SiloData:
    """This silo's samples for a job: train and hold-out, float32 in the job's input shape.

    The hold-out is the data set's own test split where it has one, else a fixed share of each
    class that depends on the settings alone, so no sample ever changes sides. In a private job each
    record is held out by itself, and none can have the job refused (`private`).
    Samples that are read by place are in memory where all of them fit `data.cache_megabytes`.
    admitted: the records that may be used, and the key that divides them; None: all of them, by the data
    set's name.
    problems: takes all that is wrong with single records; if anything is, the rest is prepared as in a
    private job.
    own: data of this process, in the place of what the settings name.
    Raises ConfigError that names the setting or file and what is allowed, and Cancelled.
    """
    index = 0 if settings.partition is None else settings.partition.index
    admitted = admitted or Admitted.everything(settings.name)
    parts = _parts(
        settings, job, [index], admitted=admitted, problems=problems, is_cancelled=is_cancelled, own=own
    )
    return next(parts)


def load_partition(settings: DataSettings, job: JobSpec) -> tuple[SiloData, ...]:
    """Every silo's part of one data set on this machine, as `load_data` gives it to each, read and cut once.

    Raises ConfigError as `load_data`, and without `partition`.
    """
    return tuple(parts_of(settings, job))


def parts_of(settings: DataSettings, job: JobSpec, *, own: Data | None = None) -> Iterator[SiloData]:
    """The same one by one, each made when it is asked for."""
    if settings.partition is None:
        raise ConfigError("data.partition: expected how a file is cut into silos")
    everything = Admitted.everything(settings.name)
    yield from _parts(settings, job, range(settings.partition.silos), admitted=everything, own=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A data set before it is cut. splits_N, test_splits_N: of train and of its own hold-out, where each
    record decides by itself. classes: that strata are, 0 where they are what the data's function says.
    rows_beyond: as of `SiloData`."""

    train: SampleSet
    classes: int
    test: SampleSet | None = None
    splits_N: Splits | None = None
    test_splits_N: Splits | None = None
    rows_beyond: int = 0


def _parts(
    settings: DataSettings,
    job: JobSpec,
    indices: Sequence[int],
    *,
    admitted: Admitted,
    problems: Problems | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    own: Data | None = None,
) -> Iterator[SiloData]:
    """The parts of those silos; all of it where there is no partition."""
    is_table = own is None and settings.source is None and settings.format in TABLE_FORMATS
    if job.computes_columns and not is_table:
        raise ConfigError(
            f"data {settings.name}: columns with standardize or rare: computed are read of a csv, a parquet "
            "file or a database, not of other files or by a function of the silo's own"
        )
    if job.subgroups is not None and not is_table:
        raise ConfigError(
            f"data {settings.name}: subgroups are read of a csv, a parquet file or a database, not of other "
            "files or by a function of the silo's own"
        )
    raw = _raw(settings, job) if own is None else _raw_of(own)
    if problems is not None or own is not None:
        add_unsteady(raw)
    opened = _opened(raw, settings, job, admitted, is_cancelled)
    is_strict = _is_strict(raw, job, problems)
    if dropped := raw.problems.dropped.total():
        log.info("records left out by data.drop", data=settings.name, records=dropped)
    for what, times in raw.problems.counted.items():
        log.info(what, data=settings.name, times=times)
    cut = _plain_parts if is_strict else _private_parts
    for part in cut(opened, settings, indices, job=job):
        made = _checked(part, job=job) if is_strict else _put_right_all(part, job=job, problems=raw.problems)
        flow = None if settings.partition is not None else _flow(raw, job, used=made.records)
        made = replace(made, rows_beyond=opened.rows_beyond, flow=flow, excluded=raw.excluded)
        yield replace(made, train_transform=raw.train_transform)


def _flow(raw: RawData, job: JobSpec, *, used: int) -> Flow | None:
    """Of a table."""
    if raw.lost is None or not isinstance(raw.train, Samples):
        return None
    readable_N = np.ones(len(raw.train), np.bool_)
    readable_N[[*raw.lost]] = False
    eligible_N, withdrawn = readable_N, 0
    if raw.units is not None:
        names = [unit_name(each) for each in raw.units]
        eligible_N = readable_N & np.array([name is not None for name in names], np.bool_)
        if raw.excluded is not None:
            is_in_N = np.array([name not in raw.excluded.names for name in names], np.bool_)
            withdrawn = int(np.count_nonzero(eligible_N & ~is_in_N))
            eligible_N = eligible_N & is_in_N
    labeled_N = eligible_N & job.method.task.target.fitting(raw.train.labels)
    return Flow(
        found=len(raw.train),
        readable=int(np.count_nonzero(readable_N)),
        eligible=int(np.count_nonzero(eligible_N)),
        withdrawn=withdrawn,
        labeled=int(np.count_nonzero(labeled_N)),
        used=used,
    )


def _raw(settings: DataSettings, job: JobSpec) -> RawData:
    """What the format's loader gives, or a function of the institution's own. Raises ConfigError."""
    check_unit(settings.unit, job)
    check_units(settings.units, job)
    check_named(settings)
    if settings.source is None and settings.module is None:
        if job.scans is not None and settings.format not in scans.ENDINGS:
            raise ConfigError(
                f"scans: the job wants DICOM or NIfTI, data.format of {settings.name} is {settings.format}"
            )
        excluded = None if settings.exclude is None else Excluded.of(settings.exclude)
        return replace(LOADERS[DataFormat(settings.format)](settings, job), excluded=excluded)
    return _raw_of(own_data(settings, job))


def _raw_of(own: Data) -> RawData:
    if isinstance(own, RawData):
        return own
    return RawData(
        train=own.train,
        holdout=own.holdout,
        strata=own.strata,
        identities=own.identities,
        units=own.units,
        train_transform=own.train_transform,
    )


def _opened(
    raw: RawData,
    settings: DataSettings,
    job: JobSpec,
    admitted: Admitted,
    is_cancelled: Callable[[], bool],
) -> _Opened:
    """Arrays as they are; samples that are read by place in the job's form, without those that do not fit.
    Without records that are not admitted."""
    classes = job.classes if raw.strata is None else 0
    for name, of_each in (("strata", raw.strata), ("identities", raw.identities), ("units", raw.units)):
        if of_each is not None and len(of_each) != len(raw.train):
            expected = f"expected one for each of {len(raw.train)} samples, got {len(of_each)}"
            raise ConfigError(f"data {settings.name}: {name}: {expected}")
    found = _side(raw, settings, job, admitted, is_cancelled, of_holdout=False)
    if raw.units is not None:
        found = _unit_by_unit(found, raw, settings, job, admitted)
    opened = _Opened(
        train=found.samples, classes=classes, splits_N=found.splits_N, rows_beyond=found.rows_beyond
    )
    if raw.holdout is None:
        return opened
    own = _side(raw, settings, job, admitted, is_cancelled, of_holdout=True)
    return replace(opened, test=own.samples, test_splits_N=own.splits_N)


def _side(
    raw: RawData,
    settings: DataSettings,
    job: JobSpec,
    admitted: Admitted,
    is_cancelled: Callable[[], bool],
    *,
    of_holdout: bool,
) -> Scanned:
    """The samples of the data, or of its own test split."""
    found = raw.holdout if of_holdout else raw.train
    if not isinstance(found, Samples):
        return scanned(
            raw, settings, job, admitted=admitted, of_holdout=of_holdout, is_cancelled=is_cancelled
        )
    identities = None if of_holdout else raw.identities
    if not of_holdout and raw.strata is not None:
        found = replace(found, strata=np.asarray(raw.strata, np.int64))
    places, splits_N, may_be_N2, hashes = np.arange(len(found)), None, None, list[bytes]()
    stored = partial(private.stored, found, identities)
    if not admitted.is_everything:
        side = None if raw.holdout is None or job.privacy is None else of_holdout
        places = np.flatnonzero(admitted.rows(stored(), is_held_out=side))
    if raw.units is not None and not of_holdout:
        hashes = [private.row_hash(record) for record in stored()]
        may_be_N2 = admitted.on_each_side(stored())[places]
    elif job.privacy is not None and (of_holdout or raw.holdout is None):
        share = 1.0 if of_holdout else settings.holdout
        splits_N = admitted.key.splits(stored(), holdout=share, test_share=job.test_part)[places]
    return Scanned(
        samples=found if len(places) == len(found) else found.take(places),
        places=places.tolist(),
        splits_N=splits_N,
        hashes=[hashes[each] for each in places] if hashes else hashes,
        may_be_N2=may_be_N2,
    )


def _unit_by_unit(
    found: Scanned, raw: RawData, settings: DataSettings, job: JobSpec, admitted: Admitted
) -> Scanned:
    """The samples of units alone, unit by unit, and what each unit is for; in a job without privacy they
    are forgotten then. Raises ConfigError for data that have no units throughout."""
    assert raw.units is not None
    for what, is_there in (("hold-out of its own", raw.holdout), ("data.partition", settings.partition)):
        if is_there is not None:
            raise ConfigError(
                f"data {settings.name}: expected no {what} beside units, each of which is on one side and at "
                "one silo"
            )
    names = admitted_names(
        raw.units,
        column=settings.unit or "units",
        place=raw.place or "record {}".format,
        excluded=raw.excluded,
        admitted=admitted,
        problems=raw.problems,
    )
    chosen = [names[each] for each in found.places]
    is_private = job.privacy is not None
    if is_private and found.may_be_N2 is not None:
        # not a row that was on the other side with another unit
        is_held_N = admitted.key.held_out((unit_bytes(name or "") for name in chosen), settings.holdout)
        is_there_N = found.may_be_N2[np.arange(len(chosen)), is_held_N.astype(int)]
        chosen = [name if there else None for name, there in zip(chosen, is_there_N, strict=True)]
    kept = grouped(chosen, found.hashes, max_rows=settings.max_rows_per_unit)
    units = map(unit_bytes, kept.names_U)
    splits_U = admitted.key.splits(units, holdout=settings.holdout, test_share=job.test_part)
    samples = found.samples.take(kept.places_N)
    if is_private:
        samples = samples.of_units(kept.units_N, rows_per_unit=settings.max_rows_per_unit)
    return Scanned(
        samples=samples,
        places=(),
        splits_N=splits_U[kept.units_N],
        rows_beyond=sum(name is not None for name in chosen) - len(kept.places_N),
    )


def _is_strict(raw: RawData, job: JobSpec, problems: Problems | None) -> bool:
    """Whether no record needs to be put right by itself. Raises ConfigError for the first one that does,
    where neither the job is private nor somebody collects problems."""
    add_misfits(raw, job)
    if problems is not None:
        problems.take(raw.problems)
    elif job.privacy is None:
        raw.problems.raise_first()
    return job.privacy is None and not raw.problems.count


def _put_right_all(data: SiloData, *, job: JobSpec, problems: Problems) -> SiloData:
    """Every record by itself; the log of this silo alone says how many did not fit."""
    name = data.name
    outside = 0

    def one_side(samples: SampleSet) -> SampleSet:
        nonlocal outside
        if not isinstance(samples, Samples):
            return samples  # each is when it is read
        right, values = put_right(samples, job, source=f"data {name}")
        outside += values
        return right

    made = data.mapped(one_side)
    left_out = data.records - made.records
    counts = {"problems": problems.count, "left_out": left_out, "values_out_of_range": outside}
    if any(counts.values()):
        log.warning("records that do not fit the job", data=name, **counts)
    return made


def _private_parts(
    opened: _Opened, settings: DataSettings, indices: Sequence[int], *, job: JobSpec
) -> Iterator[SiloData]:
    """Train and hold-out of those silos, of a pool that is cut before the hold-out where there is a
    partition."""
    pool, test = opened.train, opened.test
    parts = [(np.arange(len(pool)), np.arange(len(test) if test is not None else 0))]
    if settings.partition is not None:
        fits = _fits(pool, job)
        rest = pool.take(fits[:0]) if test is None else test
        fits_test = _fits(rest, job)
        cut = _cut(pool.take(fits), rest.take(fits_test), settings.partition, classes=opened.classes)
        parts = [(fits[cut.train[index]], fits_test[cut.test[index]]) for index in indices]
    splits_N = opened.splits_N if test is None else opened.test_splits_N
    if test is None:
        # None: problems are collected of a job without privacy
        kept = _split(pool, settings)[0] if splits_N is None else np.flatnonzero(splits_N == Split.TRAIN)
        is_kept_N = np.isin(np.arange(len(pool)), kept)
        is_whole = settings.partition is not None and settings.partition.whole_test
        test, parts = (
            pool,
            [
                (mine[is_kept_N[mine]], np.flatnonzero(~is_kept_N) if is_whole else mine[~is_kept_N[mine]])
                for mine, _ in parts
            ],
        )
    for mine, held in parts:
        of_held = None if splits_N is None else splits_N[held]
        yield _of_a_silo(pool.take(mine), test.take(held), of_held, settings, job=job)


def _fits(samples: SampleSet, job: JobSpec) -> Indices:
    """Those with a target and inputs of the job; of what is read by place only such are left."""
    if isinstance(samples, Samples):
        fits_N = job.method.task.target.fitting(samples.labels)
        return np.flatnonzero(fits_N & known_inputs(samples.features, job))
    return np.arange(len(samples))


def _split(samples: SampleSet, settings: DataSettings) -> tuple[Indices, Indices]:
    rng = np.random.default_rng(derive_seed("holdout", settings.name))
    return split_holdout(samples.strata_N, fraction=settings.holdout, rng=rng)


def _of_a_silo(
    train: SampleSet, held: SampleSet, splits_N: Splits | None, settings: DataSettings, *, job: JobSpec
) -> SiloData:
    """What is held out in two, where the closing evaluation has its own. splits_N: of what is held out; None:
    the job's share of each class."""
    if not job.test_part:
        return SiloData(train=train, holdout=held, name=settings.name)
    if splits_N is None:
        rng = np.random.default_rng(derive_seed("test", settings.name))
        kept, tested = split_holdout(held.strata_N, fraction=job.test_part, rng=rng)
    else:
        kept, tested = (np.flatnonzero((splits_N == Split.TEST) == of_test) for of_test in (False, True))
    return SiloData(train=train, holdout=held.take(kept), test=held.take(tested), name=settings.name)


def _plain_parts(
    opened: _Opened, settings: DataSettings, indices: Sequence[int], *, job: JobSpec
) -> Iterator[SiloData]:
    """Train and hold-out of those silos, each of which is cut from the whole set's."""
    train, splits_N = _with_targets(opened.train, job), opened.splits_N
    if opened.test is None:
        if splits_N is None:
            kept, held = _split(train, settings)
        else:
            kept, held = np.flatnonzero(splits_N == Split.TRAIN), np.flatnonzero(splits_N != Split.TRAIN)
            splits_N = splits_N[held]
        train, holdout = train.take(kept), train.take(held)
    else:
        holdout = _with_targets(opened.test, job)
    if settings.partition is None:
        yield _of_a_silo(train, holdout, splits_N, settings, job=job)
        return
    cut = _cut(train, holdout, settings.partition, classes=opened.classes)
    for index in indices:
        mine, tested = train.take(cut.train[index]), holdout.take(cut.test[index])
        yield _of_a_silo(mine, tested, None, settings, job=job)


def _cut(train: SampleSet, holdout: SampleSet, settings: PartitionSettings, *, classes: int) -> Partition:
    """Of train and hold-out, which every silo has whole where the settings say so."""
    rng = np.random.default_rng(derive_seed("partition", settings.seed))
    strata = (samples.strata_N.max(initial=0) + 1 for samples in (train, holdout))
    classes = max(classes, *strata)  # without classes there is one stratum, or what the data's function says
    match settings.kind:
        case PartitionKind.IID:
            cut = cut_iid(train.strata_N, holdout.strata_N, silos=settings.silos, rng=rng)
        case PartitionKind.SHARDS:
            cut = cut_shards(
                train.strata_N,
                holdout.strata_N,
                classes=classes,
                silos=settings.silos,
                shards_per_silo=settings.shards_per_silo,
                rng=rng,
            )
        case PartitionKind.DIRICHLET:
            cut = cut_dirichlet(
                train.strata_N,
                holdout.strata_N,
                classes=classes,
                silos=settings.silos,
                alpha=settings.alpha,
                min_samples=settings.min_samples,
                balance=settings.balance,
                rng=rng,
            )
    whole = (np.arange(len(holdout)),) * settings.silos
    return replace(cut, test=whole) if settings.whole_test else cut


def _checked(data: SiloData, *, job: JobSpec) -> SiloData:
    """The same data as float32 in the job's shape. Raises ConfigError for what training cannot use."""
    if not len(data.train):
        raise ConfigError(f"data {data.name}: no training samples in this silo, expected at least 1")

    def shuffled(held: SampleSet) -> SampleSet:
        # the agent cuts its end, which must not be all one class; the same order every time
        rng = np.random.default_rng(derive_seed("holdout-order", data.name))
        return held.take(rng.permutation(len(held)))

    def ready(samples: SampleSet) -> SampleSet:
        return prepared(samples, job, source=f"data {data.name}") if isinstance(samples, Samples) else samples

    return data.mapped(shuffled, of_train=False).mapped(ready)


def _with_targets(samples: SampleSet, job: JobSpec) -> SampleSet:
    """The same samples. Raises ConfigError for targets that are not of the job's task."""
    if not isinstance(samples, Samples):
        return samples
    return replace(samples, labels=job.method.task.target.checked(samples.labels, source="data"))
