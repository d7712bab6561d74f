"""Files that are either whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from crypto.errors import ConfigError

PRIVATE = 0o600  # keys, ledgers, models: of this user alone


def write_atomic(path: Path, data: bytes | Iterable[bytes], *, mode: int = PRIVATE) -> None:
    """Replace a file in one step: after a crash it holds the old bytes or the new ones, never part.

    An OSError names the file itself. Source: docs/protocol.md 10.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _write_synced(temporary, [data] if isinstance(data, bytes) else data, mode=mode)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise
    sync_directory(path.parent)


def read_limited(path: Path, max_bytes: int) -> bytes:
    """A file that a person named. Raises ConfigError if it is missing, unreadable or larger."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > max_bytes:
        raise ConfigError(f"{path}: expected at most {max_bytes} bytes, got more")
    return data


def sync_directory(directory: Path) -> None:
    """Make a rename or a new file in the directory survive power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, parts: Iterable[bytes], *, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
