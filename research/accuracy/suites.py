"""What a suite trains: data, model, cuts, rounds, the grid of learning rates and the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from research.accuracy.arms import Arm
from research.accuracy.trials import Split, Trial

RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = (1, 2, 3, 4, 5)
TUNING_SEEDS = (101, 102)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One cut of one data set, trained in one way. folder: of the data, inside the folder that is given."""

    name: str
    silos: int
    data: Mapping[str, str]
    partition: Mapping[str, Any]
    job: Mapping[str, Any]
    rates: tuple[float, ...] = RATES
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """needs_data: whether `--data` has to name a folder. workers: processes unless told otherwise."""

    name: str
    settings: tuple[Setting, ...]
    about: str
    needs_data: bool = True
    workers: int = 2
    device: str = "cpu"
    seeds: tuple[int, ...] = SEEDS
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    arms: tuple[str, ...] | None = field(default=None)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its settings."""
        return tuple(one.name for one in self.settings)

    def tuning(self, arms: Sequence[Arm]) -> list[Trial]:
        """Every rate of the grid for every arm: the same number of trials and the same seeds for each."""
        return [
            _trial(self, setting, arm, tested=Split.VALIDATION, seed=seed, rate=rate)
            for setting in self.settings
            for seed in self.tuning_seeds
            for arm in arms
            for rate in setting.rates
        ]

    def comparison(self, arms: Sequence[Arm], rates: Mapping[tuple[str, str], float]) -> list[Trial]:
        """Every seed for every arm. rates: by names of setting and arm."""
        return [
            _trial(self, setting, arm, tested=Split.TEST, seed=seed, rate=rates[setting.name, arm.name])
            for setting in self.settings
            for seed in self.seeds
            for arm in arms
        ]

    def with_data_in(self, root: Path | None) -> Suite:
        """The suite without settings whose data are not there."""
        if root is None:
            return self
        return replace(self, settings=tuple(one for one in self.settings if (root / one.folder).is_dir()))

    def setting(self, name: str) -> Setting:
        """The setting of that name."""
        return next(one for one in self.settings if one.name == name)

    def path(self, trial: Trial, root: Path | None) -> Path | None:
        """Where a trial's data lie on this machine."""
        return None if root is None else root / self.setting(trial.setting).folder


def _trial(suite: Suite, setting: Setting, arm: Arm, *, tested: Split, seed: int, rate: float) -> Trial:
    return Trial(
        suite=suite.name,
        setting=setting.name,
        arm=arm.name,
        tested=tested,
        seed=seed,
        learning_rate=rate,
        silos=setting.silos,
        strategy=arm.strategy,
        job=setting.job,
        partition=setting.partition,
        data=setting.data,
    )
