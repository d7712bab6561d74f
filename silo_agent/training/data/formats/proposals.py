"""What a csv file's dialect may be: `chorale silo check` proposes it to a person, no job reads by it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from silo_agent.training.data.formats.tables import MISSING
from silo_agent.training.data.settings import DataFormat, DataSettings
from silo_agent.training.data.table.dialect import TableDialect

READ_BYTES, READ_ROWS = 1 << 20, 1_000  # from the beginning of the file
DELIMITERS = (",", ";", "\t", "|")
# decimal and thousands, the plainest first: of two that read as many numbers it is proposed
NUMBERS: tuple[tuple[Any, Any], ...] = (
    (".", None),
    (",", None),
    (",", "."),
    (".", ","),
    (",", " "),
    (".", "'"),
    (".", " "),
    (",", "'"),
)


DATES = ("DD.MM.YYYY", "DD/MM/YYYY", "MM/DD/YYYY", "YYYY/MM/DD", "DD-MM-YYYY")  # ISO 8601 needs no word


def proposed_dialect(settings: DataSettings) -> str:
    """The line of the silo's settings by which more columns, numbers and days that others derive from are
    read; empty where there is none better."""
    if settings.format is not DataFormat.CSV:
        return ""
    try:
        best, _ = likely_dialect(settings)
    except OSError:
        return ""
    if not settings.derive:  # nothing computes with its days
        best = best.model_copy(update={"dates": settings.dialect.dates})
    return "" if best == settings.dialect else f"dialect: {in_line(best)}"


def in_line(dialect: TableDialect) -> str:
    """As a value in YAML."""
    fields = dialect.model_dump(exclude_defaults=True)
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items()) + "}"


def likely_dialect(settings: DataSettings) -> tuple[TableDialect, list[str]]:
    """By which most columns, numbers and days are read, and other meanings that they have. Raises OSError."""
    now = settings.dialect
    assert settings.path is not None  # DataSettings refuses a csv without it
    content = _beginning(settings.path)
    encoding = _encoding(content, now)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    tables = {each: _rows(text, each, settings) for each in (now.delimiter, *DELIMITERS)}

    def fitting(delimiter: str) -> tuple[int, int]:
        names, rows = tables[delimiter]
        return sum(len(row) == len(names) > 1 for row in rows), len(names)

    delimiter = max(tables, key=fitting)  # the first of equals
    names, rows = tables[delimiter]
    columns = [
        [row[at] for row in rows if at < len(row) and row[at] not in MISSING] for at in range(len(names))
    ]
    cells = [cell for column in columns for cell in column]
    forms = [now, *(TableDialect(decimal=point, thousands=by) for point, by in NUMBERS)]
    best = max(forms, key=lambda form: _read(cells, form))  # the first of equals
    found: dict[str, str | None] = {"decimal": best.decimal, "thousands": best.thousands}
    found |= {"delimiter": delimiter, "encoding": encoding, "dates": now.dates}
    most = _read(cells, best)
    doubts = [
        f"numbers may also have decimal {each.decimal!r}, thousands {each.thousands!r}"
        for each in forms[1:]
        if _read(cells, each) == most and _differ(cells, each, best)
    ]
    if now.dates is None:
        read = {form: sum(_are_days(column, form) for column in columns) for form in DATES}
        likely = [form for form in DATES if read[form] and read[form] == max(read.values())]
        found["dates"] = likely[0] if likely else None
        doubts += [f"days may also be {each}" for each in likely[1:]]
    return TableDialect.model_validate(now.model_dump() | found), doubts


def _differ(cells: Sequence[str], one: TableDialect, other: TableDialect) -> bool:
    pairs = ((one.number(cell), other.number(cell)) for cell in cells)
    return any(math.isfinite(left) and left != right for left, right in pairs)


def _are_days(cells: Sequence[str], form: str) -> bool:
    dialect = TableDialect(dates=form)
    return bool(cells) and all(dialect.date(cell) != cell for cell in cells)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(READ_BYTES)


def _encoding(content: bytes, now: TableDialect) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for each in (now.encoding, "utf-8"):
        try:
            content.decode(each)
        except UnicodeDecodeError as error:
            if len(content) == READ_BYTES and error.start > len(content) - 4:
                return each  # a character that the end of what was read cuts
        else:
            return each
    return "cp1252"


def _rows(text: str, delimiter: str, settings: DataSettings) -> tuple[Sequence[str], list[list[str]]]:
    """Names and the first rows, a line each."""
    rows = [
        [cell.strip() for cell in row]
        for line in islice(text.splitlines(), READ_ROWS)
        if line.strip() and len(line) < csv.field_size_limit()
        for row in csv.reader((line,), delimiter=delimiter)
    ]
    if settings.columns_in_file is None:
        return (rows[0], rows[1:]) if rows else ([], [])
    fits = bool(rows) and len(rows[0]) == len(settings.columns_in_file)
    return (settings.columns_in_file if fits else [], rows)


def _read(cells: Sequence[str], dialect: TableDialect) -> int:
    return sum(math.isfinite(dialect.number(cell)) for cell in cells)
