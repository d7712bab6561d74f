"""A task as both sides know it, without torch: its targets, what it sums over a hold-out, what the sums say.

The loss and the sums of a batch are computed at the silo (chorale_models/tasks/).
N = samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import Array, FloatArray, PartOptions
from strategies.figure import AT_LEAST, Figure, Interval, parts_of
from strategies.intervals import TWO_SIDED, ratio_interval

MAX_COUNT = float(1 << 40)  # samples at one silo; 2^22 such silos fit a 64-bit word
MAX_LOSS_SUM = float(1 << 30)  # of one silo's hold-out
NO_NOISE: Mapping[str, float] = MappingProxyType({})
LOSS_CLIP = 8.0  # of one sample in a private job: chance among 2,981 classes; less noise than a higher one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """One named array that a task sums over a silo's hold-out.

    bound: largest magnitude of a silo's value. per_record: L2 norm by which one record more or less moves it,
    which the noise of a private job is scaled by. at_most: the count beside it that it never exceeds.
    """

    name: str
    shape: tuple[int, ...] = ()
    bound: float = MAX_COUNT
    per_record: float = 1.0
    is_count: bool = False
    is_by_class: bool = False
    at_most: str = ""

    @property
    def quantity(self) -> Quantity:
        return Quantity(
            name=self.name,
            shape=self.shape,
            bound=self.bound,
            is_count=self.is_count,
            sensitivity_l2=self.per_record,
            discloses=Disclosure.CLASS_STATISTIC if self.is_by_class else Disclosure.STATISTIC,
            at_most=self.at_most,
            side=Side.HOLDOUT,
        )


TESTED = Sum(name="tested", is_count=True)
LOSS_SUM = Sum(name="loss_sum", bound=MAX_LOSS_SUM, per_record=LOSS_CLIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A figure that is one sum divided by another.

    low, high: the least and largest that a record may add to `above` for what it adds to `below`; infinite
    where nothing bounds it. clip: what takes the place of an infinite `high` in a private job, where each
    record is clipped to it. shown: of the ratio, growing: in which units it is told.
    """

    above: str
    below: str = TESTED.name
    low: float = 0.0
    high: float = 1.0
    clip: float | None = None
    shown: Callable[[float], float] = float

    def value(self, sums: Mapping[str, Array]) -> float:
        """Within its range, out of which noise may bring it; NaN without anything to divide by."""
        below = float(sums[self.below])
        if not below > 0:
            return math.nan
        return self.shown(min(max(float(sums[self.above]) / below, self.low), self.high))

    def figure(self, sums: Mapping[str, Array], noise: Mapping[str, float]) -> Figure:
        """With its intervals. noise: by sum, the standard deviation of its noise; none in an exact one."""
        is_noised = self.above in noise or self.below in noise
        high = self.clip if is_noised and self.clip is not None else self.high
        above, below = float(sums[self.above]), float(sums[self.below])
        deviations = noise.get(self.above, 0.0), noise.get(self.below, 0.0)

        def interval(records: float | None) -> Interval:
            ends = ratio_interval(
                above, below, deviations=deviations, low=self.low, high=high, records=records
            )
            low, high_ = (self.shown(float(end)) if math.isfinite(end) else float(end) for end in ends)
            return low, high_

        records = below if self.below == TESTED.name else float(sums[TESTED.name])
        has_range = math.isfinite(high - self.low)
        return Figure(
            value=min(self.value(sums), self.shown(high)),
            noise=interval(None) if is_noised else None,
            sampling=interval(records) if has_range and (is_noised or below > 0) else None,
            bias=AT_LEAST if is_noised and self.clip is not None else "",
        )


