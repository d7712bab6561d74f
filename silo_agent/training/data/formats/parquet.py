"""Tables as Parquet: one file, or a folder of them with the same columns, read in the order of their names.

N = rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.formats.tables import (
    Cells,
    StoredTable,
    Table,
    check_own_headings,
    identity,
    own_columns,
    raw_data,
    renamed,
    stored_columns,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.training.data.private import every
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings

BATCH = 64  # rows that are made records at once
VALUE_BYTES = 8
TEXT_TYPES = ("string", "large_string")
NUMBER, TEXT, EMPTY = "number", "text", "empty"
BEYOND = "<value out of range"  # pyarrow's text of a time that no calendar has


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`. Raises ConfigError as `stored`."""
    return raw_data(stored(settings, wanted_columns(settings, job)), settings, job)


def stored(settings: DataSettings, wanted: Sequence[str]) -> StoredTable:
    """Null and NaN are missing. Raises ConfigError for a file without the columns."""
    files = _Files(settings)
    read = _table(files, settings, wanted)
    return StoredTable(table=read, identities=_Rows(files), units=_units(files, settings))


def table(settings: DataSettings, wanted: Sequence[str] | None = None) -> Table:
    """The columns that are wanted, or all that a job can read. Raises ConfigError as `stored`."""
    files, problems = _Files(settings), Problems()
    if wanted is None:
        wanted = files.readable(problems)
    read = _table(files, settings, wanted)
    read.problems.take(problems)
    return read


def _table(files: _Files, settings: DataSettings, wanted: Sequence[str]) -> Table:
    problems = Problems()
    check_own_headings(str(settings.path), files.names, own_columns(settings))
    stored = stored_columns(str(settings.path), files.names, settings, wanted)
    read = files.read(stored)
    return Table(
        cells={name: files.cells(name, read, problems) for name in stored},
        rows=files.rows,
        place=files.place,
        problems=problems,
        values=settings.values,
    )


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `stored`."""
    files = _Files(settings)
    rows, units = _Rows(files), _units(files, settings)
    rows.tables  # noqa: B018  # raises here; `every` would say of each record that it cannot be read
    return Records(train=every(rows), units=units, columns=files.names)


class _Files:
    """Files of the same columns, of which only those are read that are wanted. Raises ConfigError."""

    def __init__(self, settings: DataSettings) -> None:
        self._path = required_path(settings)
        self._files = _opened(self._path)
        headings: list[str] = next(iter(self._files.values())).schema_arrow.names
        self.names = renamed(headings, settings, source=str(self._path))
        self._headings = dict(zip(self.names, headings, strict=True))
        counts = [file.metadata.num_rows for file in self._files.values()]
        self.rows: int = sum(counts)
        self.starts: list[int] = [0, *accumulate(counts)]

    def place(self, row: int) -> str:
        return f"{self._path}, record {row}"

    def readable(self, problems: Problems) -> list[str]:
        """Names of columns of numbers or texts; each other one is a problem."""
        found = []
        schema = next(iter(self._files.values())).schema_arrow
        for name, field in zip(self.names, schema, strict=True):
            try:
                _kind(field.type, f"{self._path}: column {name}")
                found.append(name)
            except ConfigError as error:
                problems.add(str(error))
        return found

    def read(self, names: Sequence[str]) -> list[Any]:
        """A table of those columns of each file. Raises ConfigError where they cannot be read or take too
        much memory."""
        import pyarrow

        wanted = list(dict.fromkeys(names))
        headings = [self._headings[name] for name in wanted]
        declared = sum(_declared_bytes(file.metadata, headings) for file in self._files.values())
        check_bytes(declared, source=self._path)
        tables = []
        for path, file in self._files.items():
            try:
                tables.append(file.read(headings).select(headings).rename_columns(wanted))
            except (OSError, pyarrow.ArrowException) as error:
                raise ConfigError(f"{path}: not a readable parquet file ({_cause(error)})") from error
        return tables

    def cells(self, name: str, tables: Sequence[Any], problems: Problems) -> Cells:
        """Of one column, file by file. Raises ConfigError for one that holds neither numbers nor texts, or
        another kind in one file than in another."""
        parts, first = list[Cells](), ("", "", "")
        for path, start, table in zip(self._files, self.starts, tables, strict=False):
            column = table[name]
            kind = _kind(column.type, f"{path}: column {name}")
            if kind != EMPTY:
                first = first if first[0] else (kind, path.name, str(column.type))
                if kind != first[0]:
                    raise ConfigError(
                        f"{path}: column {name} holds {column.type}, in {first[1]} it holds {first[2]}"
                    )
            if kind in (NUMBER, EMPTY):
                parts.append(np.asarray(column.cast("float64", safe=False).to_numpy(), np.float64))
                continue
            texts = _texts(column, f"{path}: column {name}")
            for row in (row for row, text in enumerate(texts) if text is None):
                where = f"{self.place(start + row)}, column {name}"
                what = f"expected a text, got {column.type} that cannot be read"
                problems.add(f"{where}: {what}", alike=f"{name}: {what}")
            parts.append(["" if text is None else text for text in texts])
        if first[0] in ("", NUMBER):
            return np.concatenate([np.zeros(0), *(np.asarray(part, np.float64) for part in parts)])
        return ["" if isinstance(part, np.ndarray) else text for part in parts for text in part]


def _cause(error: Exception) -> str:
    """Its type and first line."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def _declared_bytes(metadata: Any, names: Sequence[str]) -> int:
    """What the columns take in memory at least, where one number in the file stands for many rows."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return sum(
        max(column.total_uncompressed_size, VALUE_BYTES * column.num_values)
        for column in columns
        if column.path_in_schema in names or column.path_in_schema.partition(".")[0] in names
    )


class _Rows:
    """Each record, the whole row with all its columns: no choice of columns moves it to the hold-out, nor
    decides which rows of a unit are kept."""

    def __init__(self, files: _Files) -> None:
        self._files, self._batch, self._first = files, list[bytes](), 0

    def __len__(self) -> int:
        return self._files.rows

    @cached_property
    def tables(self) -> list[Any]:
        """All columns of each file. Raises ConfigError where they take too much memory."""
        return self._files.read(self._files.names)

    def __getitem__(self, place: int) -> bytes:
        if not 0 <= place - self._first < len(self._batch):
            self._first = place
            at = bisect_right(self._files.starts, place) - 1
            rows = self.tables[at].slice(place - self._files.starts[at], BATCH)
            columns = (_values(rows[name]) for name in self._files.names)
            self._batch = [identity(row) for row in zip(*columns, strict=True)]
        return self._batch[place - self._first]


def _units(files: _Files, settings: DataSettings) -> list[str | None] | None:
    if settings.unit is None:
        return None
    check_own_headings(str(settings.path), files.names, unit_column(settings))
    tables = files.read([settings.unit])
    return units_of((value for table in tables for value in _values(table[settings.unit])), settings)


def _opened(path: Path) -> dict[Path, Any]:
    """Raises ConfigError where one is no Parquet file or has other columns."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise ConfigError("data.format: parquet needs pyarrow: pip install '.[tables]'") from None
    from pyarrow.parquet import ParquetFile

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ConfigError(f"data.path: {path} holds no file *.parquet")
    opened: dict[Path, Any] = {}
    for each in paths:
        try:
            schema = ParquetFile(each, memory_map=True).schema_arrow
            # a text that stands for many rows is read once
            texts = [field.name for field in schema if str(field.type) in TEXT_TYPES]
            opened[each] = ParquetFile(each, memory_map=True, read_dictionary=texts)
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"{each}: not a readable parquet file ({_cause(error)})") from error
        names, expected = schema.names, opened[paths[0]].schema_arrow.names
        if sorted(names) != sorted(expected):
            differ = ", ".join(sorted({*names} ^ {*expected})) or "one is there twice"
            raise ConfigError(f"{each}: its columns are not those of {paths[0].name}: {differ}")
    return opened


