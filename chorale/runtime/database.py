"""SQLite as both stores use it: durable at every commit, one writer at a time, a schema with a number.

Local disk only: neither a network file system nor a virtual machine's snapshot keeps what a ledger
promises. Source: docs/protocol.md 10.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from chorale.runtime.files import PRIVATE
from crypto.errors import ConfigError

BUSY_SECONDS = 30.0  # how long a transaction waits for another one to end
# Pages of the log from which on a commit also moves it into the file, with two flushes more: SQLite's own
# default, 4 MB, at a quiet one, and more where none came for long.
QUIET_LOG_PAGES, LOG_PAGES = 1000, 4000

Migration: TypeAlias = Sequence[str]  # statements that bring a file from one version to the next


class Commit(Enum):
    """When what a transaction wrote is durable; pragmas around it."""

    FLUSHED = ("synchronous=FULL",)  # once it is left
    QUIET = (f"wal_autocheckpoint={QUIET_LOG_PAGES}", f"wal_autocheckpoint={LOG_PAGES}")  # too; nobody waits
    UNFLUSHED = ("synchronous=NORMAL", "synchronous=FULL")  # with a later one: it survives the process alone


class Database:
    """One file on one connection: the threads of a process take turns, other processes wait for the lock.

    What SQLite raises (sqlite3.Error) names no value that was bound to a statement: rows hold shares, and
    errors reach logs.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        erases_for_good: bool = False,
        is_read_only: bool = False,
    ) -> None:
        """Open the file, or make it, and bring it to the newest version.

        erases_for_good: what is deleted is overwritten. is_read_only: it is opened as it is, and a write
        raises sqlite3.OperationalError. Raises ConfigError if the file cannot be opened, is no database or
        was written by a newer release; to read it alone, also by an older one.
        """
        self._turn = threading.Lock()
        self._begin = "BEGIN" if is_read_only else "BEGIN IMMEDIATE"
        try:
            if not is_read_only:  # SQLite would let all users read it; its log gets the same mode
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE))
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={'ro' if is_read_only else 'rwc'}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,  # else the driver begins transactions, and only before a write
                check_same_thread=False,  # `_turn` lets one thread at a time use it
            )
            try:
                self._connection.row_factory = sqlite3.Row
                if is_read_only:
                    self._check_version(path, newest=len(migrations), oldest=len(migrations))
                    return
                for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                    self._connection.execute(f"PRAGMA {pragma}")
                self._connection.execute(f"PRAGMA secure_delete={erases_for_good:d}")
                self._connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
                self._migrate(path, migrations)
            except BaseException:
                self.close()
                raise
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: {str(error).lower()}") from error
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error

    def close(self) -> None:
        """Waits for the transaction that a thread is in; there is none afterwards."""
        with self._turn:
            self._connection.close()

    @contextmanager
    def transaction(self, commit: Commit = Commit.FLUSHED) -> Iterator[sqlite3.Connection]:
        """What is written in it is there once it is left, and was never written where it raises.

        It holds the write lock from its first statement to its end. commit: when it is durable. Raises
        sqlite3.OperationalError where another one holds the lock for BUSY_SECONDS.
        """
        if not self._turn.acquire(timeout=BUSY_SECONDS):
            raise sqlite3.OperationalError("database is locked")
        try:
            with self._durable(commit):
                # a plain BEGIN takes no lock, so two budget reservations could both read the old balance
                self._connection.execute(self._begin)
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # SQLite rolls back by itself where a disk fails
                        self._connection.execute("ROLLBACK")
                    raise
        finally:
            self._turn.release()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For one statement that writes nothing: what was committed last, without the lock of a transaction.

        What a write depends on is read in that write's own transaction.
        """
        with self._turn:
            yield self._connection

    @contextmanager
    def _durable(self, commit: Commit) -> Iterator[None]:
        try:
            for pragma in commit.value[:1]:
                self._connection.execute(f"PRAGMA {pragma}")
            yield
        finally:
            for pragma in commit.value[1:]:
                self._connection.execute(f"PRAGMA {pragma}")

    def _migrate(self, path: Path, migrations: Sequence[Migration]) -> None:
        """Each version in one transaction with its number, which another process may have reached first."""
        for version, statements in enumerate(migrations, start=1):
            with self.transaction() as connection:
                if self._check_version(path, newest=len(migrations)) < version:
                    for statement in statements:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {version}")

    def _check_version(self, path: Path, *, newest: int, oldest: int = 0) -> int:
        """The file's version. Raises ConfigError."""
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        if found > newest:
            raise ConfigError(
                f"{path}: expected a database of version {newest} or older, "
                f"got version {found}: a newer release wrote it"
            )
        if found < oldest:
            raise ConfigError(
                f"{path}: expected a database of version {oldest}, got version {found}: the agent brings it "
                "up to date when it starts"
            )
        return int(found)
