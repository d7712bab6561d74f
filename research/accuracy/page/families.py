"""The comparisons of a suite, a family for each table of the page.

Verdicts of one family are decided together: the chance that any of them is wrong is at most 5 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research.accuracy.arms import ARMS, BASELINE, CONTRASTS, Contrast
from research.accuracy.paired import Difference, Interval, level_of
from research.accuracy.report import Cell, Missing, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison on every cut. found: by setting.

    rate: of both sides; None: each has its tuned one. strength: likewise, where there is one.
    """

    method: str
    reference: str
    found: Mapping[str, Difference | Missing]
    rate: float | None = None
    strength: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rows that are decided together."""

    rows: tuple[Row, ...]

    @property
    def differences(self) -> list[Difference]:
        return [one for row in self.rows for one in row.found.values() if isinstance(one, Difference)]

    @property
    def level(self) -> float:
        """Of each interval: see `level_of`."""
        return level_of(self.differences)

    @property
    def detectable(self) -> tuple[float, float]:
        """In points: what half of the comparisons would find with 80 % power, and what all would."""
        found = [one.detectable(self.level) for one in self.differences]
        return statistics.median(found), max(found)

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest of a comparison, and the most."""
        found = [one.seeds for one in self.differences]
        return min(found), max(found)

    def is_whole(self, seeds: int) -> bool:
        """Whether all of its comparisons have so many."""
        has_run = all(one is not Missing.NOT_RUN for row in self.rows for one in row.found.values())
        return has_run and self.seeds[0] == seeds

    def interval(self, row: Row, setting: str) -> Interval | Missing:
        found = row.found[setting]
        return found if isinstance(found, Missing) else found.interval(self.level)


def contrasts_in(report: Report) -> list[Contrast]:
    """Those of which the suite trains both sides."""
    return [one for one in CONTRASTS if {one.method, one.control} <= set(report.arms)]


def controls_tuned(report: Report) -> Family:
    """Methods against their controls, each side at the rate and strength that tuning chose for it."""
    return Family(rows=tuple(_tuned(report, one.method, one.control) for one in contrasts_in(report)))


def baseline_tuned(report: Report) -> Family:
    """Methods that are no control against FedAvg, tuned."""
    return Family(rows=tuple(_tuned(report, name, BASELINE) for name in methods_in(report)))


def controls_at_common_rates(report: Report) -> Family:
    """Methods against their controls at the same rate, with the published strength on both sides."""
    return _common(report, lambda name: ARMS[name].grid[:1])


def controls_at_other_strengths(report: Report) -> Family:
    """The same with every other strength of the grid, the same on both sides where the control has one."""
    return _common(report, lambda name: ARMS[name].grid[1:])


def methods_in(report: Report) -> list[str]:
    """Arms that are neither FedAvg nor a control."""
    controls = {one.control for one in CONTRASTS}
    return [name for name in report.arms if name != BASELINE and name not in controls]


def _common(report: Report, strengths: Callable[[str], Sequence[float | None]]) -> Family:
    return Family(
        rows=tuple(
            _at(report, one.method, one.control, rate, strength)
            for one in contrasts_in(report)
            for strength in strengths(one.method)
            for rate in report.common
        )
    )


def _tuned(report: Report, method: str, reference: str) -> Row:
    found = {
        name: report.difference(report.tuned(name, method), report.tuned(name, reference))
        for name in report.settings
    }
    return Row(method=method, reference=reference, found=found)


def _at(report: Report, method: str, reference: str, rate: float, strength: float | None) -> Row:
    def cell(setting: str, arm: str) -> Cell | None:
        return report.cells.get((setting, arm, rate, strength if ARMS[arm].option else None))

    found = {name: report.difference(cell(name, method), cell(name, reference)) for name in report.settings}
    return Row(method=method, reference=reference, found=found, rate=rate, strength=strength)
