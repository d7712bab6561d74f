"""Published parts of a column by their names: declared ones, of which several may be merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorale.spec.analysis_spec import DescribedColumn

ANY, MISSING, OVERALL = "any", "missing", "overall"
OURS = (ANY, MISSING, OVERALL)  # words that stand for no category
MOST_NAMED = 12  # categories in a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """members: its declared parts, by name. low, high: ends of numbers; None of categories. has_missing: it
    holds missing values, is_missing: nothing else."""

    label: str
    members: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    has_missing: bool = False

    @property
    def is_missing(self) -> bool:
        return self.members == ()

    @property
    def is_merged(self) -> bool:
        return len(self.members) + self.has_missing > 1

    @property
    def is_shortened(self) -> bool:
        """Its label does not name all categories."""
        return self.low is None and len(self.members) > MOST_NAMED


def published_parts(column: DescribedColumn, parts_P: Sequence[int]) -> tuple[Part, ...]:
    """In their order. parts_P: the published part of each declared one, missing values the last."""
    members: dict[int, list[int]] = {}
    for place, into in enumerate(parts_P):
        members.setdefault(into, []).append(place)
    return tuple(_part(column, members[number]) for number in sorted(members))


def in_words(parts: Sequence[Part]) -> str:
    return "; ".join(part.label for part in parts)


def _part(column: DescribedColumn, places: Sequence[int]) -> Part:
    size = column.partition.size
    has_missing = places[-1] == size - 1
    declared = places[:-1] if has_missing else places
    if not declared:
        return Part(label=MISSING, members=(), has_missing=True)
    low = high = None
    if column.edges is not None:
        ends = [(column.edges[place], column.edges[place + 1]) for place in declared]
        members = tuple(_between(*each) for each in ends)
        low, high = ends[0][0], ends[-1][1]
        label = _between(low, high)
    else:
        assert column.categories is not None
        members = tuple(_named(column.categories[place]) for place in declared)
        label = _joined(members)
    if len(places) == size:
        label = ANY
    elif has_missing:
        label += f" or {MISSING}"
    return Part(label=label, members=members, low=low, high=high, has_missing=has_missing)


def as_number(value: float) -> str:
    """The shortest text that reads as this number."""
    return repr(float(value) + 0.0).removesuffix(".0")


def _between(low: float, high: float) -> str:
    return f"{as_number(low)} to {as_number(high)}"


def _named(category: str) -> str:
    """In quotes where the text would read as one of our words, or as several categories."""
    is_unclear = category in OURS or category.startswith('"') or " or " in category
    return f'"{category}"' if is_unclear else category


def _joined(members: Sequence[str]) -> str:
    if len(members) <= MOST_NAMED:
        return " or ".join(members)
    return " or ".join([*members[: MOST_NAMED - 1], f"{len(members) - MOST_NAMED + 1} more"])
