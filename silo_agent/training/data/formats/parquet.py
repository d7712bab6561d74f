"""Tables as Parquet: one file, or a folder of them with the same columns, read in the order of their names.

N = rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, required_path
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.formats.tables import (
    Cells,
    Table,
    check_headings,
    check_own_headings,
    identity,
    raw_data,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.training.data.private import every
from silo_agent.training.data.settings import DataSettings

BATCH = 64  # rows that are made records at once
VALUE_BYTES = 8
TEXT_TYPES = ("string", "large_string")


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`; null and NaN are missing. Raises ConfigError for a file without the columns."""
    files, source = _Files(required_path(settings)), str(settings.path)
    wanted = wanted_columns(settings, job)
    check_own_headings(source, files.names, (*settings.missing, *unit_column(settings)))
    check_headings(source, files.names, wanted)
    read = files.read(wanted)
    table = Table(
        cells={name: _cells(read[name], f"{source}: column {name}") for name in wanted},
        rows=read.num_rows,
        place=lambda row: f"{source}, record {row}",
    )
    return raw_data(table, settings, job, identities=_Rows(files), units=_units(files, settings))


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `load`."""
    files = _Files(required_path(settings))
    rows, units = _Rows(files), _units(files, settings)
    rows.table  # noqa: B018  # raises here; `every` would say of each record that it cannot be read
    return Records(train=every(rows), units=units, columns=files.names)


class _Files:
    """Files of the same columns, of which only those are read that are wanted. Raises ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path, self._files = path, _opened(path)
        self.names: list[str] = self._files[0].schema_arrow.names
        self.rows: int = sum(file.metadata.num_rows for file in self._files)

    def read(self, names: Sequence[str]) -> Any:
        """A table of those columns. Raises ConfigError where they cannot be read or take too much memory."""
        import pyarrow

        check_bytes(sum(_declared_bytes(file.metadata, names) for file in self._files), source=self._path)
        try:
            return pyarrow.concat_tables([file.read(list(names)) for file in self._files])
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"{self._path}: not readable parquet files of the same columns") from error


def _declared_bytes(metadata: Any, names: Sequence[str]) -> int:
    """What the columns take in memory at least, where one number in the file stands for many rows."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return sum(
        max(column.total_uncompressed_size, VALUE_BYTES * column.num_values)
        for column in columns
        if column.path_in_schema.partition(".")[0] in names
    )


class _Rows:
    """Each record, the whole row with all its columns: no choice of columns moves it to the hold-out, nor
    decides which rows of a unit are kept."""

    def __init__(self, files: _Files) -> None:
        self._files, self._batch, self._first = files, list[bytes](), 0

    def __len__(self) -> int:
        return self._files.rows

    @cached_property
    def table(self) -> Any:
        """All columns. Raises ConfigError where they take too much memory."""
        return self._files.read(self._files.names)

    def __getitem__(self, place: int) -> bytes:
        if not 0 <= place - self._first < len(self._batch):
            self._first = place
            rows = self.table.slice(place, BATCH)
            columns = (_values(rows[name]) for name in self._files.names)
            self._batch = [identity(row) for row in zip(*columns, strict=True)]
        return self._batch[place - self._first]


def _units(files: _Files, settings: DataSettings) -> list[str | None] | None:
    if settings.unit is None:
        return None
    check_own_headings(str(settings.path), files.names, unit_column(settings))
    return units_of(_values(files.read([settings.unit])[settings.unit]), settings)


def _opened(path: Path) -> list[Any]:
    """Raises ConfigError where one is no Parquet file or has other columns."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise ConfigError("data.format: parquet needs pyarrow: pip install '.[tables]'") from None
    from pyarrow.parquet import ParquetFile

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ConfigError(f"data.path: {path} holds no file *.parquet")
    opened: list[Any] = []
    for each in paths:
        try:
            schema = ParquetFile(each, memory_map=True).schema_arrow
            # a text that stands for many rows is read once
            texts = [field.name for field in schema if str(field.type) in TEXT_TYPES]
            opened.append(ParquetFile(each, memory_map=True, read_dictionary=texts))
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"{each}: not a readable parquet file") from error
        if opened[-1].schema_arrow.names != opened[0].schema_arrow.names:
            raise ConfigError(f"{each}: its columns are not those of {paths[0].name}")
    return opened


def _cells(column: Any, what: str) -> Cells:
    """Raises ConfigError for a column that holds neither numbers nor texts."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast("float64", safe=False).to_numpy(), np.float64)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind):
        return [text for chunk in column.chunks for text in _texts(chunk)]
    raise ConfigError(f"{what} holds {kind}, expected numbers or texts")


def _texts(chunk: Any) -> list[str]:
    """Of a dictionary each once, for however many rows it stands."""
    if hasattr(chunk, "dictionary"):
        known = _texts(chunk.dictionary)
        return ["" if place is None else known[place] for place in chunk.indices.to_pylist()]
    return ["" if text is None else text.strip() for text in _values(chunk.cast("string"))]


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
