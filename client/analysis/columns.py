"""All that an analysis says of one column, over all records and by part of the group.

Q = published parts of the column by itself, T = of the column in its table; R = published parts of the group,
H = heads: all records, and behind them the R where they are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorale.spec.analysis_spec import DescribedColumn
from client.analysis.figures import (
    NoisedCount,
    Quartiles,
    Spread,
    difference_of_means,
    difference_of_parts,
    quartiles,
)
from client.analysis.parts import OVERALL, Part, published_parts
from client.analysis.published import Counted
from strategies.tasks.base import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Whose figures stand in a column of a table: all records, or those of a part of the group. noised: their
    number, and percent of all records, where it carries noise."""

    label: str
    records: float
    is_missing: bool = False
    noised: NoisedCount | None = None

    @property
    def records_in_words(self) -> str:
        return f"{self.records}" if self.noised is None else self.noised.count_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """level: 1, or 2 of a part that counts by group, in the line above it, merge with others. counts_H: None
    where they are not published. is_split: the lines below it are what it is made of."""

    part: Part
    level: int
    is_split: bool
    counts_H: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Percent of a group's records by part."""

    parts: tuple[str, ...]
    groups: tuple[str, ...]
    percent_GP: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFigures:
    """into_T: the part of the table that each part of Q is in. cells_HT: counts, of all records first.
    means_H: None where none are asked for, or none are summed yet; quartiles_H: where none are asked for; of
    each, None in place of what is withheld. differences: of two groups, by their means and by their parts.
    noised_HT: each cell with where noise leaves it, of an analysis under noise, which merges no parts."""

    column: DescribedColumn
    parts_Q: tuple[Part, ...]
    counts_Q: tuple[float, ...]
    parts_T: tuple[Part, ...]
    into_T: tuple[int, ...]
    cells_HT: tuple[tuple[float, ...], ...]
    means_H: tuple[Spread | None, ...] | None
    quartiles_H: tuple[Quartiles | None, ...] | None
    difference_of_means: float | None = None
    difference_of_parts: float | None = None
    noised_HT: tuple[tuple[NoisedCount, ...], ...] | None = None

    @property
    def title(self) -> str:
        unit = self.column.unit
        return self.column.name if unit is None else f"{self.column.name} ({unit})"

    @property
    def has_counts(self) -> bool:
        return "counts" in self.column.show

    @property
    def is_one_by_group(self) -> bool:
        """All of its parts had to be merged: by group it has none."""
        return len(self.parts_T) == 1 < len(self.parts_Q)

    def rows(self) -> list[PartCounts]:
        """Each part of the table, and below it those that it is made of, where they are several."""
        unknown = (None,) * (len(self.cells_HT) - 1)
        found = []
        for place, part in enumerate(self.parts_T):
            inside = [finest for finest, into in enumerate(self.into_T) if into == place]
            is_split = len(inside) > 1
            if not self.is_one_by_group:
                counts_H = tuple(cells_T[place] for cells_T in self.cells_HT)
                found.append(PartCounts(part=part, level=1, is_split=is_split, counts_H=counts_H))
            found += [
                PartCounts(
                    part=self.parts_Q[finest],
                    level=1 if self.is_one_by_group else 2,
                    is_split=False,
                    counts_H=(self.counts_Q[finest], *unknown),
                )
                for finest in inside
                if is_split
            ]
        return found

    def bars(self, heads: Sequence[Head]) -> Bars:
        """By group where parts are published by group, else over all records."""
        by_group = [*zip(heads, self.cells_HT, strict=True)][1:]
        if not by_group or self.is_one_by_group:
            parts, by_group = self.parts_Q, [(heads[0], self.counts_Q)]
        else:
            parts = self.parts_T
        return Bars(
            parts=tuple(part.label for part in parts),
            groups=tuple(head.label for head, _ in by_group),
            percent_GP=tuple(
                tuple(100 * (share(count, head.records) if head.records > 0 else 0.0) for count in counts)
                for head, counts in by_group
            ),
        )


def heads_of(parts_R: Sequence[Part], counts_R: Sequence[int]) -> tuple[Head, ...]:
    """parts_R: of the group; empty without one."""
    heads = [Head(label=OVERALL, records=sum(counts_R))]
    if len(parts_R) > 1:
        heads += [
            Head(label=part.label, records=count, is_missing=part.is_missing)
            for part, count in zip(parts_R, counts_R, strict=True)
        ]
    return tuple(heads)


def figures_of(
    column: DescribedColumn,
    counted: Counted,
    means: Sequence[Spread | None] | None,
    heads: Sequence[Head],
) -> ColumnFigures:
    """means: of all records and by part of the group."""
    parts_Q = published_parts(column, counted.parts_P)
    parts_T = published_parts(column, counted.cell_parts_P)
    inside = sorted(set(zip(counted.parts_P, counted.cell_parts_P, strict=True)))
    overall = tuple(map(sum, zip(*counted.cells_RT, strict=True)))
    cells_HT = (overall, *(counted.cells_RT if len(heads) > 1 else ()))
    means_H = None if means is None else tuple(means[: len(heads)])
    pair = compared(heads)
    spreads = [each for place in pair if means_H and (each := means_H[place]) is not None]
    # without missing values, as far as these stand alone
    values_T = [place for place, part in enumerate(parts_T) if not part.is_missing]
    apart = [[cells_HT[head][place] for place in values_T] for head in pair]
    by_head = [(parts_Q, counted.counts_Q), *((parts_T, cells_T) for cells_T in cells_HT[1:])]
    return ColumnFigures(
        column=column,
        parts_Q=parts_Q,
        counts_Q=counted.counts_Q,
        parts_T=parts_T,
        into_T=tuple(into for _, into in inside),
        cells_HT=cells_HT,
        means_H=means_H,
        quartiles_H=tuple(quartiles(*each) for each in by_head) if "median" in column.show else None,
        difference_of_means=difference_of_means(*spreads) if len(spreads) == 2 else None,
        difference_of_parts=difference_of_parts(*apart) if apart and "counts" in column.show else None,
    )


def compared(heads: Sequence[Head]) -> list[int]:
    """Places of the two groups that are compared; none where there are not two, missing values aside."""
    places = [place for place, head in enumerate(heads) if place > 0 and not head.is_missing]
    return places if len(places) == 2 else []
