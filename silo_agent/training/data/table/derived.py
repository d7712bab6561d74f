"""Columns that a silo's settings derive from its table: the time between two days, and nothing else.

Anything further belongs into a query or a function of the institution's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ISO_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T].*)?")


class DerivedColumn(BaseModel):
    """From the first column to the second, negative where the second day is before the first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    years: tuple[str, str] | None = Field(default=None, description="columns of two days: completed years")
    days: tuple[str, str] | None = Field(default=None, description="columns of two days: days")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.years is None) == (self.days is None):
            raise ValueError("years: expected either years or days")
        return self

    @property
    def days_of(self) -> tuple[str, str]:
        columns = self.years or self.days
        assert columns is not None
        return columns

    def between(self, first: date | None, second: date | None) -> float:
        """NaN where one is missing. A 29 February completes its year on 1 March where there is none."""
        if first is None or second is None:
            return math.nan
        if self.years is None:
            return (second - first).days
        return second.year - first.year - ((second.month, second.day) < (first.month, first.day))

    def in_words(self) -> str:
        first, second = self.days_of
        return f"{'days' if self.years is None else 'completed years'} from {first} to {second}"


def stored_names(wanted: Iterable[str], derive: Mapping[str, DerivedColumn]) -> list[str]:
    """The columns of the file that those are read or derived from, each once."""
    found = ((name,) if name not in derive else derive[name].days_of for name in wanted)
    return list(dict.fromkeys(name for names in found for name in names))


def day_of(text: str) -> date | None:
    """Of a text such as 2024-02-29, with or without a time; None: it is none."""
    try:
        return date.fromisoformat(found[1]) if (found := ISO_DAY.fullmatch(text)) else None
    except ValueError:
        return None
