"""Samples of a job that are read when they are wanted.

N = samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import Features, Indices, Labels, Samples, SampleSet
from silo_agent.training.data.fitting import input_type, prepared, put_right
from silo_agent.training.data.store import Store
from silo_agent.training.data.workers import Found, Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(SampleSet):
    """Samples of a data set that does not fit in memory.

    Shapes: places, strata (N,): where they are in the store; targets (N,) where a target is one number.
    rows: samples of a batch where nothing else decides it. units (N,), rows_per_unit: as
    `SampleSet`.
    """

    store: Store
    job: JobSpec
    places_N: Indices
    strata_N: Indices
    targets_N: Labels | None
    rows: int
    units_N: Indices | None = None
    rows_per_unit: int = 1

    @property
    def features(self) -> Features:
        raise ConfigError("data: beyond data.cache_megabytes, so it is read in batches and never at once")

    @property
    def labels(self) -> Labels:
        if self.targets_N is None:
            raise ConfigError("data: beyond data.cache_megabytes, so labels are read in batches, not at once")
        return self.targets_N

    def __len__(self) -> int:
        return len(self.places_N)

    def take(self, indices: Indices | slice) -> Streamed:
        return replace(
            self,
            places_N=self.places_N[indices],
            strata_N=self.strata_N[indices],
            targets_N=None if self.targets_N is None else self.targets_N[indices],
            units_N=None if self.units_N is None else self.units_N[indices],
        )

    def of_units(self, units_N: Indices, *, rows_per_unit: int) -> Streamed:
        return replace(self, units_N=units_N, rows_per_unit=rows_per_unit)

    def read(self, plan: Iterable[Indices]) -> Iterator[Samples]:
        """In a private job a sample that cannot be read any more is zeros, with the least target."""
        wanted = [self.places_N[places] for places in plan]
        for places, found in zip(wanted, self.store.read(wanted), strict=True):
            _, samples = fitting(found, places, self.store, self.job, misfit=self._misfit)
            yield samples

    def _misfit(self, error: ConfigError) -> Samples:
        if self.job.privacy is None:
            raise error
        zeros = np.zeros((1, *self.job.input_shape), input_type(self.job))
        return Samples(features=zeros, labels=self.job.method.task.target.examples(1))


def fitting(
    found: Sequence[Found],
    places: Indices,
    store: Store,
    job: JobSpec,
    *,
    misfit: Callable[[ConfigError], Samples | None],
) -> tuple[list[int], Samples]:
    """What was read at those places in the job's form, and which of them are there.

    misfit: gets what is wrong with a sample, and may give another in its place.
    """
    with suppress(ConfigError, ValueError):  # one that does not fit, or shapes that differ: one by one below
        samples = _in_form(found, job, source="data")
        if len(samples) == len(found):
            return places.tolist(), samples
    kept, each = [], []
    for place, one in zip(places.tolist(), found, strict=True):
        where = store.where(place)
        sample: Samples | None
        try:
            sample = _in_form([one], job, source=where)
            if not len(sample):
                raise ConfigError(f"{where}: its label or an input is none of the job's")
        except ConfigError as error:
            sample = misfit(error)
        if sample is not None:
            kept.append(place)
            each.append(sample)
    if not each:
        return [], _nothing(job)
    features = np.concatenate([sample.features for sample in each])
    return kept, Samples(features=features, labels=np.concatenate([sample.labels for sample in each]))


def _in_form(found: Sequence[Found], job: JobSpec, *, source: str) -> Samples:
    """In a private job without those that do not fit. Raises ConfigError, and ValueError for shapes that
    differ."""
    pairs = []
    for one in found:
        if isinstance(one, Unread):
            # of a file, it names that itself
            raise ConfigError(one.why if one.why.startswith(source) else f"{source}: {one.why}")
        pairs.append(one)
    if len({(inputs.dtype, target.dtype) for inputs, target in pairs}) > 1:
        raise ValueError("together they would become another type, and so other values")
    features, labels = (np.stack(each) for each in zip(*pairs, strict=True))
    raw = Samples(features=features, labels=labels)
    return prepared(raw, job, source=source) if job.privacy is None else put_right(raw, job, source=source)[0]


def _nothing(job: JobSpec) -> Samples:
    target = job.method.task.target
    return Samples(features=np.zeros((0, *job.input_shape), input_type(job)), labels=target.examples(0))
