"""How much room a directory's disk has, and the message where it has none."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from crypto.errors import ChoraleError

# Less is no room: SQLite's log alone grows by 4 MB before it is moved into its file.
MIN_FREE_BYTES = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)


class NoRoom(ChoraleError):
    """A disk has no room for what was asked."""


def free_bytes(directory: Path) -> int:
    """What this user may still write there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def size_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_blocks * found.f_frsize


def has_room(directory: Path) -> bool:
    return free_bytes(directory) >= MIN_FREE_BYTES


def check_room(directory: Path, needed_bytes: int, *, what: str) -> None:
    """Raises NoRoom, which says what needs how much, and where."""
    free, needed_bytes = free_bytes(directory), needed_bytes + MIN_FREE_BYTES
    if free < needed_bytes:
        raise NoRoom(f"{what}: expected {needed_bytes} bytes free on the disk of {directory}, got {free}")


def is_full(error: BaseException, directory: Path) -> bool:
    """Whether the error tells of the directory's full disk, for which SQLite has several words."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL or not has_room(directory)
    return isinstance(error, OSError) and error.errno in FULL


def full_in_words(directory: Path) -> str:
    return (
        f"the disk of {directory} is full, {free_bytes(directory)} of {size_bytes(directory)} bytes are free"
    )
