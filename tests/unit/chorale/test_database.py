from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chorale.runtime import database as database_module
from chorale.runtime.database import Commit, Database
from crypto.errors import ConfigError

FIRST = (
    "CREATE TABLE budget (id INTEGER PRIMARY KEY, left INTEGER NOT NULL)",
    "CREATE TABLE spend (budget INTEGER NOT NULL REFERENCES budget (id))",
    "INSERT INTO budget VALUES (1, 1)",
)
PAGE_BYTES = 4096
SECOND = ("ALTER TABLE budget ADD COLUMN name TEXT", "UPDATE budget SET name = 'first'")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database(path, [FIRST])) as opened:
        yield opened


def left(database: Database) -> int:
    with database.transaction() as connection:
        return int(connection.execute("SELECT left FROM budget").fetchone()["left"])


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def reserve(database: Database, has_read: threading.Barrier) -> bool:
    """Take one unit if one is left: read, then write."""
    with database.transaction() as connection:
        (left,) = connection.execute("SELECT left FROM budget").fetchone()
        # without the lock both threads meet here, each with the old balance in hand
        with contextlib.suppress(threading.BrokenBarrierError):
            has_read.wait(timeout=0.5)
        if left < 1:
            return False
        connection.execute("UPDATE budget SET left = left - 1")
        return True


@pytest.mark.parametrize("connections", [1, 2])
def test_of_two_concurrent_reservations_of_the_last_unit_one_succeeds(
    database: Database, path: Path, connections: int
) -> None:
    """Two threads of one process share a connection; a command that runs next to the agent has its own."""
    with closing(Database(path, [FIRST])) as other:
        has_read = threading.Barrier(2)
        results: list[bool] = []
        threads = [
            threading.Thread(target=lambda used=used: results.append(reserve(used, has_read)))
            for used in (database, other if connections == 2 else database)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [False, True]


def test_commits_are_durable_and_references_are_kept(database: Database) -> None:
    with database.transaction() as connection:
        names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
        assert pragmas == ["wal", 2, 1, 0]
    with (
        pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"),
        database.transaction() as connection,
    ):
        connection.execute("INSERT INTO spend VALUES (2)")


def stop(connection: sqlite3.Connection) -> None:
    raise RuntimeError("stop")


def fill(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE large AS SELECT randomblob(1000000)")


def collide(connection: sqlite3.Connection) -> None:
    """SQLite rolls back by itself."""
    connection.execute("INSERT OR ROLLBACK INTO budget VALUES (1, 8)")


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (stop, RuntimeError, "stop"),
        (fill, sqlite3.OperationalError, "database or disk is full"),
        (collide, sqlite3.IntegrityError, "UNIQUE constraint failed"),
    ],
)
def test_a_failed_transaction_leaves_nothing_and_the_next_one_goes_on(
    database: Database, end: Callable[[sqlite3.Connection], None], error: type[Exception], message: str
) -> None:
    def spend_and_end() -> None:
        with database.transaction() as connection:
            connection.execute("UPDATE budget SET left = 7")
            end(connection)

    with database.transaction() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")  # a full disk
    with pytest.raises(error, match=message):
        spend_and_end()
    assert left(database) == 1


