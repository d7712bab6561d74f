from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from chorale.runtime.database import close_database, open_database
from crypto.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    engine = open_database(path)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE budget (id INTEGER PRIMARY KEY, left INTEGER NOT NULL)"))
        connection.execute(text("CREATE TABLE spend (budget INTEGER NOT NULL REFERENCES budget (id))"))
        connection.execute(text("INSERT INTO budget VALUES (1, 1)"))
    engine.dispose()
    return path


def reserve(engine: Engine, has_read: threading.Barrier) -> bool:
    """Take one unit if one is left: read, then write."""
    with engine.begin() as connection:
        left = connection.execute(text("SELECT left FROM budget")).scalar_one()
        # without the lock both threads meet here, each with the old balance in hand
        with contextlib.suppress(threading.BrokenBarrierError):
            has_read.wait(timeout=0.5)
        if left < 1:
            return False
        connection.execute(text("UPDATE budget SET left = left - 1"))
        return True


def test_of_two_concurrent_reservations_of_the_last_unit_one_succeeds(path: Path) -> None:
    engine = open_database(path)
    has_read = threading.Barrier(2)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(reserve(engine, has_read))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    engine.dispose()


def test_commits_are_durable_and_references_are_kept(path: Path) -> None:
    engine = open_database(path)
    with engine.begin() as connection:
        pragmas = [
            connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
        assert pragmas == ["wal", 2, 1]
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), engine.begin() as connection:
        connection.execute(text("INSERT INTO spend VALUES (2)"))
    engine.dispose()


def test_a_failed_transaction_leaves_nothing(path: Path) -> None:
    def spend_and_stop() -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE budget SET left = 7"))
            raise RuntimeError("stop")

    engine = open_database(path)
    with pytest.raises(RuntimeError, match="stop"):
        spend_and_stop()
    with engine.begin() as connection:
        assert connection.execute(text("SELECT left FROM budget")).scalar_one() == 1
    engine.dispose()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes, much longer than the header of a database " * 10)
    with pytest.raises(ConfigError, match=r"notes.txt: file is not a database"):
        open_database(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="unable to open database file"):
        open_database(tmp_path / "missing" / "ledger.sqlite")


def test_a_connection_that_is_out_when_the_database_closes_is_closed_when_it_comes_back(path: Path) -> None:
    # Python 3.13 warns of a connection that is collected open: a worker of the agent had one out at its end
    engine = open_database(path)
    with engine.connect() as late, engine.connect() as early:
        drivers = [each.connection.driver_connection for each in (early, late)]
        early.close()
        close_database(engine)
        assert drivers[1] is not None
        drivers[1].execute("SELECT 1")
    for driver in drivers:
        assert driver is not None
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            driver.execute("SELECT 1")