def _kind(type_: Any, what: str) -> str:
    """Columns of one kind go together. Raises ConfigError for one that holds neither numbers nor texts."""
    from pyarrow import types

    kind = type_.value_type if types.is_dictionary(type_) else type_
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return NUMBER
    if types.is_null(kind):
        return EMPTY
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return TEXT
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return str(kind)
    raise ConfigError(f"{what} holds {type_}, expected numbers or texts")


def _texts(column: Any, what: str) -> list[str | None]:
    """None: one that cannot be read. Of a dictionary each once, for however many rows it stands. Raises
    ConfigError where the whole column cannot be."""
    import pyarrow

    made: list[str | None] = []
    for chunk in column.chunks:
        stored = chunk.dictionary if hasattr(chunk, "dictionary") else chunk
        try:
            cells = stored if str(stored.type) in TEXT_TYPES else stored.cast("string")
        except pyarrow.ArrowException as error:
            raise ConfigError(f"{what} holds {column.type}: {_cause(error)}") from error
        is_null = cells.is_null().to_pylist()
        known = [
            "" if null else (None if text is None or text.startswith(BEYOND) else text.strip())
            for text, null in zip(_values(cells), is_null, strict=True)
        ]
        if stored is not chunk:
            known = ["" if place is None else known[place] for place in chunk.indices.to_pylist()]
        made += known
    return made


def _values(cells: Any) -> list[Any]:
    """Each by itself: one that Python has no value for (a text that is not UTF-8, a date after its last year)
    is missing, and none beside it."""
    try:
        values: list[Any] = cells.to_pylist()
    except Exception:  # what conversions raise is on no list
        return [_value(cell) for cell in cells]
    return values


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except Exception:
        return None
