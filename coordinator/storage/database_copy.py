"""The rows of a database that somebody may have changed, copied into tables of our own making.

A schema is code: its triggers, views and checks would run in the coordinator. So none of it is taken over.
Source: docs/protocol.md 10.11.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from chorale.runtime.database import Database, Migration
from crypto.errors import ConfigError

# what a column holds, by its declared type
STORED = {
    "INTEGER": "integer",
    "FLOAT": "real",
    "BLOB": "blob",
    "VARCHAR": "text",
    "TEXT": "text",
    "JSON": "text",
}
STEPS = 1_000_000  # of SQLite's machine, between two looks at how many there were
MIN_LOOKS, BYTES_PER_LOOK = 100, 10_000  # an honest copy takes fewer than 10 steps a byte


@contextmanager
def reading_untrusted(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as it is, without what its schema could do.

    Work without an end raises sqlite3.OperationalError.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        looks, allowed = itertools.count(), MIN_LOOKS + path.stat().st_size // BYTES_PER_LOOK
        connection.set_progress_handler(lambda: next(looks) >= allowed, STEPS)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "ignore_check_constraints=ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection


def copy_rows(source: sqlite3.Connection, target: Path, migrations: Sequence[Migration]) -> None:
    """Into a new database that the migrations make. source: of `reading_untrusted`.

    Raises ConfigError for other tables than they make, and for values of another type than their column's;
    sqlite3.Error.
    """
    with closing(Database(target, migrations)) as fresh, fresh.transaction() as connection:
        _check_tables(_objects(source), _objects(connection))
        tables = sorted(str(name) for kind, name, *_ in _objects(connection) if kind == "table")
        for table in tables:
            if _columns(source, table) != _columns(connection, table):
                raise ConfigError(f"table {table} has other columns than a coordinator makes")
        (found,) = source.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ConfigError(f"damaged: {found[:200]!r}")
        connection.execute("PRAGMA defer_foreign_keys=ON")
        for table in tables:
            _copy_table(source, connection, table)


def _check_tables(found: set[tuple[object, ...]], expected: set[tuple[object, ...]]) -> None:
    if found != expected:
        kind, name, *_ = min(found ^ expected, key=str)
        raise ConfigError(f"{kind} {str(name)[:200]!r}: the tables are not those that a coordinator makes")


def _objects(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """The rootpage of a virtual table is 0."""
    rows = connection.execute("SELECT type, name, tbl_name, rootpage > 0 FROM sqlite_schema")
    return {tuple(row) for row in rows}


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in connection.execute(f"PRAGMA table_xinfo({table})")]


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    declared = {str(name): str(kind) for _, name, kind, *_ in _columns(target, table)}
    names, marks = ", ".join(declared), ", ".join("?" * len(declared))
    rows = source.execute(f"SELECT {names} FROM {table}")
    target.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
    for name, kind in declared.items():
        # NOT NULL is for the table to refuse
        others = f"SELECT count(*) FROM {table} WHERE typeof({name}) NOT IN (?, 'null')"
        (count,) = target.execute(others, (STORED[kind],)).fetchone()
        if count:
            raise ConfigError(f"{table}.{name} holds what is not {STORED[kind]}")
