"""Files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import TypeAlias

from crypto.errors import ConfigError

PRIVATE = 0o600  # keys, ledgers, models: of this user alone

Part: TypeAlias = bytes | memoryview


def write_atomic(path: Path, data: bytes | Iterable[Part], *, mode: int = PRIVATE) -> None:
    """Replace a file in one step: after a crash it holds the old bytes or the new ones, never part.

    An OSError names the file itself. Source: docs/protocol.md 10.
    """
    parts = [data] if isinstance(data, bytes) else data
    _replace(path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp"), parts, lambda: path, mode=mode)


def make_private(directory: Path, *, known_by: str) -> None:
    """A process's own folder, made where it is not there: other users get at nothing in it.

    known_by: a file of the folder once the process used it. A group may enter where the folder has the setgid
    bit, as on a volume of Kubernetes. Raises ConfigError for one that others may enter and that somebody else
    uses or owns, and OSError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(directory.stat().st_mode)
    is_own = (directory / known_by).exists() or not os.listdir(directory)
    kept = 0o2770 if mode & stat.S_ISGID else 0o700
    if mode & ~kept and is_own:
        with suppress(PermissionError):  # another user's
            directory.chmod(mode & kept)
            mode &= kept
    if mode & 0o007:
        raise ConfigError(
            f"{directory}: other users can enter it (mode {mode:04o}): run chmod o= {directory}, or name a "
            "folder of its own"
        )


def check_folder(folder: Path, *, field: str) -> None:
    """Raises ConfigError where files cannot be written into a folder, or it cannot be made. Nothing stays.

    field: what names the folder, for the message.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    if not there.is_dir():
        raise ConfigError(f"{field}: {there} is a file, expected a folder")
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()  # permissions alone do not tell
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"{field}: {there} cannot be written to: {why}") from None


def write_together(files: Mapping[Path, Iterable[Part]], *, mode: int = PRIVATE) -> None:
    """Write files of one directory, each in one step, and make all of them durable with one flush of it.

    None has its name before all are written. An OSError names the file itself.
    """
    temporaries = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for path in files}
    with ExitStack() as written:
        for path, parts in files.items():
            written.enter_context(_named(temporaries[path], partial(Path, path)))
            _write_synced(temporaries[path], parts, mode=mode)
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    (directory,) = {path.parent for path in files}
    sync_directory(directory)


def write_hashed(directory: Path, parts: Iterable[Part], *, suffix: str, mode: int = PRIVATE) -> bytes:
    """Write a file named by the SHA-256 of its bytes, in one step; returns that digest.

    The parts pass once: each is hashed and written, and none is kept. Source: docs/protocol.md 10.
    """
    hashed = hashlib.sha256()

    def passing() -> Iterator[Part]:
        for part in parts:
            hashed.update(part)
            yield part

    temporary = directory / f".{secrets.token_hex(8)}{suffix}.tmp"
    _replace(temporary, passing(), lambda: directory / f"{hashed.hexdigest()}{suffix}", mode=mode)
    return hashed.digest()


def write_all(file: RawIOBase, data: Part) -> None:
    """All of the bytes, or an OSError: a disk that gets full takes a part before it refuses."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def read_limited(
    path: Path, max_bytes: int, *, check: Callable[[Path, os.stat_result], None] = lambda _, __: None
) -> bytes:
    """A file that a person named. Raises ConfigError if it is missing, unreadable or larger.

    check: of the file that is open, before it is read.
    """
    try:
        with path.open("rb") as file:
            check(path, os.fstat(file.fileno()))
            data = file.read(max_bytes + 1)
    except OSError as error:
        refused = ConfigError(f"{path}: {(error.strerror or str(error)).lower()}")
        if isinstance(error, FileNotFoundError) and not path.is_absolute():
            refused.add_note(f"paths are relative to the folder the command runs in, here {Path.cwd()}")
        raise refused from error
    if len(data) > max_bytes:
        raise ConfigError(f"{path}: expected at most {max_bytes} bytes, got more")
    return data


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file is replaced or written, also behind a link; None while it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def sync_directory(directory: Path) -> None:
    """Make a rename or a new file in the directory survive power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(temporary: Path, parts: Iterable[Part], path: Callable[[], Path], *, mode: int) -> None:
    """Write, sync, rename. path: called when all is written, for it may name the file by its bytes."""
    with _named(temporary, path):
        _write_synced(temporary, parts, mode=mode)
        os.replace(temporary, path())
    sync_directory(temporary.parent)


def _write_synced(path: Path, parts: Iterable[Part], *, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _named(temporary: Path, path: Callable[[], Path]) -> Iterator[None]:
    """Where writing fails the temporary file is gone, and an error of it names the file that it was to be."""
    try:
        yield
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename, error.filename2 = str(path()), None
        raise
