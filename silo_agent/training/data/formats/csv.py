"""Tables as comma-separated text. The settings name the columns where the file has no header line.

N = rows.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.formats.tables import (
    Table,
    check_headings,
    check_own_headings,
    raw_data,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings

EXPANSION = 8  # a table of short texts takes at least so many times its bytes in memory
CELL_BYTES = 8  # of a place in a row

Row = tuple[int, tuple[str, ...]]  # the number of the line that it comes from, and its stripped texts


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`; what a row lacks is missing. Raises ConfigError for a file without columns."""
    path, wanted = required_path(settings), wanted_columns(settings, job)
    named = tuple(dict.fromkeys((*wanted, *unit_column(settings))))
    table, texts = read_table(path, settings, named, is_private=job.privacy is not None)
    units = None if settings.unit is None else units_of(table.cells[settings.unit], settings)
    identities = tuple(map(_identity, texts))
    places = [table.place(row) for row in range(table.rows)]
    return replace(raw_data(table, settings, job, identities=identities, units=units), places=places)


def records(settings: DataSettings) -> Records:
    """By line and, where a quote or an end of line may make other rows of it, also as jobs without privacy
    read them. Raises ConfigError as `load`."""
    path = required_path(settings)
    read = [_read(path, settings.columns_in_file, is_private=True)]
    content = path.read_bytes()
    if b'"' in content or b"\r" in content.replace(b"\r\n", b""):
        with suppress(ConfigError):  # then those jobs cannot read it either
            read.append(_read(path, settings.columns_in_file, is_private=False))
    texts = [(_filled(row, names), names) for names, rows in read for _, row in rows]
    columns, count = read[0][0], len(read[0][1])
    if (unit := settings.unit) is None:
        return Records(train=(_identity(row) for row, _ in texts), columns=columns, count=count)
    for names, _ in read:
        check_own_headings(str(path), names, (unit,))
    units = units_of((row[names.index(unit)] for row, names in texts), settings)
    return Records(train=(_identity(row) for row, _ in texts), units=units, columns=columns, count=count)


def read_table(
    path: Path, settings: DataSettings, wanted: Sequence[str], *, is_private: bool
) -> tuple[Table, list[tuple[str, ...]]]:
    """The columns that are wanted, and all texts row by row. Raises ConfigError for a file without them."""
    names, rows = _read(path, settings.columns_in_file, is_private=is_private)
    own = (*settings.missing, *(unit for unit in unit_column(settings) if unit in wanted))
    check_own_headings(str(path), names, own)
    check_headings(str(path), names, wanted)
    problems = Problems()
    for line, row in rows:
        if len(row) != len(names):
            problems.add(f"{path}, line {line}: expected {len(names)} values, got {len(row)}")
    texts = [_filled(row, names) for _, row in rows]
    table = Table(
        cells={
            name: [row[at] for row in texts]
            for name, at in zip(wanted, map(names.index, wanted), strict=True)
        },
        rows=len(rows),
        place=[f"{path}, line {line}" for line, _ in rows].__getitem__,
        problems=problems,
    )
    return table, texts


def _identity(texts: tuple[str, ...]) -> bytes:
    return "\n".join(texts).encode()


def _filled(row: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """As long as the header: what a row lacks is missing."""
    return (row + ("",) * len(names))[: len(names)]


def _read(path: Path, names: Sequence[str] | None, *, is_private: bool) -> tuple[list[str], list[Row]]:
    """Names of the columns, and the rows. Raises ConfigError for a file that is no table."""
    try:
        check_bytes(EXPANSION * path.stat().st_size, source=path)
        rows = _rows_by_line(path) if is_private else _rows(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a readable csv file in UTF-8") from error
    if names is None:
        if not rows:
            raise ConfigError(f"{path}: expected a header line, the file is empty")
        (_, names), *rows = rows
    check_bytes(CELL_BYTES * len(names) * len(rows), source=path)  # what a row lacks is missing, not free
    return list(names), rows


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        return [(reader.line_num, tuple(text.strip() for text in row)) for row in reader if row]


def _rows_by_line(path: Path) -> list[Row]:
    """One line is one row, so that no quote, byte or length in it reaches another row."""
    rows: list[Row] = []
    lines = path.read_bytes().decode("utf-8-sig", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, tuple(text.strip() for text in next(csv.reader((line.strip(),))))))
            except csv.Error:
                rows.append((number, ()))
    return rows