def test_who_waits_too_long_for_another_transaction_is_told(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    with closing(Database(path, [FIRST])) as other, database.transaction():
        for used in (database, other):  # a thread of this process, another process
            with pytest.raises(sqlite3.OperationalError, match="database is locked"), used.transaction():
                pass
        with pytest.raises(ConfigError, match="ledger.sqlite: database is locked"):
            Database(path, [FIRST])
    assert left(database) == 1


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes, much longer than the header of a database " * 10)
    with pytest.raises(ConfigError, match=r"notes.txt: file is not a database"):
        Database(tmp_path / "notes.txt", [FIRST])
    with pytest.raises(ConfigError, match="no such file or directory"):
        Database(tmp_path / "missing" / "ledger.sqlite", [FIRST])


def test_close_waits_for_the_transaction_that_a_thread_is_in(database: Database, path: Path) -> None:
    # Python 3.13 warns of a connection that is collected open: a worker of the agent had one out at its end
    closing_it = threading.Thread(target=database.close)
    with database.transaction() as connection:
        closing_it.start()
        closing_it.join(timeout=0.2)
        assert closing_it.is_alive()
        connection.execute("UPDATE budget SET left = 7")
    closing_it.join()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"), database.transaction():
        pass
    with closing(Database(path, [FIRST])) as again:
        assert left(again) == 7


@pytest.mark.parametrize("commit", Commit)
def test_a_thread_that_comes_after_the_close_holds_up_no_other(path: Path, commit: Commit) -> None:
    """The pragma after its transaction failed, too: it kept its turn, and who read next waited for ever."""
    database = Database(path, [FIRST])
    database.close()

    def read() -> None:
        with contextlib.suppress(sqlite3.ProgrammingError), database.reading() as connection:
            connection.execute("SELECT left FROM budget")

    with pytest.raises(sqlite3.ProgrammingError, match="closed database"), database.transaction(commit):
        pass
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(timeout=5)
    assert not reading.is_alive()


# versions


def test_a_file_is_brought_to_the_newest_version_and_keeps_its_rows(database: Database, path: Path) -> None:
    assert version(path) == 1
    with database.transaction() as connection:
        connection.execute("UPDATE budget SET left = 7")
    for _ in range(2):  # the second time there is nothing to do
        with closing(Database(path, [FIRST, SECOND])) as newer, newer.transaction() as connection:
            assert tuple(connection.execute("SELECT * FROM budget").fetchone()) == (1, 7, "first")
        assert version(path) == 2


def test_a_migration_that_breaks_off_leaves_the_version_before(database: Database, path: Path) -> None:
    broken = (*SECOND, "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(ConfigError, match="ledger.sqlite: no such table: nowhere"):
        Database(path, [FIRST, broken])
    assert version(path) == 1
    with closing(Database(path, [FIRST, SECOND])):
        assert version(path) == 2


def test_a_file_of_a_newer_release_is_refused_in_one_sentence(path: Path) -> None:
    Database(path, [FIRST, SECOND]).close()
    with pytest.raises(
        ConfigError,
        match=r"ledger.sqlite: expected a database of version 1 or older, got version 2: a newer release "
        r"wrote it$",
    ):
        Database(path, [FIRST])
    assert version(path) == 2


def test_two_that_open_an_older_file_at_once_migrate_it_once(database: Database, path: Path) -> None:
    barrier, opened = threading.Barrier(2), []

    def open_it() -> None:
        barrier.wait()
        opened.append(Database(path, [FIRST, SECOND]))

    threads = [threading.Thread(target=open_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [left(each) for each in opened] == [1, 1]
    for each in opened:
        each.close()


def test_only_a_file_that_erases_for_good_overwrites_what_is_deleted(path: Path) -> None:
    secret = b"share of a seed" * 10
    table = ("CREATE TABLE shares (share BLOB)",)
    for erases, is_found in ((False, True), (True, False)):
        path.unlink(missing_ok=True)
        with closing(Database(path, [table], erases_for_good=erases)) as database:
            with database.transaction() as connection:
                connection.execute("INSERT INTO shares VALUES (?)", (secret,))
            with database.transaction() as connection:
                connection.execute("DELETE FROM shares")
        assert (secret in path.read_bytes()) is is_found


def test_the_log_moves_into_the_file_where_nobody_waits_for_it(database: Database, path: Path) -> None:
    """That takes flushes of its own, which no commit of a session should wait for."""
    with database.transaction() as connection:
        connection.execute("CREATE TABLE page (content BLOB NOT NULL)")

    def write(pages: int, commit: Commit = Commit.FLUSHED) -> int:
        """The file's size afterwards."""
        with database.transaction(commit) as connection:
            connection.execute("INSERT INTO page VALUES (?)", (bytes(PAGE_BYTES * pages),))
        return path.stat().st_size

    before = path.stat().st_size
    assert write(database_module.QUIET_LOG_PAGES) == before
    moved = write(1, Commit.QUIET)
    assert moved > before + PAGE_BYTES * database_module.QUIET_LOG_PAGES
    assert write(1, Commit.QUIET) == moved  # the log is short again
    assert write(database_module.LOG_PAGES) > moved  # it does not grow for ever where none is quiet


def test_what_was_not_flushed_is_there_after_the_process_and_durable_with_the_next(
    database: Database, path: Path
) -> None:
    def synchronous() -> int:
        with database.transaction() as connection:
            (level,) = connection.execute("PRAGMA synchronous").fetchone()
        return int(level)

    with database.transaction(Commit.UNFLUSHED) as connection:
        connection.execute("CREATE TABLE stage (name TEXT NOT NULL)")
        (level,) = connection.execute("PRAGMA synchronous").fetchone()

    def break_off() -> None:
        with database.transaction(Commit.UNFLUSHED) as connection:
            connection.execute("INSERT INTO stage VALUES ('masked')")
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    assert (level, synchronous()) == (1, 2)  # normal; full again, whatever happened
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM stage").fetchone() == (0,)


def test_a_reader_waits_for_no_other_process_and_holds_none_up(database: Database, path: Path) -> None:
    with closing(Database(path, [FIRST])) as other:
        with other.transaction() as writing:
            writing.execute("UPDATE budget SET left = 5")
            with database.reading() as connection:
                found = connection.execute("SELECT left FROM budget").fetchone()["left"]
        assert found == 1  # as it was committed
        with database.reading() as connection, other.transaction() as writing:
            writing.execute("UPDATE budget SET left = 6")
        assert left(database) == 6


def test_a_file_that_is_opened_to_read_is_neither_made_nor_written(path: Path) -> None:
    with pytest.raises(ConfigError, match="unable to open database file"):
        Database(path, [FIRST], is_read_only=True)
    assert not path.exists()
    Database(path, [FIRST]).close()
    before = path.read_bytes()
    with closing(Database(path, [FIRST], is_read_only=True)) as database:
        with database.transaction() as connection:
            assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"), database.transaction() as connection:
            connection.execute("PRAGMA user_version = 9")
    with pytest.raises(
        ConfigError, match="expected a database of version 2, got version 1: the agent brings"
    ):
        Database(path, [FIRST, SECOND], is_read_only=True)
    assert path.read_bytes() == before
