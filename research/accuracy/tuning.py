"""Learning rate and strength of each method: the best point of its grid on validation samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from research.accuracy.suites import Point
from research.accuracy.trials import Outcome, Split, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """validation: mean final accuracy by point of the grid, over the tuning seeds."""

    setting: str
    arm: str
    point: Point
    validation: Mapping[Point, float]

    @property
    def rate(self) -> float:
        return self.point[0]

    @property
    def is_at_an_end(self) -> bool:
        """Whether the chosen rate is the grid's first or last: a wider grid might have chosen another."""
        rates = {rate for rate, _ in self.validation}
        return self.rate in (min(rates), max(rates))

    @property
    def has_strength_at_an_end(self) -> bool:
        """The same of its strength, where several were tried."""
        strengths = {strength for _, strength in self.validation if strength is not None}
        return len(strengths) > 1 and self.point[1] in (min(strengths), max(strengths))


def chosen(trials: Iterable[Trial], outcome: Callable[[Trial], Outcome]) -> list[Choice]:
    """One choice for every setting and arm, in the order in which the trials name them.

    Of equals the first of the smallest rate is taken.
    """
    by_arm: dict[tuple[str, str], dict[Point, list[float]]] = {}
    for trial in trials:
        if trial.tested is not Split.VALIDATION:
            raise ValueError(f"{trial.arm}: a rate is chosen on validation samples, not on test samples")
        points = by_arm.setdefault((trial.setting, trial.arm), {})
        points.setdefault((trial.learning_rate, trial.strength), []).append(outcome(trial).final)
    return [_choice(setting, arm, points) for (setting, arm), points in by_arm.items()]


def _choice(setting: str, arm: str, points: Mapping[Point, Sequence[float]]) -> Choice:
    means = {point: statistics.mean(found) for point, found in points.items()}
    best = max(means, key=lambda point: (means[point], -point[0]))
    return Choice(setting=setting, arm=arm, point=best, validation=means)
