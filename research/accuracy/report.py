"""What a suite found, as it is committed and drawn: numbers, from which every word of the page follows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from research.accuracy.arms import BASELINE, Arm
from research.accuracy.arms import arm as arm_of
from research.accuracy.paired import Paired, paired
from research.accuracy.suites import Suite
from research.accuracy.trials import Outcome, Trial
from research.accuracy.tuning import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method on one cut. accuracy: of each seed at the end. by_round: mean over the seeds.

    tuned: mean validation accuracy by rate. failed: seeds whose training did not end.
    """

    setting: str
    arm: str
    rate: float
    tuned: tuple[tuple[float, float], ...]
    accuracy: tuple[float, ...]
    by_round: tuple[float, ...]
    failed: int = 0

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracy)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracy)

    @property
    def is_at_the_edge(self) -> bool:
        """Whether the chosen rate is the grid's first or last."""
        return self.rate in (self.tuned[0][0], self.tuned[-1][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """trained_seconds: of CPU, all runs together.

    rows_by_default: by setting, how many classes' rows a silo's default policy would send, mean of the
    seeds, and how many classes there are.
    """

    suite: str
    about: str
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    runs: int
    trained_seconds: float
    workers: int
    rows_by_default: tuple[tuple[str, float, int], ...]
    cells: tuple[Cell, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.setting for cell in self.cells))

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(arm_of(name) for name in dict.fromkeys(cell.arm for cell in self.cells))

    @property
    def minutes(self) -> float:
        """Of CPU for each worker, had they shared the runs evenly: of wall time where they are alone."""
        return self.trained_seconds / self.workers / 60.0

    def cell(self, setting: str, arm: str) -> Cell:
        return next(cell for cell in self.cells if (cell.setting, cell.arm) == (setting, arm))

    def difference(self, setting: str, arm: str, reference: str = BASELINE) -> Paired:
        """Of two methods on the seeds of one setting."""
        return paired(self.cell(setting, arm).accuracy, self.cell(setting, reference).accuracy)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        cells = tuple(
            Cell(**{name: _tuples(value) for name, value in one.items()}) for one in fields["cells"]
        )
        return cls(**{**{name: _tuples(value) for name, value in fields.items()}, "cells": cells})


def report_of(
    suite: Suite,
    choices: Sequence[Choice],
    tuning: Sequence[Trial],
    comparison: Sequence[Trial],
    outcome: Callable[[Trial], Outcome],
    *,
    workers: int,
    rows_by_default: Mapping[str, float],
) -> Report:
    """From the outcomes of all of a suite's runs."""
    by_cell: dict[tuple[str, str], list[Outcome]] = {}
    for trial in comparison:
        by_cell.setdefault((trial.setting, trial.arm), []).append(outcome(trial))
    return Report(
        suite=suite.name,
        about=suite.about,
        seeds=suite.seeds,
        tuning_seeds=suite.tuning_seeds,
        runs=len(tuning) + len(comparison),
        trained_seconds=round(sum(outcome(trial).seconds for trial in (*tuning, *comparison)), 1),
        workers=workers,
        rows_by_default=tuple(
            (one.name, rows_by_default[one.name], int(one.job["classes"])) for one in suite.settings
        ),
        cells=tuple(_cell(choice, by_cell[choice.setting, choice.arm]) for choice in choices),
    )


def _cell(choice: Choice, outcomes: Sequence[Outcome]) -> Cell:
    ended = [outcome for outcome in outcomes if not outcome.failed]
    means = [statistics.mean(values) for values in zip(*(each.accuracy for each in ended), strict=True)]
    return Cell(
        setting=choice.setting,
        arm=choice.arm,
        rate=choice.rate,
        tuned=tuple((rate, round(value, 4)) for rate, value in choice.validation.items()),
        accuracy=tuple(round(outcome.final, 6) for outcome in outcomes),
        by_round=tuple(round(value, 4) for value in means),
        failed=len(outcomes) - len(ended),
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
