"""What a suite trains: data, model, cuts, rounds, the grids of learning rates and strengths, and the seeds.

`common` trains every arm at the same rates; `tuning` tries a grid on validation samples of other seeds, and
`tuned` tests what it chose. Seeds come one after the other, so that a suite stopped at any moment leaves
whole seeds behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from research.accuracy.arms import ARMS
from research.accuracy.trials import Split, Trial

Point = tuple[float, float | None]  # a learning rate and a strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One cut of one data set. place: of the data, in the folder that is given.

    rates: the tuning's grid. unit_rates: that of arms with features of length one, whose gradients are
    smaller; the same number of rates. tests: samples on which a model is tested.
    """

    name: str
    silos: int
    data: Mapping[str, str]
    partition: Mapping[str, Any]
    job: Mapping[str, Any]
    rates: tuple[float, ...]
    unit_rates: tuple[float, ...]
    tests: int
    place: str = ""

    def grid(self, arm: str) -> tuple[float, ...]:
        """The rates that an arm's tuning tries."""
        return self.unit_rates if ARMS[arm].has_unit_features else self.rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """arms: by name. common: rates at which every arm is tested; common_arms: those that are, all if empty.

    tunes_strength: whether tuning chooses an arm's strength too, out of its grid, and whether common rates
    are tried with all strengths; else the published one is the only one. tuning_rounds: of a tuning run;
    None: the job's. needs_data: whether `--data` has to name a folder.
    """

    name: str
    about: str
    settings: tuple[Setting, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    common: tuple[float, ...] = ()
    common_arms: tuple[str, ...] = ()
    tunes_strength: bool = False
    tuning_rounds: int | None = None
    needs_data: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Of its settings."""
        return tuple(one.name for one in self.settings)

    def strengths(self, arm: str) -> tuple[float | None, ...]:
        """The published one first."""
        return ARMS[arm].grid if self.tunes_strength else ARMS[arm].grid[:1]

    def tuning(self) -> list[Trial]:
        """Every point of an arm's grid: the same rates, the same seeds, the same samples for each arm."""
        return [
            self._trial(setting, arm, (rate, strength), tested=Split.VALIDATION, seed=seed)
            for setting in self.settings
            for seed in self.tuning_seeds
            for arm in self.arms
            for strength in self.strengths(arm)
            for rate in setting.grid(arm)
        ]

    def tuned(self, chosen: Mapping[tuple[str, str], Point]) -> list[Trial]:
        """Every seed for every arm that has a choice. chosen: by names of setting and arm."""
        return [
            self._trial(setting, arm, chosen[setting.name, arm], tested=Split.TEST, seed=seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in self.arms
            if (setting.name, arm) in chosen
        ]

    def at_common_rates(self, *, is_published: bool) -> list[Trial]:
        """Every seed for every arm and common rate, at the published strengths, or at all the others."""
        return [
            self._trial(setting, arm, (rate, strength), tested=Split.TEST, seed=seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in self.common_arms or self.arms
            for strength in (self.strengths(arm)[:1] if is_published else self.strengths(arm)[1:])
            for rate in self.common
        ]

    def with_data_in(self, root: Path | None) -> Suite:
        """The suite without settings whose data are not there."""
        if root is None:
            return self
        return replace(self, settings=tuple(one for one in self.settings if (root / one.place).exists()))

    def setting(self, name: str) -> Setting:
        """The setting of that name."""
        return next(one for one in self.settings if one.name == name)

    def path(self, trial: Trial, root: Path | None) -> Path | None:
        """Where a trial's data lie on this machine."""
        return None if root is None else root / self.setting(trial.setting).place

    def _trial(self, setting: Setting, arm: str, point: Point, *, tested: Split, seed: int) -> Trial:
        rate, strength = point
        job = dict(setting.job)
        if tested is Split.VALIDATION and self.tuning_rounds is not None:
            job["rounds"] = self.tuning_rounds
        job = ARMS[arm].job_in(job, rate=rate, strength=strength)
        return Trial(
            suite=self.name,
            setting=setting.name,
            arm=arm,
            tested=tested,
            seed=seed,
            learning_rate=rate,
            strength=strength,
            silos=setting.silos,
            strategy=ARMS[arm].at(strength),
            job=job,
            partition=setting.partition,
            data=setting.data,
        )
