"""Results as the lines of a table 1, with notes below it for what is merged, withheld and rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client.analysis.columns import ColumnFigures, Head, PartCounts
from client.analysis.figures import NoisedCount, Quartile, Quartiles, Spread
from client.analysis.parts import as_number

NOT_SHOWN = "not shown"
NOT_YET = "not summed yet"
DIFFERENCE = "SMD"

PERCENT = "Exact counts, and percent of all records at the head of the column, missing values included."
WITH_NOISE = (
    "With noise, so counts may be below 0; in brackets where the figure of these records is in 95 of 100 "
    "cases. Percent are of all records at the head of the column, missing values included."
)
BETWEEN = (
    "Median [quartiles] by the noised counts of the parts, as if each were evenly filled, with the edges "
    "between which it is in 95 of 100 cases."
)
INTERVALS = "A part holds its lower end and not its upper one; the last part holds both."
MERGED = "Merged: one of its parts holds fewer than {least} records."
MANY = "The form json names all categories of this part."
COARSER = (
    "By {group} merged as in the line above: a cell of the finer table holds fewer than {least} records."
)
NO_TABLE = "Not shown by {group}: each table of both has a cell of fewer than {least} records."
ROUNDED = "Mean (standard deviation), each rounded to a power of ten below half a standard error."
WITHHELD = "Not shown: too few values or parts, one value dominates, or what is withheld beside would follow."
BY_PARTS = (
    "Median [quartiles] by the counts of the parts, as if each were evenly filled: known no better than "
)
BY_PARTS += "the width of the part that holds it; in an outermost part its inner end alone is said. Parts of "
BY_PARTS += "missing values are left out."
COUNTS_MISSING = "These quartiles count missing values that are merged with a part as values of it."
FEW_PARTS = "Not shown: fewer than two parts hold values."
OF_MEANS = "Standardized mean difference, from the rounded figures: |m1 - m2| / sqrt((s1^2 + s2^2) / 2)."
OF_PARTS = (
    "Standardized difference of the published parts (Yang and Dalton 2012), those of missing values aside."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """level: 0 of a column's title. cells: one a head. notes: their numbers, from 1."""

    label: str
    level: int
    cells: tuple[str, ...]
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """notes: numbered from 1, each cited by a line."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A line before its notes are numbered. difference: of two groups."""

    label: str
    level: int
    cells: Sequence[str]
    difference: float | None = None
    notes: Sequence[str] = ()


def table_of(
    columns: Sequence[ColumnFigures], heads: Sequence[Head], *, title: str, group: str | None, least: int
) -> Table:
    """group: heading of the column by whose parts the others are described. least: records of a cell."""
    drafts = [line for each in columns for line in _lines(each, heads)]
    numbers: dict[str, int] = {}
    has_differences = any(line.difference is not None for line in drafts)
    lines = []
    for draft in drafts:
        texts = [each.format(group=group, least=least) for each in draft.notes]
        difference = "" if draft.difference is None else f"{draft.difference:.2f}"
        lines.append(
            Line(
                label=draft.label,
                level=draft.level,
                cells=(*draft.cells, *([difference] if has_differences else [])),
                notes=tuple(numbers.setdefault(text, len(numbers) + 1) for text in texts),
            )
        )
    titles = [f"{head.label} (n = {head.records_in_words})" for head in heads]
    return Table(
        title=title,
        heads=(*titles, *([DIFFERENCE] if has_differences else [])),
        lines=tuple(lines),
        notes=tuple(numbers),
    )


def _lines(column: ColumnFigures, heads: Sequence[Head]) -> Iterator[_Draft]:
    blank = [""] * len(heads)
    yield _Draft(label=column.title, level=0, cells=blank)
    if column.means_H is not None:
        yield _of_means(column.means_H, column.difference_of_means)
    elif column.column.has_mean:
        yield _Draft(label="mean (SD)", level=1, cells=[NOT_YET] * len(heads))
    if column.quartiles_H is not None:
        yield _of_quartiles(column.quartiles_H)
    if column.has_counts:
        notes = [PERCENT if column.noised_HT is None else WITH_NOISE]
        notes += [INTERVALS] if column.column.edges is not None else []
        notes += [OF_PARTS] if column.difference_of_parts is not None else []
        difference = column.difference_of_parts
        yield _Draft(label="n (%)", level=1, cells=blank, difference=difference, notes=notes)
        if column.noised_HT is not None:
            for part, found_H in zip(column.parts_T, zip(*column.noised_HT, strict=True), strict=True):
                yield _Draft(label=part.label, level=2, cells=[*map(_noised, found_H)])
            return
        for row in column.rows():
            yield _of_part(row, heads, is_one_by_group=column.is_one_by_group)


