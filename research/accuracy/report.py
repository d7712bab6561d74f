"""What a suite has found so far, as it is committed: numbers, from which every word of the page follows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from research.accuracy.arms import ARMS
from research.accuracy.book import Book
from research.accuracy.paired import MARGIN, Difference, paired
from research.accuracy.suites import Point, Suite
from research.accuracy.trials import Trial
from research.accuracy.tuning import Choice, chosen

MIN_SEEDS = 3
Key = tuple[str, str, float, float | None]  # setting, arm, learning rate, strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method at one point on one cut. accuracy: by seed; 0 where the training failed."""

    setting: str
    arm: str
    rate: float
    strength: float | None
    accuracy: Mapping[int, float]
    failed: int = 0

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracy.values())

    def mean_of(self, seeds: Iterable[int]) -> float:
        """Raises KeyError for one that has not run."""
        return statistics.mean(self.accuracy[seed] for seed in seeds)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracy.values()) if len(self.accuracy) > 1 else 0.0


class Missing(StrEnum):
    """Why there is no difference."""

    NOT_RUN = "not measured yet"
    NEITHER_LEARNS = "neither learns"
    REFERENCE_FAILS = "the other does not learn"
    METHOD_FAILS = "it does not learn itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """runs: that have ended, of `planned`. seconds: of CPU, all runs together. classes, tests: by setting.

    sources: of the runs, as `source.here` says them.
    choices: of the settings and arms whose whole tuning has ended. rows_by_default: by setting, of how many
    classes a silo's default policy would send the rows, mean of the seeds.
    """

    suite: str
    about: str
    settings: tuple[str, ...]
    classes: Mapping[str, int]
    tests: Mapping[str, int]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    common: tuple[float, ...]
    common_arms: tuple[str, ...]
    runs: int
    planned: int
    seconds: float
    sources: tuple[str, ...]
    rows_by_default: Mapping[str, float]
    cells: Mapping[Key, Cell]
    choices: Mapping[tuple[str, str], Choice]

    def tuned(self, setting: str, arm: str) -> Cell | None:
        """At the chosen point; None where it has not run."""
        choice = self.choices.get((setting, arm))
        return None if choice is None else self.cells.get((setting, arm, *choice.point))

    def passed_over(self, setting: str, arm: str) -> Cell | None:
        """The best point of an arm that has run with all seeds of the tuned one, if it is ahead by more than
        the margin: what the few validation samples did not choose."""
        tuned = self.tuned(setting, arm)
        if tuned is None:
            return None
        whole = [
            cell
            for (name, of, _, _), cell in self.cells.items()
            if (name, of) == (setting, arm) and tuned.accuracy.keys() <= cell.accuracy.keys()
        ]
        best = max(whole, key=lambda cell: cell.mean_of(tuned.accuracy))
        return best if 100 * (best.mean_of(tuned.accuracy) - tuned.mean) > MARGIN else None

    def shared_seeds(self, setting: str) -> list[int]:
        """That every method ran with at every common rate, with its published strength, on that cut."""
        cells = [
            cell
            for (name, arm, rate, strength), cell in self.cells.items()
            if (name, strength) == (setting, ARMS[arm].published)
            and arm in self.common_arms
            and rate in self.common
        ]
        return sorted(set.intersection(*(set(cell.accuracy) for cell in cells))) if cells else []

    def learned(self, cell: Cell) -> int:
        """On how many seeds its accuracy is ten points above chance."""
        return sum(self.is_learned(cell.setting, accuracy) for accuracy in cell.accuracy.values())

    def is_learned(self, setting: str, accuracy: float) -> bool:
        return accuracy >= 1 / self.classes[setting] + 0.1

    def difference(self, one: Cell | None, other: Cell | None) -> Difference | Missing:
        """Over the seeds that both have. By how much a method is ahead of one that learns on no seed is no
        figure."""
        if one is None or other is None:
            return Missing.NOT_RUN
        seeds = sorted(one.accuracy.keys() & other.accuracy.keys())
        if len(seeds) < MIN_SEEDS:
            return Missing.NOT_RUN
        if not (self.learned(one) and self.learned(other)):
            if self.learned(one):
                return Missing.REFERENCE_FAILS
            return Missing.METHOD_FAILS if self.learned(other) else Missing.NEITHER_LEARNS
        mine, theirs = ([cell.accuracy[seed] for seed in seeds] for cell in (one, other))
        learned = sum(self.is_learned(one.setting, max(pair)) for pair in zip(mine, theirs, strict=True))
        found = paired(mine, theirs, tests=self.tests[one.setting])
        return replace(found, shows_equivalence=learned >= MIN_SEEDS)

    def to_json(self) -> dict[str, Any]:
        """Without what the keys say twice."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("cells", "choices")}
        cells = [
            {**asdict(one), "accuracy": [[seed, value] for seed, value in one.accuracy.items()]}
            for one in self.cells.values()
        ]
        choices = [
            {**asdict(one), "validation": [[*point, value] for point, value in one.validation.items()]}
            for one in self.choices.values()
        ]
        return {**fields, "cells": cells, "choices": choices}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        cells = [Cell(**{**one, "accuracy": dict(one["accuracy"])}) for one in fields["cells"]]
        choices = [
            Choice(
                setting=one["setting"],
                arm=one["arm"],
                point=(one["point"][0], one["point"][1]),
                validation={(rate, strength): value for rate, strength, value in one["validation"]},
            )
            for one in fields["choices"]
        ]
        found = {
            "cells": {_key(one): one for one in cells},
            "choices": {(one.setting, one.arm): one for one in choices},
        }
        return cls(**{**fields, **lists, **found})


