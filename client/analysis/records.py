"""Results as rows of one figure each: of data frames, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from client.analysis.columns import ColumnFigures, Head
from client.analysis.figures import NoisedCount
from client.analysis.parts import Part
from client.analysis.tables import NOT_SHOWN, NOT_YET, place_in_words
from strategies.figure import Figure, Interval

INDEX = ("column", "figure", "part", "group")
FIELDS = (*INDEX, "value", "unit", "note")
QUARTILES = ("lower quartile", "median", "upper quartile")

Record = dict[str, Any]


def records_of_group(name: str, parts_R: Sequence[Part], heads: Sequence[Head]) -> Iterator[Record]:
    """Of the group itself, where several parts are published."""
    counts = [head.records for head in heads[1:]]
    noised = [head.noised for head in heads[1:] if head.noised is not None]
    if noised:
        yield from _noised(name, parts_R, noised, heads[0])
    elif counts:
        yield from _counts(name, parts_R, counts, heads[0])


def records_of(column: ColumnFigures, heads: Sequence[Head]) -> Iterator[Record]:
    """A value is None where it is withheld, and its note says so."""
    name, unit = column.column.name, column.column.unit or ""
    for place, head in enumerate(heads):
        if column.column.has_mean:
            spread = None if column.means_H is None else column.means_H[place]
            why = NOT_YET if column.means_H is None else NOT_SHOWN
            both = (None, None) if spread is None else (spread.mean, spread.deviation)
            for figure, shown in zip(("mean", "standard deviation"), both, strict=True):
                if shown is None:
                    yield _record(name, figure, head.label, None, unit=unit, note=why)
                else:
                    yield from _with_ends(name, figure, head.label, shown, unit=unit)
        if column.quartiles_H is not None:
            found = column.quartiles_H[place]
            for number, figure in enumerate(QUARTILES):
                quartile = None if found is None else found.all[number]
                note = NOT_SHOWN if quartile is None else place_in_words(quartile)
                note += ", missing values among them" if found and found.has_missing else ""
                value = None if quartile is None else quartile.value
                yield _record(name, figure, head.label, value, unit=unit, note=note)
                if quartile is not None and quartile.noise is not None:
                    yield from _ends(name, figure, head.label, quartile.noise, unit=unit)
    if column.has_counts and column.noised_HT is not None:
        for head, cells in zip(heads, column.noised_HT, strict=True):
            yield from _noised(name, column.parts_T, cells, head)
    elif column.has_counts:
        yield from _counts(name, column.parts_Q, column.counts_Q, heads[0])
        for head, cells_T in zip(heads[1:], column.cells_HT[1:], strict=True):
            yield from _counts(name, column.parts_T, cells_T, head)
    for figure, value in (
        ("standardized mean difference", column.difference_of_means),
        ("standardized difference of parts", column.difference_of_parts),
    ):
        if value is not None:
            yield _record(name, figure, "", value, note="from the published figures")


def _noised(name: str, parts: Sequence[Part], found: Sequence[NoisedCount], head: Head) -> Iterator[Record]:
    for part, each in zip(parts, found, strict=True):
        for figure, value in (("count", each.count), ("percent", each.percent)):
            yield from _with_ends(name, figure, head.label, value, part=part.label)


def _with_ends(
    name: str, figure: str, group: str, found: Figure, *, part: str = "", unit: str = ""
) -> Iterator[Record]:
    value = found.value if math.isfinite(found.value) else None
    note = "rounded" if found.noise is None else "with noise"
    yield _record(name, figure, group, value, part=part, unit=unit, note=note)
    if found.noise is not None:
        yield from _ends(name, figure, group, found.noise, part=part, unit=unit)


def _ends(
    name: str, figure: str, group: str, ends: Interval, *, part: str = "", unit: str = ""
) -> Iterator[Record]:
    for which, end in zip(("lower end", "upper end"), ends, strict=True):
        yield _record(name, f"{figure}, {which}", group, end, part=part, unit=unit, note="95 %")


def _counts(name: str, parts: Sequence[Part], counts: Sequence[float], head: Head) -> Iterator[Record]:
    for part, count in zip(parts, counts, strict=True):
        note = "merged" if part.is_merged else ""
        for figure, value in (("count", count), ("percent", 100 * count / head.records)):
            yield _record(name, figure, head.label, value, part=part.label, note=note)


def _record(
    name: str, figure: str, group: str, value: float | None, *, part: str = "", unit: str = "", note: str
) -> Record:
    values = (name, figure, part, group, value, unit, note)
    return dict(zip(FIELDS, values, strict=True))
