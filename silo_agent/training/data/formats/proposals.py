"""What a csv file's dialect may be: `chorale silo check` proposes it to a person, no job reads by it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.formats.tables import MISSING, wanted_columns
from silo_agent.training.data.settings import DataFormat, DataSettings, TableDialect

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


def proposed_dialect(settings: DataSettings, job: JobSpec) -> str:
    """The line of the silo's settings by which more of the job's columns and numbers are read; empty where
    there is none better."""
    if settings.format is not DataFormat.CSV or settings.path is None or job.columns is None:
        return ""
    now = settings.dialect
    try:
        content = _beginning(settings.path)
        encoding = _encoding(content, now)
        text = content.decode(encoding, "replace").removeprefix("\ufeff")
    except OSError:
        return ""
    tables = {each: _rows(text, each, settings) for each in (now.delimiter, *DELIMITERS)}
    wanted = wanted_columns(settings, job)
    delimiter = max(tables, key=lambda each: len({*wanted} & {*tables[each][0]}))  # the first of equals
    names, rows = tables[delimiter]
    numbers = [column.name for column in job.inputs if column.categories is None and column.name in names]
    cells = [row[at] for at in map(names.index, numbers) for row in rows if at < len(row)]
    cells = [cell for cell in cells if cell and cell not in MISSING]
    forms = [now, *(TableDialect(decimal=point, thousands=by) for point, by in NUMBERS)]
    best = max(forms, key=lambda form: _read(cells, form))  # the first of equals
    found = {
        "delimiter": delimiter,
        "decimal": best.decimal,
        "thousands": best.thousands,
        "encoding": encoding,
    }
    changed = {name: value for name, value in found.items() if value != getattr(now, name)}
    if not changed:
        return ""
    kept = {name: getattr(now, name) for name in TableDialect.model_fields if name in now.model_fields_set}
    fields = ", ".join(f"{name}: {json.dumps(value)}" for name, value in {**kept, **changed}.items())
    return f"dialect: {{{fields}}}"


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