def _noised(found: NoisedCount) -> str:
    return f"{found.count_in_words}; {found.percent.spanned} %"


def _of_means(means_H: Sequence[Spread | None], difference: float | None) -> _Draft:
    shown = [each for each in means_H if each is not None]
    if shown and shown[0].mean.noise is not None:
        cells = [f"{each.mean.spanned}; {each.deviation.spanned}" for each in shown]
        return _Draft(label="mean; SD", level=1, cells=cells, notes=[WITH_NOISE])
    notes = [ROUNDED]
    notes += [WITHHELD] if None in means_H else []
    notes += [OF_MEANS] if difference is not None else []
    cells = [
        NOT_SHOWN if each is None else f"{short(each.mean.value)} ({short(each.deviation.value)})"
        for each in means_H
    ]
    return _Draft(label="mean (SD)", level=1, cells=cells, difference=difference, notes=notes)


def _of_quartiles(quartiles_H: Sequence[Quartiles | None]) -> _Draft:
    is_noised = any(each is not None and each.median.noise is not None for each in quartiles_H)
    notes = [BETWEEN if is_noised else BY_PARTS]
    notes += [FEW_PARTS] if None in quartiles_H else []
    notes += [COUNTS_MISSING] if any(each is not None and each.has_missing for each in quartiles_H) else []
    cells = [NOT_SHOWN if each is None else _in_words(each) for each in quartiles_H]
    return _Draft(label="median [quartiles]", level=1, cells=cells, notes=notes)


def _in_words(found: Quartiles) -> str:
    low, median, high = map(_quartile, found.all)
    if found.median.noise is not None:
        return f"{median} [{low}, {high}]"
    widths = sorted({each.width for each in found.all if each.value is not None})
    if not widths:
        return f"{median} [{low}, {high}]"
    narrowest, widest = short(widths[0]), short(widths[-1])
    parts = narrowest if narrowest == widest else f"{narrowest} to {widest}"
    return f"{median} [{low}, {high}], parts of {parts}"


def _quartile(found: Quartile) -> str:
    text = f"< {short(found.end)}" if found.is_lowest else f">= {short(found.start)}"
    if found.value is not None:
        text = short(near(found.value, found.width))
    return text if found.noise is None else f"{text} ({short(found.noise[0])} to {short(found.noise[1])})"


def place_in_words(found: Quartile) -> str:
    """The part that holds it."""
    if found.value is not None:
        return f"by a part of {short(found.width)}"
    return f"below {short(found.end)}" if found.is_lowest else f"from {short(found.start)} on"


def _of_part(row: PartCounts, heads: Sequence[Head], *, is_one_by_group: bool) -> _Draft:
    notes = [MERGED] if row.part.is_merged and not row.is_split else []
    notes += [MANY] if row.part.is_shortened else []
    if None in row.counts_H:
        notes.append(NO_TABLE if is_one_by_group else COARSER)
    unknown = NOT_SHOWN if is_one_by_group else ""
    cells = [
        unknown if count is None else f"{count} ({percent(count, head.records)})"
        for count, head in zip(row.counts_H, heads, strict=True)
    ]
    return _Draft(label=row.part.label, level=row.level + 1, cells=cells, notes=notes)


def percent(count: float, records: float) -> str:
    return f"{100 * count / records:.1f}"


def near(value: float, width: float) -> float:
    """A quartile in a part, rounded to about a tenth of the part's width or finer."""
    digits = 1 - _power(width)
    return round(value, digits) if abs(digits) < 300 else value


def short(value: float) -> str:
    """Without digits that are the arithmetic's."""
    return as_number(float(f"{value:.12g}"))


def _power(value: float) -> int:
    """Of ten, the one below."""
    return int(f"{value:e}".partition("e")[2])
