"""SQLite as both stores use it: durable at every commit, and one writer at a time.

Local disk only: neither a network file system nor a virtual machine's snapshot keeps what a ledger
promises. Source: docs/protocol.md 10.
"""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection as SqliteConnection

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError

from crypto.errors import ConfigError

BUSY_SECONDS = 30.0  # how long a transaction waits for another one to end


def open_database(path: Path) -> Engine:
    """An engine whose every transaction holds the write lock from its first statement.

    Raises ConfigError if the file cannot be opened or is no database.
    """
    url = URL.create("sqlite", database=str(path))
    # an error that reaches a log names the statement, never what was bound to it: rows hold shares
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin_immediate)
    try:
        with engine.begin():
            pass
    except DatabaseError as error:
        engine.dispose()
        raise ConfigError(f"{path}: {str(error.orig).lower()}") from error
    return engine


def close_database(engine: Engine) -> None:
    """Close every connection: at once those that lie ready, and one that a thread has when it comes back."""
    event.listen(engine.pool, "checkin", _close)
    engine.dispose()


def _close(connection: SqliteConnection | None, _record: object) -> None:
    if connection is not None:
        connection.close()


def _prepare(connection: SqliteConnection, _record: object) -> None:
    # the driver would begin transactions by itself, and only before a write
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    # a plain BEGIN takes no lock, so two budget reservations could both read the old balance
    connection.exec_driver_sql("BEGIN IMMEDIATE")