LOSS = Ratio(above=LOSS_SUM.name, high=math.inf, clip=LOSS_CLIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a sample's target is: its shape, and the range of its values. is_whole: int64, else float32.

    highs: the largest value of each number, where they differ; empty: `high` is that of all.
    """

    shape: tuple[int, ...] = ()
    is_whole: bool = False
    low: float = -math.inf
    high: float = math.inf
    highs: tuple[float, ...] = ()

    @property
    def range(self) -> str:
        """For a message, such as `0 to 9`, or `0 to 5 and 0 to 1` where numbers differ."""
        return " and ".join(f"{self.low:g} to {high:g}" for high in self.highs or (self.high,))

    def fitting(self, targets: Array) -> NDArray[np.bool_]:
        """Which samples have a target of this kind. Shapes: (N, *shape) -> (N,)."""
        if targets.shape[1:] != self.shape or targets.dtype.kind not in "iufb":
            return np.zeros(len(targets), np.bool_)
        flat = targets.reshape(len(targets), math.prod(self.shape))
        highs = np.asarray(self.highs) if self.highs else self.high
        fits = (flat >= self.low) & (flat <= highs) & np.isfinite(flat)
        return np.asarray(fits.all(axis=1))

    def checked(self, targets: Array, *, source: str) -> Array:
        """The targets in their type. Raises ConfigError that says what is expected."""
        if targets.dtype.kind not in ("iub" if self.is_whole else "iufb"):
            kind = "whole numbers" if self.is_whole else "numbers"
            raise ConfigError(f"{source}: labels are {kind}, got {targets.dtype}")
        if targets.shape[1:] != self.shape:
            raise ConfigError(
                f"{source}: a label has shape {targets.shape[1:]}, the job's task expects {self.shape}"
            )
        if not self.fitting(targets).all():
            if not np.isfinite(targets).all():
                raise ConfigError(f"{source}: labels hold NaN or infinity, expected finite numbers")
            raise ConfigError(
                f"{source}: labels must be {self.range} (by the job's task and classes), "
                f"got {targets.min():g} to {targets.max():g}"
            )
        return targets.astype(np.int64 if self.is_whole else np.float32, copy=False)

    def examples(self, count: int) -> Array:
        """Targets that no data is in, for probes. Shapes: -> (N, *shape)."""
        low = self.low if math.isfinite(self.low) else -1.0
        high = min(self.highs) if self.highs else self.high
        high = high if math.isfinite(high) else max(1.0, low)
        numbers = np.arange(count * math.prod(self.shape)).reshape(count, *self.shape)
        if self.is_whole:
            return np.asarray(int(low) + numbers % (int(high) - int(low) + 1), np.int64)
        return np.asarray(low + (high - low) * (numbers % 7) / 6.0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """What a job says of its samples. classes: 0 where the job names none."""

    classes: int = 0
    input_shape: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """How many numbers a model answers with for a sample, or for each of its pixels or tokens."""
        return max(self.classes, 1)


class Metric(ABC):
    """What a job may ask for by `task.metrics`: sums of the closing evaluation, and what they say.

    is_by_subgroup: whether a job with subgroups sums it of each.
    """

    sums: tuple[Sum, ...]
    is_by_subgroup: ClassVar[bool] = False

    @abstractmethod
    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """Single numbers of the record; NaN where the samples have no such number. noise: by sum, the
        standard deviation of its noise. Under noise that nothing better is known of, the noise interval is
        all that the figure can be."""

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """Arrays of the record, such as a matrix or a curve. Shapes: each metric says its own."""
        return {}

    def _anywhere(
        self, noise: Mapping[str, float], *, low: float = 0.0, high: float = 1.0
    ) -> Interval | None:
        """The noise interval of a figure whose noise is not followed."""
        return (low, high) if any(each.name in noise for each in self.sums) else None

    def _with_ends(
        self, found_K: Mapping[str, FloatArray], noise: Mapping[str, float]
    ) -> dict[str, FloatArray]:
        """Figures by class, with the ends of `_anywhere`."""
        ends = dict(zip(("low", "high"), self._anywhere(noise) or (), strict=False))
        return dict(found_K) | {
            f"{name}_noise_{end}": np.full_like(value_K, limit)
            for name, value_K in found_K.items()
            for end, limit in ends.items()
        }


class DeclaredTask(ABC):
    """A task of one job. word: names it in a job file. options: its own numbers, with their ranges.

    main: the figure that is told where there is room for one. has_classes: whether a target is one class a
    sample: what heads, prototypes and soft labels need. least_classes: fewest `classes` of a job; None where
    a job needs none. has_tokens: whether inputs are tokens. is_mean: whether the loss of a batch is the mean
    of losses of single records, which private jobs need. subgroup_sums: of a round's, what a job with
    subgroups sums of each; none: it can have none.
    """

    word: str
    options: ClassVar[type[PartOptions]] = PartOptions
    main: str = "loss"
    has_classes: bool = False
    least_classes: ClassVar[int | None] = None
    has_tokens: ClassVar[bool] = False
    subgroup_sums: ClassVar[tuple[str, ...]] = ()
    is_mean: bool = True

    def __init__(
        self, sizes: TaskSizes, options: PartOptions | None = None, metrics: tuple[str, ...] = ()
    ) -> None:
        """Raises ConfigError for sizes, options and metrics that the task cannot have."""
        self.sizes = sizes
        self.chosen = self.options() if options is None else options
        if self.least_classes is not None and sizes.classes < self.least_classes:
            raise ConfigError(
                f"classes: expected at least {self.least_classes} for task {self.word}, got {sizes.classes}"
            )
        for word in metrics:
            if word not in self.further:
                known = ", ".join(self.further) or "none"
                raise ConfigError(f"task.metrics: {self.word} has {known}, got {word}")
        self.asked: Mapping[str, Metric] = {word: self.further[word]() for word in metrics}

    @property
    @abstractmethod
    def target(self) -> Target: ...

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        """What is summed in every round and at the end."""
        return (TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        """What a job may ask for by `task.metrics`: summed once, by the closing evaluation."""
        return {}

    @property
    def closing_sums(self) -> tuple[Sum, ...]:
        """What the closing evaluation sums besides."""
        return tuple(each for metric in self.asked.values() for each in metric.sums)

    @property
    @abstractmethod
    def ratios(self) -> Mapping[str, Ratio]:
        """Its figures of every round, by name, without the loss."""

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """What a phase's round sums say: the task's figures, loss (mean of the tested samples) and tested.

        noise: by sum, the standard deviation of its noise.
        """
        ratios = {**self.ratios, "loss": LOSS}
        found = {name: ratio.figure(sums, noise) for name, ratio in ratios.items()}
        return {**found, TESTED.name: count_figure(float(sums[TESTED.name]), noise.get(TESTED.name))}

    def subgroup_figures(self, sums: Mapping[str, Array]) -> dict[str, Figure]:
        """Of one subgroup, by `subgroup_sums` and `tested`."""
        return {self.main: self.ratios[self.main].figure(sums, NO_NOISE)}

    @property
    def round_metrics(self) -> tuple[str, ...]:
        """Names of the figures of every round, the number of samples left out."""
        return (*self.ratios, "loss")

    @property
    def round_figures(self) -> frozenset[str]:
        """All that a round's record may hold of the model that it tests, intervals and samples included."""
        return frozenset(part for name in (*self.round_metrics, TESTED.name) for part in parts_of(name))

    def score(self, sums: Mapping[str, Array]) -> float:
        """How good a model is at one silo, from 0 to 1, of its round sums; 0 where nothing was tested: what
        personalization reports of the silos' own models."""
        raise ConfigError(f"task {self.word}: it says of no model how good it is from 0 to 1")


def count_figure(counted: float, deviation: float | None) -> Figure:
    """How many; an interval of the noise where there is some."""
    if deviation is None:
        return Figure(value=counted)
    away = TWO_SIDED * deviation
    return Figure(value=counted, noise=(max(counted - away, 0.0), max(counted + away, 0.0)))


def share(part: float | Array, whole: float | Array) -> float:
    """part / whole, taken into [0, 1], out of which noise may bring it; NaN without a whole."""
    return min(max(float(part) / float(whole), 0.0), 1.0) if whole > 0 else math.nan


def shares(part_K: Array, whole_K: Array) -> FloatArray:
    """The same of each number. Shapes: (K,), (K,) -> (K,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole_K > 0, np.clip(part_K / whole_K, 0.0, 1.0), math.nan)


def mean_of(values_K: FloatArray) -> float:
    """Of those that are numbers; NaN without any."""
    known = values_K[~np.isnan(values_K)]
    return float(known.mean()) if known.size else math.nan
