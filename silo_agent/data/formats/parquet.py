"""Tables as Parquet: one file, or a folder of them with the same columns, read in the order of their names.

N = rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import RawData, required_path
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
from silo_agent.data.settings import DataSettings


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`; null and NaN are missing. Raises ConfigError for a file without the columns."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise ConfigError("data.format: parquet needs pyarrow: pip install '.[tables]'") from None
    files, names = _opened(required_path(settings))
    source = str(settings.path)
    wanted = wanted_columns(settings, job)
    check_headings(source, names, (*settings.missing, *wanted, *unit_column(settings)))
    # a private job's record is the whole row, so that no choice of columns moves it to the hold-out; nor may
    # one decide which rows of a unit are kept
    reads_all = job.privacy is not None or settings.unit is not None
    try:
        read = pyarrow.concat_tables([file.read(names if reads_all else wanted) for file in files])
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{source}: not readable parquet files of the same columns") from error
    table = Table(
        cells={name: _cells(read[name], f"{source}: column {name}") for name in wanted},
        rows=read.num_rows,
        place=lambda row: f"{source}, record {row}",
    )
    identities = None
    if reads_all:
        rows = zip(*(read[name].to_pylist() for name in names), strict=True)
        identities = tuple(map(identity, rows))
    units = None if settings.unit is None else units_of(read[settings.unit].to_pylist(), settings)
    return raw_data(table, settings, job, identities=identities, units=units)


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
