"""Correlations of the columns of numbers, from the figures that were published."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.parts import OVERALL
from client.analysis.published import rows_in
from client.analysis.records import FIELDS, Record
from client.analysis.tables import NOT_SHOWN, NOT_YET, Line, Table
from client.analysis.tails import reach
from client.analysis.text import plain_text
from crypto.errors import ConfigError
from strategies.analysis.values import CORRELATIONS, CORRELATIONS_SHOWN
from strategies.base import Arrays, array_in

METHOD = (
    "Pearson's correlations of the records complete in all columns, with 95 % intervals by Fisher's z. Each "
    "is rounded to a power of ten below half a standard error, to three digits at most."
)
WITHHELD = (
    "Not shown: a mean of the two columns is not; or there are fewer than three records a column, or ten "
    "more; or it would tell that fewer than {least} are in two outermost parts. Wider ones may help."
)
HALF_DIGIT = 0.0005  # it is known no better, however many records there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Of the columns at two places, with the ends of its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, records: int) -> Self:
        """Source: Fisher, "On the probable error of a coefficient of correlation", Metron 1, 1921."""
        error = reach(None) / math.sqrt(records - 3)
        low, high = (_moved(value + way * HALF_DIGIT, way * error) for way in (-1.0, 1.0))
        return cls(value=value + 0.0, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlations:
    """pairs: of places of columns, each before the other; None: withheld. is_summed: False while they are all
    withheld because nothing is summed yet."""

    spec: AnalysisSpec
    records: int
    pairs: dict[tuple[int, int], Correlation | None]
    is_summed: bool

    @classmethod
    def of(cls, spec: AnalysisSpec, state: Arrays) -> Self:
        """Raises ConfigError for a state that the job's rules cannot give."""
        records = rows_in(state, spec).counts_R[0]
        places = [*combinations(range(len(spec.columns)), 2)]
        pairs: dict[tuple[int, int], Correlation | None] = dict.fromkeys(places)
        is_summed = CORRELATIONS in state
        if is_summed:
            values = array_in(state, CORRELATIONS, (len(places),), np.float64)
            shown = array_in(state, CORRELATIONS_SHOWN, (len(places),), np.uint8)
            if np.abs(values).max() > 1.0 or shown.max() > 1:
                raise ConfigError(f"{CORRELATIONS}: expected numbers from -1 to 1, each shown or not")
            for pair, value, is_shown in zip(places, values.tolist(), shown.tolist(), strict=True):
                pairs[pair] = Correlation.of(value, records) if is_shown else None
        return cls(spec=spec, records=records, pairs=pairs, is_summed=is_summed)

    @property
    def title(self) -> str:
        return f"correlations: {self.records} complete records"

    def table(self) -> Table:
        """The lower half of the matrix."""
        names = [column.name for column in self.spec.columns]
        lines = []
        for row, name in enumerate(names[1:], start=1):
            cells = [self._cell(self.pairs[column, row]) for column in range(row)]
            lines.append(Line(label=name, level=1, cells=(*cells, *[""] * (len(names) - 1 - row))))
        notes = [METHOD, *([WITHHELD.format(least=self.spec.min_cell)] if self._are_withheld else [])]
        return Table(title=self.title, heads=tuple(names[:-1]), lines=tuple(lines), notes=tuple(notes))

    def to_text(self) -> str:
        """The table in aligned columns, for a terminal."""
        return plain_text(self.table())

    def figures(self) -> Iterator[Record]:
        """A row a figure, as of the other results: the other column stands in place of the part."""
        for (one, other), found in self.pairs.items():
            ends = (None, None, None) if found is None else (found.value, found.low, found.high)
            note = self._why if found is None else "rounded"
            for figure, value in zip(("", ", lower end", ", upper end"), ends, strict=True):
                names = self.spec.columns[one].name, f"correlation{figure}", self.spec.columns[other].name
                yield dict(zip(FIELDS, (*names, OVERALL, value, "", note), strict=True))

    @property
    def _are_withheld(self) -> bool:
        return self.is_summed and None in self.pairs.values()

    @property
    def _why(self) -> str:
        return NOT_SHOWN if self.is_summed else NOT_YET

    def _cell(self, found: Correlation | None) -> str:
        if found is None:
            return self._why
        digits = 2 if f"{found.value:.3f}".endswith("0") else 3
        return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _moved(correlation: float, by: float) -> float:
    """By so much in Fisher's z."""
    if abs(correlation) >= 1.0:
        return math.copysign(1.0, correlation)
    return math.tanh(math.atanh(correlation) + by)
