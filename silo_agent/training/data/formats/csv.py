"""Tables as separated text. The settings name the columns where the file has no header line, and its dialect.

In a job without privacy a quoted cell may hold ends of lines. A quote that opens and never closes, or that
takes other rows into its cell, costs the row in which it opens and no other one.

N = rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.formats.tables import (
    StoredTable,
    Table,
    check_own_headings,
    own_columns,
    raw_data,
    renamed,
    stored_columns,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings, SettingsFault
from silo_agent.training.data.table.dialect import TableDialect

EXPANSION = 8  # a table of short texts takes at least so many times its bytes in memory
CELL_BYTES = 8  # of a place in a row

NUL = "\0"

Row = tuple[int, tuple[str, ...]]  # the number of the line where it begins, and its stripped texts
Found = tuple[int, tuple[str, ...], str]  # and what is wrong with it


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`. Raises ConfigError as `stored`."""
    read = stored(settings, wanted_columns(settings, job), is_private=job.privacy is not None)
    return raw_data(read, settings, job)


def stored(settings: DataSettings, wanted: Sequence[str], *, is_private: bool = False) -> StoredTable:
    """What a row lacks is missing. Raises ConfigError for a file without columns."""
    named = tuple(dict.fromkeys((*wanted, *unit_column(settings))))
    table, texts = read_table(required_path(settings), settings, named, is_private=is_private)
    units = None if settings.unit is None else units_of(table.cells[settings.unit], settings)
    return StoredTable(table=table, identities=tuple(map(_identity, texts)), units=units)


def table(settings: DataSettings, wanted: Sequence[str] | None = None) -> Table:
    """The columns that are wanted, or all, as a job without privacy reads them. Raises ConfigError."""
    return read_table(required_path(settings), settings, wanted, is_private=False)[0]


def records(settings: DataSettings) -> Records:
    """By line and, where a quote or an end of line may make other rows of it, also as jobs without privacy
    read them. Raises ConfigError as `stored`."""
    path = required_path(settings)
    by_line = settings.dialect.has_lines_of_bytes
    read = [_read(path, settings, Problems(), is_private=by_line)]
    content = path.read_bytes()
    if by_line and (b'"' in content or b"\r" in content.replace(b"\r\n", b"")):
        with suppress(ConfigError):  # then those jobs cannot read it either
            read.append(_read(path, settings, Problems(), is_private=False))
    texts = [(_filled(row, names), names) for names, rows in read for _, row in rows]
    columns, count = read[0][0], len(read[0][1])
    if (unit := settings.unit) is None:
        return Records(train=(_identity(row) for row, _ in texts), columns=columns, count=count)
    for names, _ in read:
        check_own_headings(str(path), names, (unit,))
    units = units_of((row[names.index(unit)] for row, names in texts), settings)
    return Records(train=(_identity(row) for row, _ in texts), units=units, columns=columns, count=count)


