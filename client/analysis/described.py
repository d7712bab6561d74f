"""The results of an analysis: table 1 of all silos' records, from the figures that were published.

pandas and matplotlib come with the extra `notebook` and are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from chorale.results import library
from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.columns import ColumnFigures, Head, figures_of, heads_of
from client.analysis.noised.figures import noised_figures
from client.analysis.parts import Part, published_parts
from client.analysis.published import Counted, counted_in, has_counts, rows_in, spreads_in
from client.analysis.records import Record, records_of, records_of_group
from client.analysis.tables import Table, table_of
from client.analysis.text import plain_text
from crypto.errors import ConfigError
from strategies.analysis.merging import split_bins
from strategies.base import Arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedResults:
    """heads: all records, then each published part of the group where there are several. parts_R: of the
    group. columns: all but the group, in the job's order; a time by ending is two, where it is published."""

    spec: AnalysisSpec
    heads: tuple[Head, ...]
    parts_R: tuple[Part, ...]
    columns: tuple[ColumnFigures, ...]

    @classmethod
    def of(cls, spec: AnalysisSpec, state: Arrays) -> Self:
        """Raises ConfigError for a state without results, and for one that the job's rules cannot give."""
        if not has_counts(state):
            raise ConfigError(f"job {spec.name}: there are no results: its records were not counted yet")
        if spec.privacy is not None:
            parts_R, heads, noised = noised_figures(spec, state)
            return cls(spec=spec, heads=heads, parts_R=parts_R, columns=noised)
        tables = spec.tables
        rows = rows_in(state, spec)
        group = None if tables.group is None else spec.columns[tables.group]
        parts_R = () if group is None else published_parts(group, rows.parts_G)
        heads = heads_of(parts_R, rows.counts_R)
        columns = list[ColumnFigures]()
        for place in tables.described:
            counted = counted_in(state, spec, place, rows)
            if place == tables.time:
                columns += _by_ending(spec, counted, heads)
                continue
            spreads = spreads_in(state, spec, place, rows) if place in tables.measured else None
            columns.append(figures_of(spec.columns[place], counted, spreads, heads))
        return cls(spec=spec, heads=heads, parts_R=parts_R, columns=tuple(columns))

    def __repr__(self) -> str:
        return self.to_text().removesuffix("\n")

    @property
    def title(self) -> str:
        """Of the table, in one line."""
        by = "" if self.spec.group is None else f" by {self.spec.group}"
        if self.parts_R and len(self.heads) == 1:
            by += " (not shown: its parts hold too few records)"
        records = self.heads[0].records_in_words
        return f"{self.spec.name}{by}: {records} records of {len(self.spec.silos)} silos at most"

    def table(self) -> Table:
        """As journals print it."""
        spec = self.spec
        return table_of(self.columns, self.heads, title=self.title, group=spec.group, least=spec.min_cell)

    def to_text(self) -> str:
        """The table in aligned columns, for a terminal."""
        return plain_text(self.table())

    def to_json(self) -> dict[str, Any]:
        """Figures as in `records`, and what each published part holds."""
        spec = self.spec
        group = None if spec.group is None else {"column": spec.group, "parts": _parts(self.parts_R)}
        return {
            "job": spec.name,
            "federation": spec.federation,
            "silos": list(spec.silos),
            "min_cell": spec.min_cell if spec.privacy is None else None,
            "records": self.heads[0].records,
            "group": group,
            "columns": [
                {
                    "column": each.column.name,
                    "unit": each.column.unit,
                    "parts": _parts(each.parts_Q),
                    "parts_by_group": _parts(each.parts_T),
                }
                for each in self.columns
            ],
            "figures": list(self.records()),
            "notes": list(self.table().notes),
        }

    def plot(self, column: str, *, ax: Axes | None = None) -> Axes:
        """Bars of a column: percent of records by part, the groups beside one another. ax: where to draw it.

        Raises ConfigError for a column that is not described, and without the extra `notebook`.
        """
        found = {each.column.name: each for each in self.columns}
        if column not in found:
            raise ConfigError(f"column {column}: expected one of {', '.join(found)}")
        if ax is None:
            ax = library("matplotlib.pyplot", "a plot").subplots(layout="constrained")[1]
        bars = found[column].bars(self.heads)
        places = range(len(bars.parts))
        width = 0.8 / len(bars.groups)
        for number, (group, percent_P) in enumerate(zip(bars.groups, bars.percent_GP, strict=True)):
            left = (number - (len(bars.groups) - 1) / 2) * width
            ax.bar([place + left for place in places], percent_P, width, label=_drawn(group))
        ax.set_xticks(places, [_drawn(part) for part in bars.parts], rotation=45, ha="right")
        ax.set_xlabel(_drawn(found[column].title))
        ax.set_ylabel("percent of records")
        if len(bars.groups) > 1:
            ax.legend()
        return ax

    def records(self) -> Iterator[Record]:
        """A figure each, by FIELDS."""
        if self.spec.group is not None:
            yield from records_of_group(self.spec.group, self.parts_R, self.heads)
        for each in self.columns:
            yield from records_of(each, self.heads)


def _by_ending(spec: AnalysisSpec, counted: Counted, heads: tuple[Head, ...]) -> Iterator[ColumnFigures]:
    """Those censored, and events; none where either are too few."""
    tables = spec.tables
    assert tables.time is not None
    assert tables.status is not None
    time, status = spec.columns[tables.time], spec.columns[tables.status]
    if len(counted.counts_Q) == 1:
        return
    first = 0
    for ending, parts in zip(status.categories or (), split_bins(counted.parts_P), strict=True):
        counts = counted.counts_Q[first : first + max(parts) + 1]
        first += len(counts)
        bins = Counted(parts_P=tuple(parts), counts_Q=counts, cell_parts_P=tuple(parts), cells_RT=(counts,))
        column = time.model_copy(update={"name": f"{time.name}, {status.name} {ending}"})
        yield figures_of(column, bins, None, heads)


def _parts(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    return [
        {"part": part.label, "members": list(part.members), "has_missing": part.has_missing} for part in parts
    ]


def _drawn(text: str) -> str:
    """matplotlib would read what stands between dollars as a formula."""
    return text.replace("$", r"\$")
