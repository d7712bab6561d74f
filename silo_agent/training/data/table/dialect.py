"""How a table is written: its characters, numbers and days."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

ASCII = bytes(each for each in range(32, 127) if each != ord("\\")) + rb"\n" + b"\t\r\n"
OF_NUMBERS = "0123456789+-eE\n"
WITH_ESCAPES = ("raw-unicode-escape", "unicode-escape")  # in which other characters are an end of line
LONGEST_NUMBER = 64  # characters of those that are read at once
GROUP_SPACES = "[ \u00a0\u202f]"  # between groups of digits, where a space is


class TableDialect(BaseModel):
    """How a csv file is written. Nothing of it is guessed when a job reads the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delimiter: str = Field(
        default=",",
        min_length=1,
        max_length=1,
        pattern=r"^[^\w\"\r\n\x00.+-]$",
        description=r'between two cells: ",", ";", "|" or "\t"',
    )
    decimal: Literal[".", ","] = Field(default=".", description="between the whole number and its fraction")
    thousands: Literal[".", ",", "'", " "] | None = Field(
        default=None,
        description="between groups of three digits; a space is also one that does not break; null: none",
    )
    encoding: str = Field(
        default="utf-8", description="of the file's text, such as utf-8, utf-16, cp1252 or iso-8859-15"
    )
    dates: str | None = Field(
        default=None,
        description="how days are written, with YYYY, MM and DD, such as DD.MM.YYYY; a text of that form is "
        "read as YYYY-MM-DD; null: they are texts as they stand",
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError(f"thousands: expected another character than decimal, got {self.thousands!r}")
        with suppress(LookupError, UnicodeError):
            if not self.has_lines_of_bytes and "a".encode(self.encoding).decode("utf-16") != "a":
                raise LookupError(self.encoding)
            if self.dates is not None and sorted(re.findall("[A-Z]+", self.dates)) != ["DD", "MM", "YYYY"]:
                raise ValueError(f"dates: expected YYYY, MM and DD once each, got {self.dates!r}")
            return self
        raise ValueError(f"encoding: expected an encoding of texts that Python knows, got {self.encoding!r}")

    @property
    def has_lines_of_bytes(self) -> bool:
        """Whether a line of the file is one of its bytes, as in all encodings that hold ASCII as it is."""
        if codecs.lookup(self.encoding).name in WITH_ESCAPES:
            return False
        try:
            return (ASCII + b"\xff").decode(self.encoding, "replace").startswith(ASCII.decode("ascii"))
        except UnicodeError:
            return False

    def number(self, text: str) -> float:
        """NaN for what is none: sign, digits with their groups, decimal and digits, exponent; no other texts
        that Python takes for numbers, such as 4_0."""
        if not self._number.fullmatch(text):
            return math.nan
        if self.thousands is not None:
            text = re.sub(GROUP_SPACES if self.thousands == " " else re.escape(self.thousands), "", text)
        return float(text.replace(self.decimal, "."))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """`number` of each. Shapes: -> (N,)."""
        # a long text may stand for all rows of a typed table, and takes its memory once
        joined = "\n".join(texts) if max(map(len, texts), default=0) <= LONGEST_NUMBER else "long"
        if set(joined) <= {*OF_NUMBERS, self.decimal}:
            plain = joined.replace(self.decimal, ".").split("\n")
            # of these letters Python takes no other texts for numbers
            with suppress(ValueError):
                if len(plain) == len(texts):
                    return np.array([*map(float, plain)], np.float64)
        return np.array([*map(self.number, texts)], np.float64)

    def date(self, text: str) -> str:
        """The text, with a day as YYYY-MM-DD."""
        if self._date is None or (found := self._date.fullmatch(text)) is None:
            return text
        try:
            return date(*(int(found[part]) for part in ("YYYY", "MM", "DD"))).isoformat()
        except ValueError:  # no such day
            return text

    @cached_property
    def _number(self) -> re.Pattern[str]:
        whole, point = "[0-9]+", re.escape(self.decimal)
        if self.thousands is not None:
            group = GROUP_SPACES if self.thousands == " " else re.escape(self.thousands)
            whole = rf"(?:[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|[0-9]+)"
        return re.compile(rf"[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")

    @cached_property
    def _date(self) -> re.Pattern[str] | None:
        if self.dates is None:
            return None
        form = re.escape(self.dates).replace("YYYY", "(?P<YYYY>[0-9]{4})")
        return re.compile(form.replace("MM", "(?P<MM>[0-9]{1,2})").replace("DD", "(?P<DD>[0-9]{1,2})"))
