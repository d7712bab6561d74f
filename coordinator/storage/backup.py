"""A backup: what a coordinator would find on its disk if it had been killed at that moment, in one tar file.

The coordinator goes on meanwhile. The backup holds models and sums, and no key.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict

from chorale.runtime import disk
from chorale.runtime.audit import chain_of
from chorale.runtime.database import Database
from chorale.runtime.files import PRIVATE, write_atomic
from coordinator.phase_machine import ENDED, PhaseState
from coordinator.storage.checkpoints import SUFFIX
from coordinator.storage.schema import MIGRATIONS
from crypto.errors import ChoraleError, ConfigError

DATABASE, AUDIT, MANIFEST = "coordinator.sqlite", "audit.jsonl", "manifest.json"
CHECKPOINTS, SUMS = "checkpoints", "sums"
NOTE = "newest-backup"  # when it was made; no part of one
TRIES = 1000  # to open all files between two commits: opening takes a millisecond or two


class BackupFailed(ChoraleError):
    """The coordinator's files could not be taken as they were at one moment."""


class FileEntry(BaseModel):
    """sha256: in hexadecimal digits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The last file of a backup: what the others are. A backup without it was cut short.

    made: the moment that the backup shows. schema_version: of the database. release: that wrote it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    federation: str
    made: datetime
    release: str
    schema_version: int
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenFile:
    """A file that stays readable though its name may go."""

    name: str
    file: IO[bytes]
    size_bytes: int


def write_backup(directory: Path, *, federation: str, now: datetime, out: IO[bytes]) -> Manifest:
    """Write the backup of a coordinator's directory, whether or not a coordinator runs on it.

    Raises ConfigError where there is no database of this release, BackupFailed where files are missing or
    the database is damaged, and OSError.
    """
    if not (directory / DATABASE).exists():
        raise ConfigError(
            f"{directory / DATABASE}: there is no such database, so there is nothing to back up"
        )
    with ExitStack() as closing_all:
        folder = Path(closing_all.enter_context(tempfile.TemporaryDirectory(prefix="chorale-backup-")))
        try:
            files = closing_all.enter_context(_open_at_one_moment(directory, folder / DATABASE))
            _check_complete(folder / DATABASE, {each.name for each in files})
        except sqlite3.Error as error:
            full = disk.is_full(error, folder)
            why = f"for a copy of it {disk.full_in_words(folder)}" if full else str(error).lower()
            raise BackupFailed(f"{directory / DATABASE}: {why}") from error
        files = [*_open(folder, folder / DATABASE, closing_all), *files]
        with tarfile.open(fileobj=out, mode="w|") as archive:
            manifest = Manifest(
                federation=federation,
                made=now,
                release=_release(),
                schema_version=len(MIGRATIONS),
                files={each.name: _add(archive, each, now) for each in files},
            )
            content = manifest.model_dump_json(indent=2).encode()
            _add(archive, _OpenFile(name=MANIFEST, file=BytesIO(content), size_bytes=len(content)), now)
    return manifest


def note_backup(directory: Path, made: datetime) -> None:
    """For the metrics of the coordinator that runs on the directory. Raises OSError."""
    write_atomic(directory / NOTE, f"{made.timestamp():.0f}\n".encode())


def backup_made(directory: Path) -> float:
    """When the newest backup of a directory was made, in Unix seconds; 0 where none was."""
    try:
        return float((directory / NOTE).read_text())
    except (OSError, ValueError):
        return 0.0


def needed_files(connection: sqlite3.Connection) -> set[str]:
    """What the unfinished jobs of a database go on from, as names in a backup."""
    unfinished = "status IN ('running', 'paused')"
    found = {
        checkpoint_name(job, state)
        for job, state in connection.execute(f"SELECT digest, state_digest FROM jobs WHERE {unfinished}")
    }
    rows = connection.execute(
        "SELECT phases.job, phases.state_digest, phases.sequence, attempt, phases.state"
        f" FROM phases JOIN jobs ON phases.job = jobs.digest WHERE jobs.{unfinished}"
    )
    needed = {PhaseState.UNMASK: ("masked", "session"), PhaseState.REVEALED: ("session",)}
    for job, state_digest, sequence, attempt, state in rows:
        if state in ENDED:
            continue
        found.add(checkpoint_name(job, state_digest))
        found |= {f"{SUMS}/{sequence}-{attempt}.{kind}" for kind in needed.get(state, ())}
    return found


def checkpoint_name(job: bytes, state_digest: bytes) -> str:
    return f"{CHECKPOINTS}/{job.hex()}/{state_digest.hex()}{SUFFIX}"


@contextmanager
def _open_at_one_moment(directory: Path, copy: Path) -> Iterator[list[_OpenFile]]:
    """The files of the directory, open, and the database as it was when they were, at `copy`.

    A file goes only after the commit that needs it no more. So where nothing was committed between the
    beginning of the read transaction and the last file's opening, all that the transaction names is open.
    """
    path = directory / DATABASE
    with (
        closing(Database(path, MIGRATIONS, is_read_only=True)) as live,
        closing(Database(path, MIGRATIONS, is_read_only=True)) as pinned,
        closing(sqlite3.connect(copy)) as target,
    ):
        for _ in range(TRIES):
            with ExitStack() as held, pinned.transaction() as snapshot:
                commits = _data_version(live)
                # before the database: as after a crash, entries may be missing and none is too many
                logs = chain_of(directory / AUDIT)
                audit = [each for log in logs for each in _open(directory, log, held)]
                snapshot.execute("SELECT count(*) FROM jobs").fetchone()  # the read begins here
                found = [*audit, *_open_files(directory, held)]
                if _data_version(live) != commits:
                    continue
                snapshot.backup(target)
                target.commit()
                held = held.pop_all()
                break
        else:
            raise BackupFailed(f"{path}: it changed {TRIES} times while the files were opened; try it again")
        with held:
            yield found


def _data_version(database: Database) -> int:
    """Another number after each commit of another connection."""
    with database.reading() as connection:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def _open_files(directory: Path, held: ExitStack) -> list[_OpenFile]:
    paths = [*directory.glob(f"{CHECKPOINTS}/*/[!.]*{SUFFIX}"), *directory.glob(f"{SUMS}/[!.]*")]
    return [each for path in sorted(paths) for each in _open(directory, path, held)]


def _open(directory: Path, path: Path, held: ExitStack) -> list[_OpenFile]:
    """One, or none where it went since it was listed."""
    try:
        file = held.enter_context(path.open("rb"))
    except FileNotFoundError:
        return []
    size_bytes = os.fstat(file.fileno()).st_size
    return [_OpenFile(name=path.relative_to(directory).as_posix(), file=file, size_bytes=size_bytes)]


def _check_complete(database: Path, names: set[str]) -> None:
    """Raises BackupFailed for a damaged database, or one whose jobs go on from a file that is not there."""
    with closing(sqlite3.connect(database)) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise BackupFailed(f"{DATABASE}: damaged, so it is not backed up: {found}")
        missing = sorted(needed_files(connection) - names)
    if missing:
        raise BackupFailed(
            f"{missing[0]}: a job that has not ended goes on from this file, and it is not here"
        )


class _Hashing:
    """A file as tarfile reads it, hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hashed = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hashed.update(data)
        return data


def _add(archive: tarfile.TarFile, source: _OpenFile, now: datetime) -> FileEntry:
    info = tarfile.TarInfo(source.name)
    info.size, info.mode, info.mtime = source.size_bytes, PRIVATE, int(now.timestamp())
    passing = _Hashing(source.file)
    archive.addfile(info, passing)
    return FileEntry(bytes=source.size_bytes, sha256=passing.hashed.hexdigest())


def _release() -> str:
    try:
        return metadata.version("chorale")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
