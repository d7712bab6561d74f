"""What readers of the papers look for, thing by thing, and where it is: coverage.tsv, a row each.

A status is *holds* (as the paper or its authors' code has it), *differs* or *missing*; the last two say why.
Places are a file, or a text in it; a part, a preset or an option of a job; or a table of this catalog.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("coverage.tsv")
STATUSES = ("holds", "differs", "missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """where: `head frozen-etf`, `preset fedcsd`, `option ridge`, `Table 3`, `chorale/job.py:text`."""

    paper: str
    item: str
    status: str
    where: str
    why: str

    @property
    def places(self) -> list[str]:
        return self.where.split("; ") if self.where else []


def things() -> list[Thing]:
    """In the order of the file."""
    with TABLE.open(newline="") as file:
        return [Thing(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
