"""Units of a table's numbers: the job states its own, the silo's settings those of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.spec.fields import OneLine, Positive
from chorale.spec.kinds import AnySpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError, printable


class ColumnUnit(BaseModel):
    """The unit of a column, and what its numbers are multiplied by for jobs in other ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: OneLine = Field(description="of the numbers in the file, such as mg/dL")
    factors: dict[OneLine, Positive] = Field(
        default_factory=dict,
        description="by unit of a job, what the file's numbers are multiplied by, such as {mmol/L: 0.0555}",
    )

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.unit in self.factors:
            raise ValueError(f"factors: expected other units than {self.unit}, which the file holds")
        return self


Units = Mapping[str, ColumnUnit]


def factor_of(column: ColumnSpec, units: Units) -> float:
    """What its numbers are multiplied by."""
    stated = units.get(column.name)
    return 1.0 if stated is None or column.unit is None else stated.factors.get(column.unit, 1.0)


def check_units(units: Units, job: AnySpec) -> None:
    """Raises ConfigError for a job in a unit that the settings give no factor to."""
    for column in job.columns_read:
        stated = units.get(column.name)
        if stated is not None and column.unit not in (None, stated.unit, *stated.factors):
            raise ConfigError(
                f"data.units: {column.name}: the job reads {column.unit}, the data hold {stated.unit}: "
                f"expected a factor, factors: {{{column.unit}: ...}}"
            )


def units_in_words(units: Units, job: AnySpec) -> list[str]:
    """What becomes of the numbers that job or settings state a unit of, a line for all that are alike."""
    found: dict[str, list[str]] = {}
    for column in job.columns_read:
        stated, unit = units.get(column.name), column.unit
        if stated is None:
            what = "" if unit is None else f"read as {unit}; unit not stated by this silo (data.units)"
        elif unit in stated.factors:
            what = f"{stated.unit} times {stated.factors[unit]:g} is the job's {unit}"
        else:
            what = f"{stated.unit}, " + ("unit not stated by the job" if unit is None else "also in the job")
        found.setdefault(what, []).append(printable(column.name))
    found.pop("", None)
    return [f"{', '.join(names)}: {what}" for what, names in found.items()]
