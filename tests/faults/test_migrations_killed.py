"""kill -9 before each statement that makes a database and brings it to a made-up next version, at both sides.

What is found then is the file as one of the versions has it, whole, and the next start goes on from there.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chorale.runtime.database import Database, Migration
from coordinator.storage.schema import MIGRATIONS as STORE
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.ledger import MIGRATIONS as LEDGER

NEXT: Migration = ("CREATE TABLE of_tomorrow (x)", "INSERT INTO of_tomorrow VALUES (1)")
SIDES = pytest.mark.parametrize("tables", [STORE, LEDGER], ids=["coordinator", "silo"])


def connection_that_dies(before_statement: int) -> Callable[..., sqlite3.Connection]:
    """sqlite3.connect, whose process is killed before that statement."""
    statements = count()
    connect = sqlite3.connect

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if next(statements) == before_statement:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, *arguments)

    return lambda *arguments, **named: connect(*arguments, factory=Dying, **named)


def is_killed_in_migration(path: Path, migrations: tuple[Migration, ...], before_statement: int) -> bool:
    """A process opens the file; whether it died before it had done so."""
    process = os.fork()
    if process == 0:
        try:
            sqlite3.connect = connection_that_dies(before_statement)
            Database(path, migrations)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


def contents(path: Path) -> list[str]:
    """Every table and row, and the version."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return [f"version {version}", *connection.iterdump()]


@SIDES
def test_a_migration_that_is_killed_anywhere_leaves_one_version_whole(
    tmp_path: Path, tables: tuple[Migration, ...]
) -> None:
    migrations = (*tables, NEXT)
    whole = []
    for version in range(len(migrations) + 1):
        path = tmp_path / f"version-{version}.sqlite"
        Database(path, migrations[:version]).close()
        whole.append(contents(path))
    assert len(set(map(tuple, whole))) == len(whole)

    found = set()
    for statement in count():
        path = tmp_path / f"killed-{statement}.sqlite"
        if not is_killed_in_migration(path, migrations, statement):
            break
        found.add(whole.index(contents(path)))  # ValueError: neither of the versions
        Database(path, migrations).close()
        assert contents(path) == whole[-1], f"killed before statement {statement}"

    assert found == set(range(len(migrations))), "a kill was seen in each version"
    assert statement > sum(len(each) for each in migrations)


@SIDES
def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path, tables: tuple[Migration, ...]) -> None:
    path = tmp_path / "newer.sqlite"
    Database(path, (*tables, NEXT)).close()
    before = contents(path)
    with pytest.raises(
        ConfigError, match=f"expected a database of version {len(tables)} or older, got version"
    ):
        Database(path, tables)
    assert contents(path) == before
