"""A coordinator's directory from a backup: all of it is checked before any of it is in its place.

Source: docs/protocol.md 10.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from chorale.runtime import disk
from chorale.runtime.audit import AuditInUse, AuditLog
from chorale.runtime.files import PRIVATE, sync_directory
from coordinator.storage.backup import AUDIT, DATABASE, MANIFEST, FileEntry, Manifest, needed_files
from coordinator.storage.database_copy import copy_rows, reading_untrusted
from coordinator.storage.schema import MIGRATIONS
from crypto.errors import ConfigError

PIECE_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20  # about 300,000 files
STAGING = ".restoring-"
ALLOWED = re.compile(
    rf"{re.escape(DATABASE)}|{re.escape(AUDIT)}|audit\.[0-9]{{1,19}}-[0-9]{{1,19}}\.jsonl"
    r"|checkpoints/[0-9a-f]{64}/[0-9a-f]{64}\.safetensors"
    r"|sums/[0-9]{1,19}-[0-9]{1,19}\.(masked|session|tagged|untagged)"
)
# what tarfile raises for headers that it cannot read
UNREADABLE = (tarfile.TarError, ValueError, OverflowError, RecursionError)
NOT_CONTENT = ("lost+found",)  # what a new volume holds


def restore_backup(
    source: IO[bytes], *, name: str, directory: Path, federation: str, now: datetime, sets_aside: bool
) -> Manifest:
    """Bring back what the backup holds. name: of the backup, for errors.

    sets_aside: what the directory holds goes to a folder `replaced-<time>` in it; nothing is overwritten.
    Raises ConfigError for a backup that is damaged, cut short, of another federation or of a newer release,
    and for a directory that is not empty; AuditInUse where a coordinator runs on it; NoRoom; OSError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(directory):
        before = [path for path in directory.iterdir() if path.name not in NOT_CONTENT]
        if before and not sets_aside:
            refused = ConfigError(
                f"{directory}: expected an empty directory, got {before[0].name}: nothing is overwritten"
            )
            refused.add_note("--set-aside moves what is there to a folder of its own")
            raise refused
        staging = directory / f"{STAGING}{secrets.token_hex(4)}"
        staging.mkdir(mode=0o700)
        try:
            manifest = _unpack(source, name, staging)
            _check(manifest, name, staging, federation)
            if before:
                aside = directory / f"replaced-{now:%Y%m%dT%H%M%SZ}"
                aside.mkdir(mode=0o700)
                for path in before:
                    path.rename(aside / path.name)
            # the database last: without it no coordinator takes the rest for a whole directory
            for path in sorted(staging.iterdir(), key=lambda path: path.name == DATABASE):
                path.rename(directory / path.name)
            sync_directory(directory)
        except OSError as error:
            if disk.is_full(error, directory):
                raise disk.NoRoom(f"{name}: it finds no room: {disk.full_in_words(directory)}") from error
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    with closing(AuditLog(directory / AUDIT)) as audit:
        audit.append("restored", federation=federation, backup_made=manifest.made.isoformat())
    return manifest


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No coordinator runs on the directory: it would hold the lock of its audit log."""
    path = directory / AUDIT
    if not path.exists():
        yield
        return
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AuditInUse(f"{directory}: a coordinator runs on it; stop it first") from None
        yield


def _unpack(source: IO[bytes], name: str, staging: Path) -> Manifest:
    """Every file of the backup, in the staging folder and found to be what the manifest says."""
    found: dict[str, FileEntry] = {}
    manifest = b""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                # a sparse member says in a few bytes how many zeros to write
                is_plain = content is not None and not member.issparse() and member.size >= 0
                if manifest or content is None or not is_plain or member.name in found:
                    raise ConfigError(f"{name}: not a backup of a coordinator: {member.name[:200]!r}")
                if member.name == MANIFEST and member.size <= MAX_MANIFEST_BYTES:
                    manifest = content.read()
                elif ALLOWED.fullmatch(member.name):
                    disk.check_room(staging, member.size, what=f"{name}: {member.name}")
                    found[member.name] = _take(content, staging / member.name)
                else:
                    raise ConfigError(f"{name}: not a backup of a coordinator: {member.name[:200]!r}")
    except UNREADABLE as error:
        raise ConfigError(f"{name}: not a backup of a coordinator, damaged or cut short: {error}") from None
    if not manifest:
        raise ConfigError(f"{name}: cut short, or not a backup of a coordinator: it has no {MANIFEST}")
    try:
        parsed = Manifest.model_validate_json(manifest)
    except ValidationError:
        raise ConfigError(f"{name}: {MANIFEST} is damaged or of a newer release") from None
    for file in sorted(parsed.files.keys() | found.keys()):
        if parsed.files.get(file) != found.get(file):
            raise ConfigError(f"{name}: damaged: {file} is not the file that was backed up")
    return parsed


def _take(content: IO[bytes], path: Path) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    hashed, size_bytes = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(handle, "wb") as file:
        while data := content.read(PIECE_BYTES):
            hashed.update(data)
            size_bytes += len(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return FileEntry(bytes=size_bytes, sha256=hashed.hexdigest())


def _check(manifest: Manifest, name: str, staging: Path, federation: str) -> None:
    """Raises ConfigError unless this coordinator can go on from what was unpacked."""
    if manifest.federation != federation:
        raise ConfigError(f"{name}: expected a backup of federation {federation}, got {manifest.federation}")
    if DATABASE not in manifest.files:
        raise ConfigError(f"{name}: it holds no {DATABASE}")
    try:
        missing = sorted(_take_over(manifest, name, staging) - manifest.files.keys())
    except sqlite3.Error as error:
        if disk.is_full(error, staging):
            raise disk.NoRoom(f"{name}: {DATABASE} finds no room: {disk.full_in_words(staging)}") from error
        raise ConfigError(f"{name}: {DATABASE}: {str(error).lower()}") from None
    if missing:
        raise ConfigError(f"{name}: it lacks {missing[0]}, from which a job goes on")


def _take_over(manifest: Manifest, name: str, staging: Path) -> set[str]:
    """Put a database with the same rows, and a schema of our own, in the place of the one that was unpacked.

    Returns what its jobs go on from. Raises ConfigError, sqlite3.Error.
    """
    fresh = staging / f"{DATABASE}.new"
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
    with reading_untrusted(staging / DATABASE) as source:
        (version,) = source.execute("PRAGMA user_version").fetchone()
        if not 0 < version <= len(MIGRATIONS):
            raise ConfigError(
                f"{name}: expected a database of version {len(MIGRATIONS)} or older, got version "
                f"{version}: release {manifest.release} wrote it, which is newer than this one"
            )
        try:
            copy_rows(source, fresh, MIGRATIONS[:version])
        except ConfigError as error:
            raise ConfigError(f"{name}: {DATABASE}: {error}") from None
    fresh.rename(staging / DATABASE)
    with closing(sqlite3.connect(staging / DATABASE)) as connection:
        return needed_files(connection)
