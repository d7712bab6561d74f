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
from silo_agent.data.base import RawData, Records, required_path
from silo_agent.data.formats.tables import (
    Cells,
    Table,
    check_headings,
    identity,
    raw_data,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.data.private import every
from silo_agent.data.settings import DataSettings


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`; null and NaN are missing. Raises ConfigError for a file without the columns."""
    read, names, source = *_read(required_path(settings)), str(settings.path)
    wanted = wanted_columns(settings, job)
    check_headings(source, names, (*settings.missing, *wanted, *unit_column(settings)))
    table = Table(
        cells={name: _cells(read[name], f"{source}: column {name}") for name in wanted},
        rows=read.num_rows,
        place=lambda row: f"{source}, record {row}",
    )
    return raw_data(table, settings, job, identities=_Rows(read, names), units=_units(read, names, settings))


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `load`."""
    read, names = _read(required_path(settings))
    return Records(train=every(_Rows(read, names)), units=_units(read, names, settings), columns=names)


class _Rows:
    """Each record, the whole row with all its columns: no choice of columns moves it to the hold-out, nor
    decides which rows of a unit are kept."""

    def __init__(self, read: Any, names: Sequence[str]) -> None:
        self._read, self._names = read, names

    def __len__(self) -> int:
        return int(self._read.num_rows)

    def __getitem__(self, place: int) -> bytes:
        return self._all[place]

    @cached_property
    def _all(self) -> list[bytes]:
        columns = (self._read[name].to_pylist() for name in self._names)
        return [identity(row) for row in zip(*columns, strict=True)]


def _units(read: Any, names: Sequence[str], settings: DataSettings) -> list[str | None] | None:
    if settings.unit is None:
        return None
    check_headings(str(settings.path), names, (settings.unit,))
    return units_of(read[settings.unit].to_pylist(), settings)


def _read(path: Path) -> tuple[Any, list[str]]:
    """The whole table and the names of its columns. Raises ConfigError."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise ConfigError("data.format: parquet needs pyarrow: pip install '.[tables]'") from None
    files, names = _opened(path)
    try:
        return pyarrow.concat_tables([file.read(names) for file in files]), names
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path}: not readable parquet files of the same columns") from error


def _opened(path: Path) -> tuple[list[Any], list[str]]:
    """The files and the names of their columns. Raises ConfigError where one is no Parquet file."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ConfigError(f"data.path: {path} holds no file *.parquet")
    opened = []
    for each in paths:
        try:
            opened.append(ParquetFile(each, memory_map=True))
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"{each}: not a readable parquet file") from error
        names, first = opened[-1].schema_arrow.names, opened[0].schema_arrow.names
        if names != first:
            raise ConfigError(f"{each}: its columns are not those of {paths[0].name}")
    return opened, first


def _cells(column: Any, what: str) -> Cells:
    """Raises ConfigError for a column that holds neither numbers nor texts."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast("float64", safe=False).to_numpy(), np.float64)
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind):
        texts = column.cast("string").to_pylist()
        return ["" if text is None else text.strip() for text in texts]
    raise ConfigError(f"{what} holds {kind}, expected numbers or texts")
