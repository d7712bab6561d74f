"""A task as both sides know it, without torch: its targets, what it sums over a hold-out, what the sums say.

The loss and the sums of a batch are computed at the silo (chorale_models/tasks/).
N = samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import Array, PartOptions

MAX_COUNT = float(1 << 40)  # samples at one silo; 2^22 such silos fit a 64-bit word
MAX_LOSS_SUM = float(1 << 30)  # of one silo's hold-out
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
        )


TESTED = Sum(name="tested", is_count=True)
LOSS_SUM = Sum(name="loss_sum", bound=MAX_LOSS_SUM, per_record=LOSS_CLIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a sample's target is: its shape, and the range of its values. is_whole: int64, else float32."""

    shape: tuple[int, ...] = ()
    is_whole: bool = False
    low: float = -math.inf
    high: float = math.inf

    def fitting(self, targets: Array) -> NDArray[np.bool_]:
        """Which samples have a target of this kind. Shapes: (N, *shape) -> (N,)."""
        flat = targets.reshape(len(targets), math.prod(targets.shape[1:]))
        return np.asarray(((flat >= self.low) & (flat <= self.high) & np.isfinite(flat)).all(axis=1))

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
                f"{source}: labels must be {self.low:g} to {self.high:g} (by the job's task and classes), "
                f"got {targets.min():g} to {targets.max():g}"
            )
        return targets.astype(np.int64 if self.is_whole else np.float32, copy=False)

    def examples(self, count: int) -> Array:
        """Targets that no data is in, for probes. Shapes: -> (N, *shape)."""
        low = self.low if math.isfinite(self.low) else -1.0
        high = self.high if math.isfinite(self.high) else 1.0
        numbers = np.arange(count * math.prod(self.shape)).reshape(count, *self.shape)
        if self.is_whole:
            return np.asarray(int(low) + numbers % (int(high) - int(low) + 1), np.int64)
        return np.asarray(low + (high - low) * (numbers % 7) / 6.0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """What a job says of its samples. classes: 0 where the job names none."""

    classes: int = 0
    input_shape: tuple[int, ...] = ()


class DeclaredTask(ABC):
    """A task of one job. word: names it in a job file. options: its own numbers, with their ranges.

    has_classes: whether a target is one class a sample: what heads, prototypes and soft labels need.
    least_classes: fewest `classes` of a job; None where a job needs none.
    is_mean: whether the loss of a batch is the mean of losses of single records, which DP-SGD needs.
    further: what a job may ask for by `task.metrics`, summed once, by the closing evaluation.
    """

    word: ClassVar[str]
    options: ClassVar[type[PartOptions]] = PartOptions
    has_classes: ClassVar[bool] = False
    least_classes: ClassVar[int | None] = None
    is_mean: ClassVar[bool] = True
    further: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, sizes: TaskSizes, options: PartOptions | None = None, metrics: tuple[str, ...] = ()
    ) -> None:
        self.sizes = sizes
        self.chosen = self.options() if options is None else options
        self.metrics = metrics

    @property
    @abstractmethod
    def target(self) -> Target: ...

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        """What is summed in every round and at the end."""
        return (TESTED, LOSS_SUM)

    @property
    def closing_sums(self) -> tuple[Sum, ...]:
        """What the closing evaluation sums besides."""
        return ()

    def figures(self, sums: Mapping[str, Array]) -> dict[str, float]:
        """Numbers for a phase's record, of those of its sums that were revealed; NaN where nothing was
        tested."""
        return base_figures(sums)

    @property
    def round_metrics(self) -> tuple[str, ...]:
        """Names of the figures of every round, the number of samples left out."""
        nothing = {each.name: np.zeros(each.shape) for each in self.round_sums}
        return tuple(name for name in self.figures(nothing) if name != TESTED.name)

    def score(self, sums: Mapping[str, Array]) -> float:
        """How good a model is at one silo, from 0 to 1: what personalization reports of the silos' own
        models."""
        raise ConfigError(f"task {self.word}: it says of no model how good it is from 0 to 1")


def base_figures(sums: Mapping[str, Array]) -> dict[str, float]:
    """loss (mean of the tested samples) and tested. Under noise each sum may leave its range by some."""
    tested, loss_sum = float(sums["tested"]), float(sums["loss_sum"])
    return {"loss": max(loss_sum / tested, 0.0) if tested > 0 else math.nan, "tested": tested}
