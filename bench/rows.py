"""A figure and its target: what every benchmark prints and `make bench` judges.

With --json a benchmark prints one object that holds "rows": a list of `Row.to_json()`, and exits 0
whether its targets hold or not. One that cannot run here prints {"skipped": "<why>"} instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

RATIO: Final = "x"  # the unit of two measurements of one run, divided: what machines agree on
TOLERANCE: Final = 1.3  # a ratio that got worse by more than 30 % is a regression


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured value with its target; only ratios are compared with earlier runs.

    name: the same words in every run, such as "silo masking / its key streams, w = 32".
    unit: "x" for a ratio, else what a reader needs: "s", "MB", "slope".
    """

    name: str
    target: float
    value: float
    unit: str = RATIO
    is_at_most: bool = True

    @property
    def holds(self) -> bool:
        """Never for a value that is no number."""
        return self.value <= self.target if self.is_at_most else self.value >= self.target

    def is_worse_than(self, earlier: float) -> bool:
        """Whether this ratio got worse by more than 30 %."""
        if not math.isfinite(self.value):
            return True
        worse, better = (self.value, earlier) if self.is_at_most else (earlier, self.value)
        return worse > TOLERANCE * better

    @property
    def comparison(self) -> str:
        """Such as "1.8 x, target <= 1.5 x"."""
        return f"{_shown(self.value, self.unit)}, target {self.limit}"

    @property
    def limit(self) -> str:
        return f"{'<=' if self.is_at_most else '>='} {_shown(self.target, self.unit)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Row:
        return cls(**{name: value for name, value in fields.items() if name != "holds"})


def table(rows: Iterable[Row]) -> str:
    """Markdown: name, target, measured, holds."""
    lines = ["| name | target | measured | holds |", "|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.limit} | {_shown(row.value, row.unit)} | {'yes' if row.holds else '**no**'} |"
        for row in rows
    ]
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".rstrip()
