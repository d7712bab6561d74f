"""The parts that a job declares of a column, before any of them is merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """parts: declared ones; behind them stands one further part, of missing and implausible values. edges: of
    a column of numbers, one more than parts, rising; empty of categories. has_mean: whether values are
    summed, too, as z from -1 to 1 between the outermost edges."""

    parts: int
    edges: tuple[float, ...] = ()
    has_mean: bool = False

    @property
    def is_ordered(self) -> bool:
        return bool(self.edges)

    @property
    def size(self) -> int:
        """P, missing values included."""
        return self.parts + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What is described: columns in the job's order. group: place of the column by whose parts the others are
    described; None: by none. min_cell: fewest records of a part or cell that is published."""

    partitions: tuple[Partition, ...]
    group: int | None
    min_cell: int

    @property
    def described(self) -> tuple[int, ...]:
        """Places of the columns that have a table, all but the group."""
        return tuple(place for place in range(len(self.partitions)) if place != self.group)

    @property
    def group_size(self) -> int:
        """G: parts of the group, missing values included; 1 without one."""
        return 1 if self.group is None else self.partitions[self.group].size

    @property
    def cells(self) -> int:
        """Of the tables that silos sum: the group by each other column, row by row and table by table."""
        return self.group_size * sum(self.partitions[place].size for place in self.described)

    @property
    def measured(self) -> tuple[int, ...]:
        """Places of the described columns whose values are summed."""
        return tuple(place for place in self.described if self.partitions[place].has_mean)
