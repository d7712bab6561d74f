"""Survival curves over an analysis's columns, as its operator writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from chorale.spec.fields import SpecPart
from chorale.spec.samples.column_specs import Heading
from strategies.analysis.partition import Survival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strategies.analysis.partition import Partition


class SurvivalSpec(SpecPart):
    """Kaplan-Meier curves over bins of time, and the log-rank test of a group."""

    time: Heading = Field(
        description="one of the columns, with edges from 0 on, which are its bins: from the beginning to the "
        "event, or to the last time without one; records with a longer time are left out"
    )
    status: Heading = Field(
        description="one of the columns, with two categories: the first is censored, the second the event"
    )
    group: Heading | None = Field(
        default=None,
        description="one of the columns, with categories, by which curves are compared; null: one curve",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.status, *(() if self.group is None else (self.group,)))

    @property
    def in_words(self) -> str:
        groups = "" if self.group is None else f", and compares them by {self.group}"
        return f"computes survival curves of {self.time} to {self.status}{groups}"

    def placed(self, names: Mapping[str, int]) -> Survival:
        """names: places of the columns."""
        return Survival(
            time=names[self.time],
            status=names[self.status],
            group=None if self.group is None else names[self.group],
        )

    def check(self, partitions: Mapping[str, Partition]) -> None:
        """Raises ValueError for columns that are others than these, or that do not fit."""
        for name in self.columns:
            if name not in partitions:
                raise ValueError(f"survival: expected columns of the job, got {name!r}")
        for name, partition in partitions.items():
            if name not in self.columns:
                raise ValueError(
                    f"columns: {name} is none of the survival curves', and the job describes the records "
                    "that are complete in these; describe it in another analysis"
                )
            if partition.has_mean:
                raise ValueError(f"columns: {name}: expected no mean, with survival curves none is summed")
        time, status = partitions[self.time], partitions[self.status]
        if not time.is_ordered or time.edges[0] != 0:
            raise ValueError(f"survival.time: expected a column with edges from 0 on, {self.time} has none")
        if status.is_ordered or status.parts != 2:
            raise ValueError(f"survival.status: expected a column with two categories, {self.status} has not")
        if self.group is not None and (partitions[self.group].is_ordered or partitions[self.group].parts < 2):
            raise ValueError(f"survival.group: expected a column with categories, {self.group} has none")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("survival: expected another column each for time, status and group")
        return self
