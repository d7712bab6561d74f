"""Regression: numbers within a range that the job names. Mean absolute and mean squared error, R2.

The range scales what the model is trained for: its answer is -1 at `low` and 1 at `high`. It also bounds
what one record moves: an answer beyond the range counts as its end in every figure, and a target beyond it
is refused (left out in a private job). Sums are in ranges, figures in the target's own units.
Leaks the two errors over the silos' hold-outs, their total size, and where `r2` is asked for the mean and
the variance of the targets, which of a target with two values is how many records have each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from crypto.errors import ConfigError
from strategies.base import Array, PartOptions
from strategies.figure import Figure
from strategies.intervals import TWO_SIDED
from strategies.rounding import rounded, rounding_step
from strategies.tasks.base import (
    LOSS_SUM,
    NO_NOISE,
    TESTED,
    DeclaredTask,
    Metric,
    Ratio,
    Sum,
    Target,
    TaskSizes,
)

ABSOLUTE = Sum(name="absolute_error")  # of a sample: in ranges, the mean over its numbers, 0 to 1
SQUARED = Sum(name="squared_error")


class RegressionOptions(PartOptions):
    """The range of the targets, and what is minimized."""

    low: float = Field(description="smallest target, in its own units")
    high: float = Field(description="largest target")
    loss: Literal["squared", "absolute", "huber"] = Field(
        default="squared", description="of the error in half ranges; huber is absolute beyond 1"
    )


class R2(Metric):
    """1 - squared error / variance of the targets, over all silos' samples and numbers together.

    Security: the sums are of the targets alone, whatever the model says. Where a job takes a column of 0 and
    1 for the label, they are how many records have 1: a class count.
    """

    sums = (  # of targets from 0 at low to 1 at high
        Sum(name="target_sum", is_by_class=True),
        Sum(name="target_square_sum", is_by_class=True),
    )

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """r2; NaN where all targets are the same."""
        anywhere = self._anywhere(noise, low=-math.inf)
        tested = float(sums["tested"])
        if tested <= 0:
            return {"r2": Figure(value=math.nan, noise=anywhere)}
        mean = float(sums["target_sum"]) / tested
        variance = float(sums["target_square_sum"]) / tested - mean * mean
        error = float(sums["squared_error"]) / tested
        found = 1.0 - error / variance if variance > 0 else math.nan
        return {"r2": Figure(value=found, noise=anywhere)}


class Regression(DeclaredTask):
    """Targets: one number, or as many as the job has `classes` where that is above 1. Outputs: the same."""

    word = "regression"
    main = "mae"
    subgroup_sums = (ABSOLUTE.name, SQUARED.name)
    options: ClassVar[type[PartOptions]] = RegressionOptions

    def __init__(
        self, sizes: TaskSizes, options: PartOptions | None = None, metrics: tuple[str, ...] = ()
    ) -> None:
        super().__init__(sizes, options, metrics)
        assert isinstance(self.chosen, RegressionOptions)
        self.low, self.high = self.chosen.low, self.chosen.high
        if not self.low < self.high:
            raise ConfigError(f"task.options.high: expected more than low, {self.low:g}, got {self.high:g}")

    @property
    def target(self) -> Target:
        shape = (self.sizes.classes,) if self.sizes.classes > 1 else ()
        return Target(shape=shape, low=self.low, high=self.high)

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (ABSOLUTE, SQUARED, TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        return {"r2": R2}

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """mae and rmse, in the target's own units."""
        width = self.high - self.low
        return {
            "mae": Ratio(above="absolute_error", shown=lambda mean: width * mean),
            "rmse": Ratio(above="squared_error", shown=lambda mean: width * math.sqrt(mean)),
        }

    def subgroup_figures(self, sums: Mapping[str, Array]) -> dict[str, Figure]:
        """mae alone, rounded to a power of ten below half a standard error, so that no record's error follows
        from those of the others; sampling: about the rounded one (Wald)."""
        tested, width = float(sums[TESTED.name]), self.high - self.low
        mean, square = (min(max(float(sums[each]) / tested, 0.0), 1.0) for each in self.subgroup_sums)
        deviation = width * math.sqrt(max(square - mean * mean, 0.0))
        error = deviation / math.sqrt(tested)
        exponent = rounding_step(deviation, error)
        mae, away = rounded(width * mean, exponent), rounded(TWO_SIDED * error, exponent)
        return {self.main: Figure(value=mae, sampling=(max(mae - away, 0.0), mae + away))}

    def score(self, sums: Mapping[str, Array]) -> float:
        """1 - mean absolute error in ranges."""
        tested = float(sums["tested"])
        return min(max(1.0 - float(sums["absolute_error"]) / tested, 0.0), 1.0) if tested > 0 else 0.0