def report_of(suite: Suite, book: Book, *, rows_by_default: Mapping[str, float]) -> Report:
    """Of the runs that have ended; the others are left out."""
    tuning = suite.tuning()
    choices = {(one.setting, one.arm): one for one in _ended_choices(tuning, book)}
    points: dict[tuple[str, str], Point] = {key: choice.point for key, choice in choices.items()}
    common = [trial for flag in (True, False) for trial in suite.at_common_rates(is_published=flag)]
    tested = {trial.key: trial for trial in (*suite.tuned(points), *common)}
    ended = [trial for trial in (*tuning, *tested.values()) if book.has(trial)]
    # a tuned point may be one of the common ones
    unchosen = len(suite.settings) * len(suite.arms) - len(choices)
    return Report(
        suite=suite.name,
        about=suite.about,
        settings=suite.names,
        classes={one.name: int(one.job["classes"]) for one in suite.settings},
        tests={one.name: one.tests for one in suite.settings},
        arms=suite.arms,
        seeds=suite.seeds,
        tuning_seeds=suite.tuning_seeds,
        common=suite.common,
        common_arms=suite.common_arms or suite.arms,
        runs=len(ended),
        planned=len(tuning) + len(tested) + unchosen * len(suite.seeds),
        seconds=round(sum(book.outcome(trial).seconds for trial in ended), 1),
        sources=tuple(sorted({book.outcome(trial).source or "unknown" for trial in ended})),
        rows_by_default=rows_by_default,
        cells=_cells(tested.values(), book),
        choices=choices,
    )


def _ended_choices(tuning: Iterable[Trial], book: Book) -> list[Choice]:
    """Of the settings and arms of which nothing is missing."""
    trials = list(tuning)
    missing = {(trial.setting, trial.arm) for trial in book.missing(trials)}
    whole = [trial for trial in trials if (trial.setting, trial.arm) not in missing]
    return chosen(whole, book.outcome)


def _cells(trials: Iterable[Trial], book: Book) -> dict[Key, Cell]:
    by_cell: dict[Key, list[Trial]] = {}
    for trial in trials:
        if book.has(trial):
            key = (trial.setting, trial.arm, trial.learning_rate, trial.strength)
            by_cell.setdefault(key, []).append(trial)
    return {
        key: Cell(
            setting=key[0],
            arm=key[1],
            rate=key[2],
            strength=key[3],
            accuracy={trial.seed: round(book.outcome(trial).final, 6) for trial in found},
            failed=sum(bool(book.outcome(trial).failed) for trial in found),
        )
        for key, found in by_cell.items()
    }


def _key(cell: Cell) -> Key:
    return cell.setting, cell.arm, cell.rate, cell.strength
