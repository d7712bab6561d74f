"""What a silo's data is, whatever file it came from. A loader gives RawData; training gets SiloData.

N = samples. Numpy only: the agent's core reads these types and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.data.problems import Problems
from silo_agent.data.settings import DataSettings

Features = NDArray[Any]
Labels = NDArray[Any]
Indices = NDArray[np.int64]

NO_LABEL = int(np.iinfo(np.int64).min)  # of a record whose label is no whole number, and no label itself
MAX_LABEL = float(1 << 53)  # whole numbers up to here are exact as floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Shapes: features (N, ...), labels (N, *target): what each sample's target is, one class as a rule."""

    features: Features
    labels: Labels

    def __post_init__(self) -> None:
        if self.features.ndim == 0 or self.labels.shape[:1] != self.features.shape[:1]:
            raise ConfigError(
                f"data: expected one label per sample, got features {self.features.shape} "
                f"and labels {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def strata_N(self) -> NDArray[np.int64]:
        """What a cut keeps even: the classes, where a sample has one whole number, else one stratum."""
        if self.labels.ndim == 1 and self.labels.dtype.kind in "iu":
            return self.labels.astype(np.int64, copy=False)
        return np.zeros(len(self), np.int64)

    def take(self, indices: Indices) -> Samples:
        return Samples(features=self.features[indices], labels=self.labels[indices])

    def first(self, count: int) -> Samples:
        """The first `count` samples, for a hold-out cut to a multiple of the count granularity."""
        return Samples(features=self.features[:count], labels=self.labels[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData:
    """What a file holds, before partition and conversion. test is None where it has no split of its own.

    No single record raises: one without a usable label has NO_LABEL, and `problems` has a line of it.
    identities: each record of train as its file holds it; None: its features and label are that.
    places: where each record of train stands, such as `table.csv, line 17`; None: its number says it.
    """

    train: Samples
    test: Samples | None = None
    identities: tuple[bytes, ...] | None = None
    places: Sequence[str] | None = None
    problems: Problems = field(default_factory=Problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloData:
    """Float32 features in the job's input shape. name: data set id in the ledger."""

    train: Samples
    holdout: Samples
    name: str


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