def read_table(
    path: Path, settings: DataSettings, wanted: Sequence[str] | None, *, is_private: bool
) -> tuple[Table, list[tuple[str, ...]]]:
    """The columns that are wanted (None: all), and all texts row by row. Raises ConfigError for a file that
    lacks one."""
    problems = Problems()
    names, rows = _read(path, settings, problems, is_private=is_private)
    wanted = names if wanted is None else wanted
    check_own_headings(str(path), names, own_columns(settings, wanted))
    stored = stored_columns(str(path), names, settings, wanted)
    for line, row in rows:
        if row and len(row) != len(names):  # of one that is empty the reading said why
            problems.add(f"{path}, line {line}: expected {len(names)} values, got {len(row)}")
    texts = [_filled(row, names) for _, row in rows]
    table = Table(
        lost=frozenset(at for at, (_, row) in enumerate(rows) if not row),
        values=settings.values,
        dialect=settings.dialect,
        cells={
            name: [row[at] for row in texts]
            for name, at in zip(stored, map(names.index, stored), strict=True)
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
    return row if len(row) == len(names) else (row + ("",) * len(names))[: len(names)]


def _read(
    path: Path, settings: DataSettings, problems: Problems, *, is_private: bool
) -> tuple[list[str], list[Row]]:
    """Names of the columns, and the rows; one that cannot be read is empty. Raises ConfigError for a file
    that is no table."""
    names, found = settings.columns_in_file, list[Found]()
    try:
        check_bytes(EXPANSION * path.stat().st_size, source=path)
        text = _decoded(path.read_bytes(), path, settings.dialect, is_private=is_private)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or type(error).__name__}") from None
    if is_private:
        found += _by_line(text, settings.dialect.delimiter)
    else:
        found += _by_quotes(text, settings.dialect.delimiter, width=None if names is None else len(names))
    if names is None:
        if not found:
            raise ConfigError(f"{path}: expected a header line, the file is empty")
        (line, names, why), *found = found
        if not names:
            raise ConfigError(f"{path}, line {line}: expected a header line, but {why}")
    check_bytes(CELL_BYTES * len(names) * len(found), source=path)  # what a row lacks is missing, not free
    for line, _, why in found:
        if why:
            problems.add(f"{path}, line {line}: {why}")
    return renamed(names, settings, source=str(path)), [(line, row) for line, row, _ in found]


def _decoded(content: bytes, path: Path, dialect: TableDialect, *, is_private: bool) -> str:
    """Raises ConfigError that names the line and byte. In a private job each line is decoded by itself, and a
    wrong byte is another character: no byte of a record reaches another one."""
    if is_private:
        if not dialect.has_lines_of_bytes:
            raise SettingsFault(
                f"data.dialect.encoding: a private job reads line by line, which {dialect.encoding} does not "
                "allow: store the file as utf-8"
            )
        lines = [line.decode(dialect.encoding, "replace") for line in content.split(b"\n")]
        return "\n".join(lines).removeprefix("\ufeff")
    try:
        text = content.decode(dialect.encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError(
            f"{path}, line {line}, byte {byte}: not {dialect.encoding}; data.dialect.encoding names another "
            "encoding, such as cp1252"
        ) from None
    return text.removeprefix("\ufeff")


def _by_quotes(text: str, delimiter: str, *, width: int | None) -> Iterator[Found]:
    """A row is what quotes say; one that they spoil is the line in which it begins. width: cells of a row;
    None: as many as the first has."""
    lines = StringIO(text, newline="").readlines()
    place, has_nul = 0, NUL in text

    def following() -> Iterator[str]:
        nonlocal place
        while place < len(lines):
            place += 1
            yield lines[place - 1]

    reader = csv.reader(following(), delimiter=delimiter, strict=True)
    while place < len(lines):
        begins, row, why = place, list[str](), ""
        try:
            row = next(reader, row)
        except csv.Error as error:
            why = _quote_fault(error, lines=place - begins)
        width = width or len(row)
        # no quote opens in the lines that a cell took: each of them is read at most twice
        if place - begins > 1 and all(each.count(delimiter) >= width - 1 > 0 for each in lines[begins:place]):
            why = f"a quote opens a cell that takes the rows in the {_counted(place - begins - 1)} after it"
        if why:
            yield begins + 1, (), why
            place = begins + 1
            reader = csv.reader(following(), delimiter=delimiter, strict=True)
        elif row:
            yield begins + 1, tuple(map(str.strip, row)), _nul_fault(row) if has_nul else ""


def _quote_fault(error: csv.Error, *, lines: int) -> str:
    most = csv.field_size_limit()
    if "limit" in str(error):
        what = "a quote opens a cell of" if lines > 1 else "a cell has"
        return f"{what} more than {most} characters"
    if "end of data" in str(error):
        taken = "" if lines == 1 else f", so it takes the {_counted(lines - 1)} after it"
        return f"a quote opens a cell and does not close{taken}"
    return "a quote closes before its cell ends" if lines == 1 else f"a quote opens a cell of {lines} lines"


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def _nul_fault(row: Sequence[str]) -> str:
    if NUL not in "".join(row):
        return ""
    return "a NUL character; of text in UTF-16, data.dialect.encoding: utf-16 says so"


def _by_line(text: str, delimiter: str) -> Iterator[Found]:
    """One line is one row, so that no quote, byte or length in it reaches another row."""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip(" \r" if delimiter.isspace() else None)
        if not line.strip():
            continue
        row, why = list[str](), ""
        try:
            row = next(csv.reader((stripped,), delimiter=delimiter, strict=True))
        except csv.Error as error:
            why = _quote_fault(error, lines=1)
            with suppress(csv.Error):
                row = next(csv.reader((stripped,), delimiter=delimiter))
        yield number, tuple(map(str.strip, row)), why or _nul_fault(row)
