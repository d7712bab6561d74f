"""A backup that somebody changed where it was kept, with digests that fit: nothing of it acts.

Its manifest is not signed, so what is in a backup is checked for what it could do.
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chorale.runtime import disk
from coordinator.storage import database_copy
from coordinator.storage import restore as restoring
from coordinator.storage.store import Store
from coordinator.storage.sum_files import SumFiles
from crypto.errors import ConfigError, LocalProtocolError
from crypto.session.messages import SignedBody
from tests.unit.coordinator.test_backup import Coordinator, backup, restore

DATABASE = "coordinator.sqlite"
RETYPED = """
    PRAGMA legacy_alter_table=ON;
    ALTER TABLE phases RENAME TO was;
    CREATE TABLE phases AS SELECT * FROM was;
    DROP TABLE was;
"""
ENDLESS = """
    PRAGMA legacy_alter_table=ON;
    ALTER TABLE jobs RENAME TO was;
    CREATE VIEW jobs AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
        SELECT x AS digest, CASE WHEN x = -1 THEN 'running' ELSE 'no' END AS status, x AS state_digest FROM c;
"""
AS_TEXT = """
    PRAGMA writable_schema=ON;
    UPDATE sqlite_schema SET sql = replace(sql, 'sequence INTEGER NOT NULL', 'sequence TEXT NOT NULL')
        WHERE name = 'phases';
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[bytes]:
    with closing(Coordinator(tmp_path / "hub")) as coordinator:
        coordinator.end(coordinator.begin(1), 1)
        coordinator.begin(2)
        yield backup(coordinator.directory)


def unpacked(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def changed(data: bytes, sql: str, folder: Path) -> bytes:
    """The backup with another database, and a manifest to which it fits."""
    files, path = unpacked(data), folder / "changed.sqlite"
    path.write_bytes(files[DATABASE])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.executescript(sql)
    files[DATABASE] = path.read_bytes()
    manifest = json.loads(files["manifest.json"])
    digest = hashlib.sha256(files[DATABASE]).hexdigest()
    manifest["files"][DATABASE] = {"bytes": len(files[DATABASE]), "sha256": digest}
    files["manifest.json"] = json.dumps(manifest).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def refused(data: bytes, directory: Path, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        restore(data, directory)
    assert list(directory.iterdir()) == [], "nothing is left of what was refused"


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        # files outside of the coordinator's directory were deleted: the number of a phase is in a file's name
        (
            RETYPED + "UPDATE phases SET sequence = '../../victim/*' WHERE round = 2",
            "the tables are not those",
        ),
        (AS_TEXT, "table phases has other columns than a coordinator makes"),
        ("UPDATE phases SET attempt = '1/../../../victim/x'", r"phases\.attempt holds what is not integer"),
        (
            "UPDATE jobs SET digest = 'text'; UPDATE phases SET job = 'text'",
            r"jobs\.digest holds what is not blob",
        ),
        # the coordinator remembered no roster any more
        (
            "CREATE TRIGGER t BEFORE INSERT ON rosters BEGIN SELECT RAISE(IGNORE); END",
            "trigger 't': the tables are not those that a coordinator makes",
        ),
        (ENDLESS, "the tables are not those that a coordinator makes"),  # restore did not end
        ("CREATE TABLE more (x)", "table 'more': the tables are not those that a coordinator makes"),
        ("UPDATE round_rosters SET version = 9; UPDATE phases SET job = x'00'", "foreign key"),
        ("PRAGMA user_version = -1", "got version -1"),
    ],
)
def test_database_that_a_coordinator_does_not_make_is_refused(
    made: bytes, sql: str, match: str, tmp_path: Path
) -> None:
    refused(changed(made, sql, tmp_path), tmp_path / "new", match)


def test_rows_come_back_and_nothing_of_the_schema(made: bytes, tmp_path: Path) -> None:
    """A check that a table of the backup holds is none of the restored table."""
    never = "replace(sql, 'body BLOB NOT NULL', 'body BLOB NOT NULL CHECK (version < 5)')"
    sql = f"PRAGMA writable_schema=ON; UPDATE sqlite_schema SET sql = {never} WHERE name = 'rosters'"

    restore(changed(made, sql, tmp_path), tmp_path / "new")

    with (
        closing(Store(tmp_path / "hub" / DATABASE)) as before,
        closing(Store(tmp_path / "new" / DATABASE)) as after,
    ):
        assert after.jobs() == before.jobs()
        (job,) = before.jobs()
        assert after.phases(job.digest) == before.phases(job.digest) != []
        assert after.rosters() == before.rosters() != []
        after.add_roster(5, SignedBody(body=b"r", signature=b"s"))
        assert after.newest_roster_version() == 5


def test_work_without_an_end_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_copy, "STEPS", 1000)
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"CREATE TABLE jobs (x); {ENDLESS}")
    with (
        database_copy.reading_untrusted(path) as reading,
        pytest.raises(sqlite3.OperationalError, match="interrupted"),
    ):
        reading.execute("SELECT max(digest) FROM jobs").fetchone()


def one_member(info: tarfile.TarInfo, content: bytes = b"abc", **options: str) -> bytes:
    out = io.BytesIO()
    info.size, info.pax_headers = len(content), options
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


SPARSE = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1"}


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("coordinator.sqlite", {**SPARSE, "GNU.sparse.size": str(1 << 30), "GNU.sparse.map": "0,3"}),
        ("coordinator.sqlite", {**SPARSE, "GNU.sparse.map": "a,b"}),
        ("coordinator.sqlite", {"size": "-512"}),
        (f"sums/{'9' * 300}-1.masked", {}),
    ],
    ids=["sparse", "letters in a sparse map", "a negative size", "300 digits"],
)
def test_members_that_no_backup_has_are_refused_in_a_sentence(
    name: str, headers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 kB of a sparse member wrote 1 GiB; the others ended in a ValueError and an OSError."""
    monkeypatch.setattr(restoring, "_take", lambda content, path: pytest.fail("it was written"))
    refused(one_member(tarfile.TarInfo(name), **headers), tmp_path / "new", "not a backup of a coordinator")


@pytest.mark.parametrize("has_room", [True, False])
def test_room_for_a_member_is_there_before_it_is_written(
    made: bytes, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_room:
        restore(made, tmp_path / "new")
        return
    monkeypatch.setattr(disk, "free_bytes", lambda directory: disk.MIN_FREE_BYTES)
    monkeypatch.setattr(restoring, "_take", lambda content, path: pytest.fail("it was written"))
    with pytest.raises(
        disk.NoRoom, match=r"backup\.tar: coordinator\.sqlite: expected \d+ bytes free on the disk of "
    ):
        restore(made, tmp_path / "new")


def test_files_of_a_sum_are_named_by_numbers_alone(tmp_path: Path) -> None:
    """`../victim/*` was a pattern of files that the end of a phase deleted."""
    SumFiles(tmp_path, sequence=1, attempt=1)
    for bad in ({"sequence": "../victim/*", "attempt": 1}, {"sequence": 1, "attempt": "1/../../x"}):
        with pytest.raises(LocalProtocolError, match="a phase's sequence and attempt are numbers"):
            SumFiles(tmp_path, **bad)  # type: ignore[arg-type]
