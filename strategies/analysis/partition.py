"""The parts that a job declares of a column, before any of them is merged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """parts: declared ones; behind them stands one further part, of missing and implausible values. edges: of
    a column of numbers, one more than parts, rising; empty of categories. has_mean: whether values are
    summed, too, as z from -1 to 1 between the outermost edges. has_missing: False where records without a
    value are left out, and there is no further part. by_ending: of a time, its parts of records that are
    censored count apart from those of events, which follow them."""

    parts: int
    edges: tuple[float, ...] = ()
    has_mean: bool = False
    has_missing: bool = True
    by_ending: bool = False

    @property
    def is_ordered(self) -> bool:
        return bool(self.edges)

    @property
    def size(self) -> int:
        """P, missing values included."""
        return self.parts * (1 + self.by_ending) + self.has_missing


class Family(StrEnum):
    """Of a model: what its outcome is, and the link."""

    LINEAR = "linear"
    LOGISTIC = "logistic"
    POISSON = "poisson"
    COX = "cox"  # proportional hazards, without an intercept


class Ties(StrEnum):
    """Of a Cox model: events of one bin of time."""

    EFRON = "efron"
    BRESLOW = "breslow"


class Trend(StrEnum):
    """With what of a bin hazards may come to differ: its place, or the mean rank of its events."""

    IDENTITY = "identity"
    RANK = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A regression beside the tables. outcome: place of its column. terms: each a product of the columns at
    these places; an intercept stands before them. It is about the records without any missing value.
    by_patient: whether errors allow for what records of one patient have in common. offset: place of the
    exposure of a Poisson model, whose logarithm adds to its predictor. ridge: half of it times the squares of
    the coefficients is taken from the log-likelihood; None: it has errors. The others are of a Cox model:
    places of its time, and of columns by whose parts it has a baseline each."""

    outcome: int
    family: Family
    terms: tuple[tuple[int, ...], ...]
    by_patient: bool = False
    offset: int | None = None
    ridge: float | None = None
    time: int | None = None
    strata: tuple[int, ...] = ()
    ties: Ties = Ties.EFRON
    trend: Trend = Trend.RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Places of the columns of a survival curve: the part of time at which a record ends, with how, censored
    or event; and the group whose curves are compared. It is about the records without any missing value."""

    time: int
    status: int
    group: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What is described: columns in the job's order. group: place of the column by whose parts the others are
    described; None: by none. min_cell: fewest records of a part or cell that is published. has_noise: whether
    sums carry noise, and all cells are published. has_correlations: of the records without any missing value.
    """

    partitions: tuple[Partition, ...]
    group: int | None
    min_cell: int
    has_noise: bool = False
    model: Model | None = None
    survival: Survival | None = None
    has_correlations: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether records that lack a value are left out."""
        return self.model is not None or self.survival is not None or self.has_correlations

    @property
    def described(self) -> tuple[int, ...]:
        """Places of the columns that have a table: all but the group, and the status that a time is by."""
        return tuple(place for place in range(len(self.partitions)) if place not in (self.group, self.status))

    @property
    def group_size(self) -> int:
        """G: parts of the group, missing values included; 1 without one."""
        return 1 if self.group is None else self.partitions[self.group].size

    @property
    def cells(self) -> int:
        """Of the tables that silos sum: the group by each other column, row by row and table by table; then
        the joint table of a model. That of a survival curve stands alone: the others follow from it."""
        if self.survival is not None:
            return self.joint_cells
        described = self.group_size * sum(self.partitions[place].size for place in self.described)
        return described + (0 if self.model is None else self.joint_cells)

    @property
    def summed(self) -> int:
        """Tables that each record is counted in."""
        return 1 if self.survival is not None else len(self.described) + (self.model is not None)

    @property
    def joint(self) -> tuple[int, ...]:
        """Places of a model's columns that have one joint table, the last of them running fastest: those with
        categories, and the outcome but of a linear model. Of a Poisson model it counts as two parts, the
        lowest and the others: were it 0 in all but a few records of a cell, its sum would tell of these. A
        time by ending comes first."""
        found = (
            place
            for place, each in enumerate(self.partitions)
            if place != self.status
            and (not each.is_ordered or each.by_ending or (self._is_outcome(place) and self._is_poisson))
        )
        return tuple(sorted(found, key=lambda place: not self.partitions[place].by_ending))

    @property
    def factors(self) -> tuple[int, ...]:
        """Those of the joint table that are merged: all but the outcome."""
        return tuple(place for place in self.joint if not self._is_outcome(place))

    @property
    def factor_cells(self) -> int:
        """F, cells of the joint table without the outcome; 1 without such a column."""
        return math.prod(self.partitions[place].size for place in self.factors)

    @property
    def joint_shape(self) -> tuple[int, ...]:
        return tuple(2 if self._is_outcome(place) else self.partitions[place].size for place in self.joint)

    @property
    def time(self) -> int | None:
        """Place of the time of survival curves or a Cox model."""
        return next((place for place, each in enumerate(self.partitions) if each.by_ending), None)

    @property
    def status(self) -> int | None:
        """Place of the column that says how it ended."""
        if self.survival is not None:
            return self.survival.status
        return None if self.time is None or self.model is None else self.model.outcome

    @property
    def _is_poisson(self) -> bool:
        return self.model is not None and self.model.family is Family.POISSON

    def _is_outcome(self, place: int) -> bool:
        return self.model is not None and self.model.outcome == place

    @property
    def joint_cells(self) -> int:
        """J; 1 without such a column."""
        return math.prod(self.joint_shape)

    @property
    def measured(self) -> tuple[int, ...]:
        """Places of the described columns whose values are summed."""
        return tuple(place for place in self.described if self.partitions[place].has_mean)
