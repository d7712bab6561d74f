"""What a silo's data is, whatever file it came from. A loader gives Data; training gets SiloData.

N = samples. Numpy only: the agent's core reads these types and imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale_models.data import Data
from crypto.errors import ChoraleError, ConfigError
from silo_agent.training.data.problems import Flow, Problems
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.units import Excluded, Units
from silo_agent.training.data.units import Indices as Indices

Features = NDArray[Any]
Labels = NDArray[Any]

NO_LABEL = int(np.iinfo(np.int64).min)  # of a record whose label is no whole number, and no label itself
MAX_LABEL = float(1 << 53)  # whole numbers up to here are exact as floats


class Cancelled(ChoraleError):
    """The work is no longer wanted; raised between batches."""


class SampleSet(ABC):
    """A silo's samples: in memory (`Samples`), or read when they are wanted (streamed.Streamed)."""

    __slots__ = ()

    @property
    @abstractmethod
    def features(self) -> Features:
        """Shapes: (N, ...). Raises ConfigError where they are not in memory."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """Shapes: (N, *target). Raises ConfigError where they are not in memory; classes always are."""

    @property
    @abstractmethod
    def strata_N(self) -> Indices:
        """What a cut keeps even."""

    @property
    @abstractmethod
    def units_N(self) -> Indices | None:
        """The unit of each, ascending; None: each is one."""

    @property
    @abstractmethod
    def rows_per_unit(self) -> int:
        """Most samples that a unit may have, whatever it has."""

    @property
    def units(self) -> Units:
        return Units.of(self.units_N, len(self))

    @abstractmethod
    def of_units(self, units_N: Indices, *, rows_per_unit: int) -> Self:
        """The same samples, of those units."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: Indices | slice) -> Self: ...

    def first(self, count: int) -> Self:
        """The first `count` samples, for a hold-out cut to a multiple of the count granularity."""
        return self.take(slice(count))

    @abstractmethod
    def read(self, plan: Iterable[Indices]) -> Iterator[Samples]:
        """The samples at each of the plan's places; a pass ends where another begins. Raises ConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Samples(SampleSet):
    """Samples in memory, a map-style data set too.

    Shapes: features (N, ...), labels (N, *target): what each sample's target is, one class as a rule.
    strata (N,): what a cut keeps even; None: the classes, where a sample has one whole number, else nothing.
    units (N,), rows_per_unit: as `SampleSet`. subgroups (N,): of a job that tests its model by them.
    """

    features: Features
    labels: Labels
    strata: Indices | None = None
    units_N: Indices | None = None
    rows_per_unit: int = 1
    subgroups: Indices | None = None

    def __post_init__(self) -> None:
        if self.features.ndim == 0 or self.labels.shape[:1] != self.features.shape[:1]:
            raise ConfigError(
                f"data: expected one label per sample, got features {self.features.shape} "
                f"and labels {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Features, Labels]:
        return self.features[place], self.labels[place]

    @property
    def strata_N(self) -> Indices:
        return strata_of(self.labels) if self.strata is None else self.strata

    def take(self, indices: Indices | slice) -> Samples:
        strata, units_N, subgroups = (
            None if each is None else each[indices] for each in (self.strata, self.units_N, self.subgroups)
        )
        return replace(
            self,
            features=self.features[indices],
            labels=self.labels[indices],
            strata=strata,
            units_N=units_N,
            subgroups=subgroups,
        )

    def of_units(self, units_N: Indices, *, rows_per_unit: int) -> Samples:
        return replace(self, units_N=units_N, rows_per_unit=rows_per_unit)

    def read(self, plan: Iterable[Indices]) -> Iterator[Samples]:
        return (self.take(places) for places in plan)


def strata_of(labels: Labels) -> Indices:
    """The classes, where a sample has one whole number, else one stratum."""
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return labels.astype(np.int64, copy=False)
    return np.zeros(len(labels), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData(Data):
    """What a format's loader gives, before partition and conversion: `Samples`, or what is read by place.

    No single record raises: one without a usable label has NO_LABEL, and `problems` has a line of it.
    place: where a record of train stands, such as `table.csv, line 17`; None: its number says it.
    lost: of a table, the places of those that cannot be read. excluded: units that are left out.
    """

    place: Callable[[int], str] | None = None
    lost: Collection[int] | None = None
    problems: Problems = field(default_factory=Problems)
    excluded: Excluded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Every record of a data set as it is stored, whatever a job makes of it, one after the other.

    train: a None is one that cannot be read. holdout: of its own test split; None where it has none. units:
    whose each of train is, as `Data.units`. columns: of a table, by name. count: records that a job may read
    where they are not those of train, which may hold one in two readings.
    """

    train: Iterable[bytes | None]
    holdout: Iterable[bytes | None] | None = None
    units: Sequence[str | int | None] | None = None
    columns: Sequence[str] | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloData:
    """Float32 features in the job's input shape, or int64.

    holdout: what rounds test on. test: what is held out for the closing evaluation alone; None: it tests on
    the hold-out. name: data set id in the ledger. rows_beyond: rows that were left out because their unit has
    more than the institution's setting wants. flow: of a table. excluded: units that are not in it.
    train_transform: as of `Data`.
    """

    train: SampleSet
    holdout: SampleSet
    name: str
    test: SampleSet | None = None
    rows_beyond: int = 0
    flow: Flow | None = None
    excluded: Excluded | None = None
    train_transform: Callable[[Any, Any], tuple[Any, Any]] | None = field(default=None, repr=False)

    @property
    def is_current(self) -> bool:
        """Whether the same people are left out as by now; else the data are read again."""
        return self.excluded is None or self.excluded.is_current

    @property
    def records(self) -> int:
        return len(self.train) + len(self.holdout) + (0 if self.test is None else len(self.test))

    @property
    def tested(self) -> SampleSet:
        """What the closing evaluation tests on."""
        return self.holdout if self.test is None else self.test

    def mapped(self, of: Callable[[SampleSet], SampleSet], *, of_train: bool = True) -> SiloData:
        """With what `of` makes of each part, or of those held out alone."""
        train = of(self.train) if of_train else self.train
        test = None if self.test is None else of(self.test)
        return replace(self, train=train, holdout=of(self.holdout), test=test)


Loader = Callable[[DataSettings, JobSpec], RawData]


def required_path(settings: DataSettings) -> Path:
    """The data path of the settings. Raises ConfigError if nothing is there."""
    assert settings.path is not None  # DataSettings refuses a format that needs one without it
    if not settings.path.exists():
        raise ConfigError(f"data.path: no such file or folder: {settings.path}")
    return settings.path


def whole_labels(labels: NDArray[Any], *, source: str, is_private: bool = False) -> Labels:
    """Labels as int64 (N,), also from an (N, 1) column. Raises ConfigError if they are not whole numbers.

    is_private: a single one that is not is NO_LABEL; only a type that holds no numbers raises.
    """
    column = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if column.ndim != 1 or column.dtype.kind not in "iuf":
        raise ConfigError(
            f"{source}: labels are one whole number per sample, got {labels.dtype} {labels.shape}"
        )
    if is_private:
        found_N = column.astype(np.float64)
        is_usable = (found_N >= 0) & (found_N <= MAX_LABEL) & (found_N == np.floor(found_N))
        return np.where(is_usable, found_N, NO_LABEL).astype(np.int64)
    if column.dtype.kind == "f" and not np.all((np.abs(column) <= MAX_LABEL) & (column == np.floor(column))):
        raise ConfigError(f"{source}: labels are whole numbers, got a fraction or a missing value")
    return column.astype(np.int64)
