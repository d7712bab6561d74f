"""An analysis: a job that describes its silos' records and trains nothing.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from chorale.spec.analyses.regression_spec import RegressionSpec
from chorale.spec.analyses.survival_spec import SurvivalSpec
from chorale.spec.fields import MAX_SIMULATED_SILOS, Finite, OneLine, SpecPart
from chorale.spec.privacy_spec import AnalysisPrivacySpec
from chorale.spec.samples.column_specs import RANGES, ClassName, ColumnSpec, Heading, names_of
from chorale.spec.settings_file import check_values
from chorale.spec.shared_fields import SharedFields
from chorale.spec.state import state_digest, state_to_bytes
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from crypto.session.cohort import SMALLEST_FEDERATION, CohortRule
from strategies.analysis.cox import numbers_of
from strategies.analysis.design import design_of
from strategies.analysis.method import FIRST_STATE, Analysis
from strategies.analysis.partition import Partition, Tables
from strategies.intervals import TWO_SIDED

MOST_COLUMNS = 200
MOST_CELLS = 10_000
LEAST_CELL = 10
MOST_SMALLEST = 1_000_000
MOST_PARAMETERS = 100  # two sums of 10,000 numbers
MOST_NUMBERS = 100_000  # of a Cox model

Show = Literal["mean", "median", "counts"]


class DescribedColumn(SpecPart):
    """One column and the parts that its values fall into. What is in none of them is missing."""

    name: Heading = Field(description="the column's heading")
    edges: tuple[Finite, ...] | None = Field(
        default=None,
        min_length=2,
        max_length=1_001,
        description="of the parts of a column of numbers, rising: each part holds its lower edge and not its "
        "upper one, the last one both; a number outside of them is missing; null: it has categories",
    )
    categories: tuple[ClassName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1_000,
        description="texts of the column, each one part; null: it has edges",
    )
    unit: OneLine | None = Field(
        default=None,
        description="of the edges, such as mmol/L: a silo whose settings state another one converts its "
        "numbers by its factor, or refuses the job; null: not said",
    )
    show: tuple[Show, ...] = Field(
        default=("counts",),
        min_length=1,
        description="what the results say of it. counts: of each part; median: median and quartiles, by the "
        "counts of the parts; mean: mean and standard deviation, for which the values are summed, too",
    )

    @property
    def has_mean(self) -> bool:
        return "mean" in self.show

    @property
    def partition(self) -> Partition:
        edges = self.edges or ()
        count = len(self.categories or ()) or len(edges) - 1
        return Partition(parts=count, edges=edges, has_mean=self.has_mean)

    @property
    def as_read(self) -> ColumnSpec:
        """As tables are read: a category by its place, a number between the outermost edges as it is."""
        if self.categories is not None:
            values: dict[str, object] = {"categories": self.categories, "encoding": "index"}
        else:
            assert self.edges is not None
            values = {"plausible": (self.edges[0], self.edges[-1]), "unit": self.unit}
        return check_values(ColumnSpec, {"name": self.name, **values}, source=self.name)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.edges is None) == (self.categories is None):
            raise ValueError("expected either edges or categories")
        if names_of(self.name) != (self.name,):
            raise ValueError("name: expected one column, got a range of them")
        if self.categories is not None:
            self._check_categories(self.categories)
            return self
        assert self.edges is not None
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError(f"edges: expected rising numbers, got {list(self.edges)}")
        if not RANGES[0] <= self.edges[-1] - self.edges[0] <= RANGES[1]:
            raise ValueError(f"edges: expected the outermost ones {RANGES[0]:g} to {RANGES[1]:g} apart")
        return self

    def _check_categories(self, categories: tuple[str, ...]) -> None:
        if len(set(categories)) != len(categories):
            raise ValueError("categories: expected each text once")
        if self.unit is not None:
            raise ValueError("unit: not allowed with categories, which are no numbers")
        if self.show != ("counts",):
            raise ValueError("show: expected counts alone with categories, which are no numbers")


class SubgroupsSpec(DescribedColumn):
    """A column by whose parts a job tests its final model, in a sum that is an analysis to policies."""

    min_cell: int = Field(
        default=LEAST_CELL,
        ge=LEAST_CELL,
        le=MOST_SMALLEST,
        description="fewest tested records, of each class where there are classes, of a part that results "
        "show; parts with fewer are merged",
    )

    @model_validator(mode="after")
    def _has_counts_alone(self) -> Self:
        if self.show != ("counts",):
            raise ValueError("show: not allowed with subgroups, which show figures of the model")
        return self


class AnalysisSpec(SharedFields):
    """An analysis as its operator signs it."""

    kind: Literal["analysis"] = Field(description="what kind of job it is, for it trains nothing")
    columns: tuple[DescribedColumn, ...] = Field(
        min_length=1, max_length=MOST_COLUMNS, description="the columns that are described"
    )
    group: Heading | None = Field(
        default=None, description="one of the columns, by whose parts the others are described; null: none"
    )
    min_cohort: int | None = Field(
        default=None,
        ge=SMALLEST_FEDERATION,
        le=MAX_SIMULATED_SILOS,
        description="fewest silos in a sum; null: all, because silos that come later are in no table",
    )
    min_cell: int = Field(
        default=LEAST_CELL,
        ge=LEAST_CELL,
        le=MOST_SMALLEST,
        description="fewest records of a part or cell that results show; parts with fewer are merged; with "
        "privacy all are shown, each with noise",
    )
    privacy: AnalysisPrivacySpec | None = Field(
        default=None,
        description="differential privacy of all its sums; null: exact sums, which silos refuse by default",
    )
    model: RegressionSpec | None = Field(
        default=None,
        description="a regression; the columns are then its own, and records that lack one of them are left "
        "out of the whole job; null: none",
    )
    survival: SurvivalSpec | None = Field(
        default=None,
        description="survival curves; the columns are then their own, and records that lack one of them are "
        "left out of the whole job; null: none",
    )
    correlations: bool = Field(
        default=False,
        description="Pearson's, of each two columns, all of which have edges; records that lack one of them "
        "are left out of the whole job",
    )

    # what is asked of every job, and is the same of all analyses
    steps: ClassVar[None] = None
    spare_steps: ClassVar[None] = None
    fraction: ClassVar[float] = 1.0
    draw: ClassVar[None] = None
    keep: ClassVar[None] = None
    stop: ClassVar[None] = None
    search: ClassVar[None] = None
    evaluate_all_every: ClassVar[None] = None
    enrollment_every: ClassVar[int] = 1
    draws_rounds: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    count: ClassVar[str] = "an analysis"
    arms: ClassVar[tuple[AnalysisSpec, ...]] = ()
    code: ClassVar[None] = None
    distributions: ClassVar[tuple[str, ...]] = ()
    label_columns: ClassVar[tuple[str, ...]] = ()

    @property
    def rounds(self) -> int:
        """Steps of a model."""
        return 0 if self.model is None else self.model.iterations

    @property
    def columns_read(self) -> tuple[ColumnSpec, ...]:
        """The columns as tables are read."""
        return tuple(column.as_read for column in self.columns)

    @property
    def named_per_round(self) -> int:
        return len(self.silos)

    def rule(self, members: int) -> CohortRule:
        """That of every job, but by default a sum is over all silos: a table is summed once, and one that
        began before a silo had approved would lack it for good."""
        rule = super().rule(members)
        return rule if self.min_cohort is not None else replace(rule, min_cohort=members)

    @property
    def in_words(self) -> str:
        """What it asks, for people who decide."""
        groups = "" if self.group is None else f" by {self.group}"
        counted = len(self.columns) - (self.group is not None)
        means = [self.columns[place].name for place in self.tables.measured]
        summed = f"; sums values of {', '.join(means)} for means" if means else ""
        more = "".join(f"; {each.in_words}" for each in (self.model, self.survival) if each is not None)
        more += "; sums products of each two columns' values for correlations" if self.correlations else ""
        if self.privacy is not None:
            return f"analysis: counts {counted} columns{groups}{summed}{self._noise_in_words}"
        return (
            f"analysis: counts {counted} columns{groups}{summed}{more}; the results show "
            f"no cell of fewer than {self.min_cell} records, which are merged with others; the coordinator "
            "and all silos of the job can see every cell"
        )

    @property
    def _noise_in_words(self) -> str:
        assert self.privacy is not None
        noise = (
            "; all sums carry noise, which the coordinator, all silos and readers of the results see alike"
        )
        if (multiplier := self.privacy.statistics_noise_multiplier) is None:
            return noise
        members = len(self.silos)
        deviation = multiplier * sqrt(self.tables.summed * members / self.rule(members).min_honest)
        return f"{noise}; the count of a cell is off by up to {TWO_SIDED * deviation:.0f} in 95 of 100 cases"

    @property
    def tables(self) -> Tables:
        places = {column.name: place for place, column in enumerate(self.columns)}
        partitions = tuple(column.partition for column in self.columns)
        if self._alone:
            times = self.times
            partitions = tuple(
                replace(
                    each,
                    has_missing=False,
                    has_mean=self.survival is None and each.is_ordered and column.name not in times,
                    by_ending=column.name in times,
                )
                for column, each in zip(self.columns, partitions, strict=True)
            )
        return Tables(
            partitions=partitions,
            group=None if self.group is None else places[self.group],
            min_cell=self.min_cell,
            has_noise=self.privacy is not None,
            model=None if self.model is None else self.model.placed(places),
            survival=None if self.survival is None else self.survival.placed(places),
            has_correlations=self.correlations,
        )

    @property
    def _alone(self) -> tuple[str, ...]:
        """What is asked that has the job to itself, about its complete records."""
        asked = {"model": self.model, "survival": self.survival, "correlations": self.correlations}
        return tuple(name for name, each in asked.items() if each)

    @property
    def times(self) -> frozenset[str | None]:
        """Columns that are counted by whether the event came. None: no column."""
        return frozenset(each.time for each in (self.model, self.survival) if each is not None)

    @property
    def sums_cells(self) -> bool:
        """Whether a data set answers few of its kind: without noise."""
        return self.privacy is None

    @property
    def method(self) -> Analysis:
        return Analysis(tables=self.tables)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All that it sums."""
        return self.method.quantities

    def check_submittable(self, *, now: datetime) -> None:
        """Raises ConfigError for an analysis that silos would refuse."""
        super().check_submittable(now=now)
        if self.initial_state != first_digest().hex():
            raise ConfigError(f"job {self.name}: initial_state: expected that of every analysis")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.check_deadlines()
        if twice := [name for name, times in Counter(self.silos).items() if times > 1]:
            raise ValueError(f"silos: expected each silo once, got {twice[0]} twice")
        names = Counter(column.name for column in self.columns)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"columns: {twice[0]} is named twice")
        if self.group is not None and self.group not in names:
            raise ValueError(f"group: expected one of the columns, got {self.group!r}")
        if self.group is not None and len(names) == 1:
            raise ValueError("columns: expected another one beside the group")
        if self._alone:
            self._check_alone(*self._alone)
        if (cells := self.tables.cells) > MOST_CELLS:
            raise ValueError(f"columns: expected at most {MOST_CELLS} cells in all tables, got {cells}")
        try:
            CohortRule.for_members(len(self.silos), threshold=self.threshold, min_cohort=self.min_cohort)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_alone(self, asked: str, *others: str) -> None:
        beside = [name for name in ("privacy", "group") if getattr(self, name) is not None]
        if beside := [*beside, *others]:
            raise ValueError(f"{beside[0]}: not allowed with {asked}, which has its job to itself")
        if self.model is not None:
            self._check_model(self.model)
        if self.survival is not None:
            self.survival.check({column.name: column.partition for column in self.columns})
        if self.correlations:
            self._check_correlations()

    def _check_correlations(self) -> None:
        if without := [column.name for column in self.columns if column.edges is None]:
            raise ValueError(f"correlations: expected columns with edges, {without[0]} has none")
        if (size := len(self.columns)) < 2:
            raise ValueError("correlations: expected two columns at least")
        if (products := size * (size + 1) // 2) > MOST_CELLS:
            raise ValueError(f"correlations: expected at most {MOST_CELLS} sums of products, got {products}")

    def _check_model(self, model: RegressionSpec) -> None:
        model.check({column.name: column.partition for column in self.columns})
        tables = self.tables
        if (values := len(tables.measured) * tables.joint_cells) > MOST_CELLS:
            raise ValueError(
                f"model: expected at most {MOST_CELLS} sums of values, one a column of numbers and cell of "
                f"the joint table, got {values}"
            )
        if (parameters := len(design_of(tables))) > MOST_PARAMETERS:
            raise ValueError(f"model: expected at most {MOST_PARAMETERS} coefficients, got {parameters}")
        if model.errors == "patient" and tables.factor_cells > MOST_PARAMETERS:
            raise ValueError(
                f"model.errors: expected at most {MOST_PARAMETERS} cells of the columns with categories for "
                f"errors by patient, got {tables.factor_cells}"
            )
        if tables.time is not None and (numbers := numbers_of(tables)) > MOST_NUMBERS:
            raise ValueError(f"model: expected at most {MOST_NUMBERS} sums a step, got {numbers}")


@lru_cache(maxsize=1)
def first_digest() -> bytes:
    """Of the state that every analysis begins with."""
    return state_digest(state_to_bytes(FIRST_STATE))
