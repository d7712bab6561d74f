"""The learning rate of each method: the best of the grid on the validation samples, ties to the smaller."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from research.accuracy.trials import Outcome, Split, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """validation: mean final accuracy by rate, over the tuning seeds."""

    setting: str
    arm: str
    rate: float
    validation: Mapping[float, float]

    @property
    def is_at_the_edge(self) -> bool:
        """Whether a wider grid might have chosen another."""
        return self.rate in (min(self.validation), max(self.validation))


def chosen(trials: Iterable[Trial], outcome: Callable[[Trial], Outcome]) -> list[Choice]:
    """One choice for every setting and arm, in the order in which the trials name them."""
    by_arm: dict[tuple[str, str], dict[float, list[float]]] = {}
    for trial in trials:
        if trial.tested is not Split.VALIDATION:
            raise ValueError(f"{trial.arm}: a rate is chosen on validation samples, not on test samples")
        rates = by_arm.setdefault((trial.setting, trial.arm), {})
        rates.setdefault(trial.learning_rate, []).append(outcome(trial).final)
    return [_choice(setting, arm, rates) for (setting, arm), rates in by_arm.items()]


def _choice(setting: str, arm: str, rates: Mapping[float, Sequence[float]]) -> Choice:
    means = {rate: statistics.mean(rates[rate]) for rate in sorted(rates)}
    best = max(means, key=lambda rate: (means[rate], -rate))
    return Choice(setting=setting, arm=arm, rate=best, validation=means)
