"""Whether the records of one analysis are distributed as those of another: by column, from published figures.

Population stability index: the sum over parts of (q - p) ln(q / p), p and q the shares of records in either
(Siddiqi, "Credit Risk Scorecards", 2006). Parts that one of the analyses merged are merged in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from client.analysis.columns import ColumnFigures
from client.analysis.described import DescribedResults
from client.analysis.figures import difference_of_means
from client.analysis.parts import Part
from client.analysis.records import Record
from client.analysis.tables import DIFFERENCE, NOT_SHOWN, OF_MEANS, Line, Table
from crypto.errors import ConfigError

INDEX_OF = "population stability index"
PSI = "PSI: sum over the parts that both analyses show of (q - p) ln(q / p); more parts make more of it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """index: None where only one part is left; difference: of the means, None where one is not shown."""

    title: str
    index: float | None
    difference: float | None


def drifts(first: DescribedResults, second: DescribedResults) -> list[Drift]:
    """Of the columns that both describe. Raises ConfigError where there are none, for parts that were
    declared otherwise, and for counts with noise, of which shares may be below 0."""
    if noised := [each.spec.name for each in (first, second) if each.spec.privacy is not None]:
        raise ConfigError(f"analysis {noised[0]} has noise: exact analyses alone are compared")
    others = {each.column.name: each for each in second.columns}
    pairs = [(each, others[each.column.name]) for each in first.columns if each.column.name in others]
    if not pairs:
        raise ConfigError("the analyses describe no column in common beside their groups")
    return [_drift(*pair) for pair in pairs]


def drift_table(first: DescribedResults, second: DescribedResults) -> Table:
    """A line a column."""
    lines = [
        Line(
            label=each.title,
            level=1,
            cells=tuple(NOT_SHOWN if x is None else f"{x:.3f}" for x in (each.index, each.difference)),
            notes=(1, 2),
        )
        for each in drifts(first, second)
    ]
    title = f"{first.spec.name} against {second.spec.name}: "
    title += f"{first.heads[0].records} and {second.heads[0].records} records"
    return Table(title=title, heads=("PSI", DIFFERENCE), lines=tuple(lines), notes=(PSI, OF_MEANS))


def drift_records(first: DescribedResults, second: DescribedResults) -> Iterator[Record]:
    """A figure each; value is None where it does not follow from what is published."""
    for each in drifts(first, second):
        for figure, value in ((INDEX_OF, each.index), ("standardized mean difference", each.difference)):
            yield {"column": each.title, "figure": figure, "value": value}


def _drift(first: ColumnFigures, second: ColumnFigures) -> Drift:
    name, asked = first.column.name, first.column
    if (asked.edges, asked.categories, asked.unit) != (
        second.column.edges,
        second.column.categories,
        second.column.unit,
    ):
        raise ConfigError(f"column {name}: expected the same edges, categories and unit in both analyses")
    blocks = [_declared(part) for part in first.parts_Q]
    for part in second.parts_Q:
        declared = _declared(part)
        joined = declared.union(*(block for block in blocks if block & declared))
        blocks = [*(block for block in blocks if not block & declared), joined]
    counts = [[_held(each, block) for block in blocks] for each in (first, second)]
    shares = [[count / sum(of) for count in of] for of in counts]
    index = sum((q - p) * math.log(q / p) for p, q in zip(*shares, strict=True))
    one, other = (each.means_H[0] if each.means_H else None for each in (first, second))
    return Drift(
        title=first.title,
        index=index if len(blocks) > 1 else None,
        difference=None if one is None or other is None else difference_of_means(one, other),
    )


def _declared(part: Part) -> set[str | None]:
    """Its declared parts, None of missing values."""
    return {*part.members, *([None] if part.has_missing else [])}


def _held(column: ColumnFigures, block: set[str | None]) -> float:
    found = zip(column.parts_Q, column.counts_Q, strict=True)
    return sum(count for part, count in found if _declared(part) <= block)
