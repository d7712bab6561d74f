"""The first pass over a data set that gives samples by place: each is read once.

What cannot be used is told and left out, classes are learned, a record of a private job is held out by
itself, and a set that fits stays in memory.
N = samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chorale.spec.job_spec import JobSpec
from chorale_models.data import Identities
from crypto.errors import ConfigError
from silo_agent.training.data.base import Cancelled, RawData, Samples, SampleSet, strata_of
from silo_agent.training.data.fitting import input_type, sample_bytes
from silo_agent.training.data.private import Mask, record_bytes, row_hash
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.store import Store
from silo_agent.training.data.streamed import Streamed, fitting
from silo_agent.training.data.workers import Found, Unread
from silo_agent.training.unit_marks import Admitted, Splits

MOST_ROWS = 512  # samples of a batch of a pass, of small samples
PART_OF_CACHE = 16  # a batch is at most this part of the bound: some are on their way at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A data set's samples. places: of each in what the loader gave. splits_N: where a record or unit decides
    by itself what it is for. hashes: that order the rows of units. may_be_N2: of data with units, whether
    each may be in training, and held out. rows_beyond: as of `SiloData`."""

    samples: SampleSet
    places: Sequence[int]
    splits_N: Splits | None = None
    hashes: Sequence[bytes] = ()
    may_be_N2: Mask | None = None
    rows_beyond: int = 0


def scanned(
    raw: RawData,
    settings: DataSettings,
    job: JobSpec,
    *,
    admitted: Admitted,
    of_holdout: bool,
    is_cancelled: Callable[[], bool],
) -> Scanned:
    """The training samples, or the hold-out, as far as they are admitted. Raises ConfigError, Cancelled; bad
    samples are problems."""
    source = raw.holdout if of_holdout else raw.train
    assert source is not None
    total = len(raw.train) + (0 if raw.holdout is None else len(raw.holdout))
    bound, each_bytes, count = settings.cache_megabytes << 20, sample_bytes(job), len(source)
    # who chooses the bytes of each would learn the number at which a private job begins to read by place
    held = total if job.privacy is None or admitted.most is None else admitted.most * settings.rows_per_unit
    is_in_memory = each_bytes * held <= bound
    rows = max(1, min(MOST_ROWS, bound // PART_OF_CACHE // each_bytes))
    batch_bytes = each_bytes * max(rows, job.training.batch_size)
    store = Store(
        source,
        what="test record" if of_holdout else "record",
        name=None if of_holdout else raw.place,
        cache_bytes=0 if is_in_memory else bound * count // max(total, 1),
        workers=settings.workers,
        ahead=2 if 2 * settings.workers * batch_bytes <= bound // 4 else 1,
    )
    found = _Found(count, job, keeps_inputs=is_in_memory)
    side = None if raw.holdout is None or job.privacy is None else of_holdout
    identities = None if of_holdout else raw.identities
    has_units = raw.units is not None and not of_holdout
    splits_by_record = job.privacy is not None and (of_holdout or raw.holdout is None) and not has_units
    share = 1.0 if of_holdout else settings.holdout
    needs_records = has_units or splits_by_record or not admitted.is_everything
    splits, hashes = list[Splits](), list[bytes]()
    may_be = [np.zeros((0, 2), np.bool_)]

    def add_problem(error: ConfigError) -> None:
        raw.problems.add(str(error))

    plan = [np.arange(start, min(start + rows, count)) for start in range(0, count, rows)]
    for places, read in zip(plan, store.read(plan), strict=True):
        if is_cancelled():
            raise Cancelled("data: no longer wanted")
        kept, samples = fitting(read, places, store, job, misfit=add_problem)
        records = []
        if needs_records:
            records = [_record(identities, place, read[place - int(places[0])]) for place in kept]
        if not admitted.is_everything:
            chosen = np.flatnonzero(admitted.rows(records, is_held_out=side)).tolist()
            kept, samples = [kept[each] for each in chosen], samples.take(np.array(chosen, np.int64))
            records = [records[each] for each in chosen]
        found.add(kept, samples)
        if has_units:
            hashes += map(row_hash, records)
            may_be.append(admitted.on_each_side(records))
        if splits_by_record:
            splits.append(admitted.key.splits(records, holdout=share, test_share=job.test_part))
    return Scanned(
        samples=found.result(store, rows, None if of_holdout else raw.strata),
        places=found.places,
        splits_N=np.concatenate([np.zeros(0, np.uint8), *splits]) if splits_by_record else None,
        hashes=hashes,
        may_be_N2=np.concatenate(may_be),
    )


def _record(identities: Identities | None, place: int, found: Found) -> bytes:
    assert not isinstance(found, Unread)
    if identities is not None:
        try:
            return identities[place]
        except Exception:  # nothing of one record refuses a private job: it is what was read of it
            pass
    return record_bytes(*found)


class _Found:
    """What the pass has kept so far."""

    def __init__(self, count: int, job: JobSpec, *, keeps_inputs: bool) -> None:
        target = job.method.task.target
        self._job, self.places, self._count = job, list[int](), 0
        # memory that nothing is written to is not taken
        self._inputs = np.empty((count, *job.input_shape), input_type(job)) if keeps_inputs else None
        is_kept = keeps_inputs or target.shape == ()
        type_ = np.int64 if target.is_whole else np.float32
        self._targets = np.empty((count, *target.shape), type_) if is_kept else None

    def add(self, places: Sequence[int], samples: Samples) -> None:
        start, self._count = self._count, self._count + len(samples)
        self.places += places
        if self._inputs is not None:
            self._inputs[start : self._count] = samples.features
        if self._targets is not None:
            self._targets[start : self._count] = samples.labels

    def result(self, store: Store, rows: int, strata: Sequence[int] | None) -> SampleSet:
        places_N = np.array(self.places, np.int64)
        targets = None if self._targets is None else self._targets[: self._count]
        given_N = None if strata is None else np.asarray(strata, np.int64)[places_N]
        if self._inputs is not None:
            assert targets is not None
            return Samples(features=self._inputs[: self._count], labels=targets, strata=given_N)
        return Streamed(
            store=store,
            job=self._job,
            places_N=places_N,
            strata_N=strata_of(np.zeros(self._count) if targets is None else targets)
            if given_N is None
            else given_N,
            targets_N=targets,
            rows=rows,
        )
