"""Tables of a database, through SQLAlchemy: a whole table, or what a query of the silo's own settings gives.

Nothing of a job reaches the database: the statement stands in the settings, and the columns of its result
are looked up by name here.

N = rows.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from chorale.runtime.files import read_limited
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records
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
    text_of,
    unit_column,
    units_of,
    wanted_columns,
)
from silo_agent.training.data.settings import DatabaseSettings, DataSettings

MAX_URL_BYTES = 64 * 1024
CAUSE_LENGTH = 120
CHECKED_BYTES = 1 << 22  # come in between two checks


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """As `tables.raw_data`. Raises ConfigError as `stored`."""
    return raw_data(stored(settings, wanted_columns(settings, job)), settings, job)


def stored(settings: DataSettings, wanted: Sequence[str]) -> StoredTable:
    """NULL is missing. Raises ConfigError for a database without table or columns."""
    names, rows = _sorted(settings)
    units = None
    if settings.unit is not None:
        check_own_headings(_source(settings), names, own_columns(settings))
        at = names.index(settings.unit)
        units = units_of([row[at] for row in rows], settings)
    read = _table(settings, names, rows, wanted)
    return StoredTable(table=read, identities=tuple(map(identity, rows)), units=units)


def table(settings: DataSettings, wanted: Sequence[str] | None = None) -> Table:
    """The columns that are wanted, or all. Raises ConfigError as `stored`."""
    names, rows = _sorted(settings)
    return _table(settings, names, rows, names if wanted is None else wanted)


def _source(settings: DataSettings) -> str:
    assert settings.database is not None  # DataSettings refuses the format without it
    return f"data.database: {settings.database.what}"


def _sorted(settings: DataSettings) -> tuple[list[str], Sequence[tuple[Any, ...]]]:
    """A database gives rows in any order, and no record may change sides between two jobs."""
    assert settings.database is not None
    names, rows = _read(settings.database)
    return renamed(names, settings, source=_source(settings)), sorted(rows, key=identity)


def _table(
    settings: DataSettings, names: list[str], rows: Sequence[tuple[Any, ...]], wanted: Sequence[str]
) -> Table:
    source = _source(settings)
    check_own_headings(source, names, own_columns(settings))
    stored = stored_columns(source, names, settings, wanted)
    return Table(
        values=settings.values,
        cells={
            name: _cells([row[at] for row in rows])
            for name, at in zip(stored, map(names.index, stored), strict=True)
        },
        rows=len(rows),
        place=lambda row: f"{source}, record {row} by its texts",
    )


def records(settings: DataSettings) -> Records:
    """Raises ConfigError as `stored`."""
    assert settings.database is not None
    names, rows = _sorted(settings)
    check_own_headings(_source(settings), names, unit_column(settings))
    units = None
    if settings.unit is not None:
        units = units_of((row[names.index(settings.unit)] for row in rows), settings)
    return Records(train=map(identity, rows), units=units, columns=names)


def _read(database: DatabaseSettings) -> tuple[list[str], Sequence[tuple[Any, ...]]]:
    """Names of the columns, and all rows. Raises ConfigError that shows neither the URL's password nor a
    value that a driver quotes."""
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise ConfigError("data.format: sql needs SQLAlchemy: pip install '.[tables]'") from None
    try:
        url = sqlalchemy.make_url(_url(database))
    except sqlalchemy.exc.ArgumentError:
        raise ConfigError(f"{database.where}: expected a URL such as postgresql+psycopg://...") from None
    if database.query is not None:
        statement: Any = sqlalchemy.text(database.query)
    else:
        schema, _, table = (database.table or "").rpartition(".")
        named = sqlalchemy.table(table, schema=schema or None)
        statement = sqlalchemy.select(sqlalchemy.text("*")).select_from(named)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect().execution_options(stream_results=True) as connection:  # ends without a commit
            driver: Any = connection.connection.driver_connection
            if hasattr(driver, "text_factory"):  # SQLite's: else one text that is not UTF-8 ends the reading
                driver.text_factory = _decoded
            found = connection.execute(statement)
            return list(found.keys()), _rows(found, f"data.database: {database.what}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{database.where}: {url.drivername} needs the driver {error.name}") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        at = f"{url.drivername} on {url.host}" if url.host else url.drivername
        kind = ": ".join(filter(None, (type(error).__name__, _cause(error))))
        raise ConfigError(f"data.database: {database.what} cannot be read ({at}: {kind})") from None


def _cause(error: Exception) -> str:
    """The first line of what the driver says, without quoted texts and numbers: they may be a record's."""
    said = [*str(getattr(error, "orig", None) or "").splitlines(), ""][0]
    return re.sub(r"""(["'`]).*?(?:\1|$)|[0-9]+""", "...", said)[:CAUSE_LENGTH]


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _rows(found: Iterable[Any], source: str) -> list[tuple[Any, ...]]:
    """Raises ConfigError for more than fits in memory, as soon as so much has come."""
    rows, taken_bytes, checked_bytes = [], 0, 0
    for row in map(tuple, found):
        rows.append(row)
        taken_bytes += sys.getsizeof(row) + sum(map(sys.getsizeof, row))
        if taken_bytes > checked_bytes + CHECKED_BYTES:
            checked_bytes = taken_bytes
            check_bytes(taken_bytes, source=source)
    return rows


def _url(database: DatabaseSettings) -> str:
    if database.url_file is not None:
        return read_limited(database.url_file, MAX_URL_BYTES).decode("utf-8", "replace").strip()
    url = os.environ.get(database.url_env or "")
    if url is None:
        raise ConfigError(f"{database.where}: the environment has no such variable")
    return url


def _cells(values: list[Any]) -> Cells:
    """Each cell by itself: a text beside it changes how no number is read."""
    if all(value is None or isinstance(value, int | float | Decimal) for value in values):
        return np.array([_number(value) for value in values], np.float64)
    return [_text(value) for value in values]


def _text(value: Any) -> str:
    """What `Table.texts` makes of the same cell in a column of numbers."""
    if not isinstance(value, int | float | Decimal):
        return text_of(value)
    number = _number(value)
    return "" if math.isnan(number) else text_of(number)


def _number(value: float | Decimal | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except (OverflowError, ValueError):  # a whole number beyond floats; a Decimal's signaling NaN
        return math.nan
