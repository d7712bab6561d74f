"""The audit log: JSON lines, each with the hash of the line before.

A change, removal or reordering of an entry breaks the chain behind it. Cutting off the end leaves a
sound chain, so what must not be cut off stands in a ledger too, and a database keeps the newest entry that
it knows of (observability/audit_head.py). `rotate` closes a file; the chain goes on in the next.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeAlias

from chorale.runtime.files import PRIVATE, sync_directory
from crypto.errors import ChoraleError, ConfigError, LocalProtocolError

Plain: TypeAlias = "str | int | float | bool | list[Plain] | tuple[Plain, ...] | dict[str, Plain] | None"

FIRST_PREVIOUS = "0" * 64
MAX_LINE_BYTES = 1 << 20
MAX_UNFLUSHED_BYTES = 1 << 16  # about 200 entries
MAX_HASH_BYTES = 32  # digests and fingerprints; longer bytes would be payload
CONTINUED = "audit.continued"  # the first entry of a file behind another one
RESERVED = ("entry", "time", "event", "previous")


class AuditInUse(ChoraleError):
    """Another process writes the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry: its number (0 before the first) and the hash of its line."""

    entry: int
    line_hash: str


class AuditLog:
    """Appends entries; one process at a time holds a log.

    Raises ConfigError if the file is in use or its last entry is damaged. What a crash left of the last
    lines is taken away from the first one on that is not whole, and an entry says so.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._unflushed_bytes = 0
        self._file = _open_alone(path)
        try:
            torn_bytes = _cut_torn_end(self._file)
            self._head = _read_head(self._file, path)
            if self._head.entry == 0:
                self._continue_closed()
        except BaseException:
            self._file.close()
            raise
        if torn_bytes:
            self.append("audit.torn_line_removed", bytes_removed=torn_bytes)

    @property
    def head(self) -> Head:
        return self._head

    def append(self, event: str, **fields: Plain | bytes) -> Head:
        """Write an entry and wait until it is on disk, with all before it.

        Raises LocalProtocolError for a field that an audit log must not hold.
        """
        with self._lock:
            head = self._write(event, fields)
            self._flush()
            return head

    def append_unflushed(self, event: str, **fields: Plain | bytes) -> Head:
        """Write an entry that another process sees at once and a power loss may take, until `flush`.

        For what a ledger tells again, or what nobody misses. Raises as `append`.
        """
        with self._lock:
            head = self._write(event, fields)
            if self._unflushed_bytes > MAX_UNFLUSHED_BYTES:
                self._flush()
            return head

    def flush(self) -> None:
        """Wait until every entry is on disk."""
        with self._lock:
            self._flush()

    def rotate(self) -> Path:
        """Close the file and go on in a new one. The closed file's name says which entries it holds.

        Raises ConfigError where a file of that name is there, and for a log without entries; OSError.
        """
        with self._lock:
            if self._head.entry == 0:
                raise ConfigError(f"{self._path}: expected entries, got none")
            closed = self._path.with_name(
                f"{self._path.stem}.{_first_entry(self._path)}-{self._head.entry}{self._path.suffix}"
            )
            if closed.exists():
                raise ConfigError(f"{closed}: expected no such file, it would be replaced")
            os.fsync(self._file.fileno())
            self._unflushed_bytes = 0
            self._path.rename(closed)
            before, self._file = self._file, _open_alone(self._path)
            before.close()
        self.append(CONTINUED, closed=closed.name)
        return closed

    def close(self) -> None:
        with self._lock:
            self._flush()
            self._file.close()

    def _continue_closed(self) -> None:
        """A crash between two files left none behind the newest closed one. Raises ConfigError."""
        for _, last, file in sorted(_closed_beside(self._path), key=lambda each: each[1])[-1:]:
            with file.open("rb") as before:
                self._head = _read_head(before, file)
            if self._head.entry != last:
                raise ConfigError(f"{file}: expected its last entry to be {last}, got {self._head.entry}")
            self.append(CONTINUED, closed=file.name)

    def _write(self, event: str, fields: Mapping[str, Plain | bytes]) -> Head:
        values: dict[str, Plain] = {}
        for name, value in fields.items():
            if name in RESERVED:
                raise LocalProtocolError(f"audit: the log itself writes {name}")
            if isinstance(value, bytes) and len(value) > MAX_HASH_BYTES:
                expected = f"expected at most {MAX_HASH_BYTES} bytes, got {len(value)}"
                raise LocalProtocolError(f"audit: {name}: {expected}")
            values[name] = value.hex() if isinstance(value, bytes) else value
        number = self._head.entry + 1
        stamps = {"entry": number, "time": self._clock().isoformat(), "event": event}
        entry = stamps | values | {"previous": self._head.line_hash}
        line = json.dumps(entry, separators=(",", ":"), allow_nan=True).encode() + b"\n"
        if len(line) >= MAX_LINE_BYTES:
            raise LocalProtocolError(f"audit: an entry holds less than {MAX_LINE_BYTES} bytes")
        _append_whole(self._file, line)
        self._unflushed_bytes += len(line)
        self._head = Head(entry=number, line_hash=hashlib.sha256(line).hexdigest())
        return self._head

    def _flush(self) -> None:
        if self._unflushed_bytes:
            os.fsync(self._file.fileno())
            self._unflushed_bytes = 0


def chain_of(path: Path) -> list[Path]:
    """A log and the closed files beside it that it continues without a gap, oldest first."""
    by_last = {last: (first, file) for first, last, file in _closed_beside(path)}
    files, first = [path], _first_entry(path)
    while first - 1 in by_last:
        first, file = by_last.pop(first - 1)
        files.insert(0, file)
    return files


def _closed_beside(path: Path) -> list[tuple[int, int, Path]]:
    """First and last entry of each file that was closed, by its name, in order."""
    name = re.compile(rf"{re.escape(path.stem)}\.(\d+)-(\d+){re.escape(path.suffix)}")
    found = [(name.fullmatch(file.name), file) for file in path.parent.glob("*")]
    return sorted((int(match[1]), int(match[2]), file) for match, file in found if match)


def _first_entry(path: Path) -> int:
    """Its number; 1 where there is none, or none that can be read."""
    try:
        with path.open("rb") as file:
            return int(read_line(file.readline(MAX_LINE_BYTES))["entry"])
    except (OSError, ConfigError):
        return 1


def verify_file(path: Path) -> int:
    """Number of entries, all of them chained, with those of closed files beside it. Raises ConfigError that
    names the first bad one."""
    return sum(1 for _ in read_entries(path))


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries in order, each checked against the one before. Raises ConfigError."""
    for _, entry in read_lines(path):
        yield entry


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The same, each with its line."""
    return read_chain(chain_of(path))


def read_chain(files: Iterable[Path]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a log's files, in order. The first file may be one that continues another.

    Raises ConfigError, also where a file between two is missing.
    """
    before: tuple[Path, Head] | None = None
    for path in files:
        try:
            with path.open("rb") as file:
                lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
                head: Head | None = None
                for line in lines:
                    head = head or _beginning(path, line, before)
                    yield line, _checked(line, head=head)
                    head = Head(entry=head.entry + 1, line_hash=hashlib.sha256(line).hexdigest())
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        if head is not None:
            before = path, head


def _beginning(path: Path, line: bytes, before: tuple[Path, Head] | None) -> Head:
    """What a file's first line has to follow. Raises ConfigError."""
    try:
        first = read_line(line)
    except ConfigError:
        return Head(entry=0, line_hash=FIRST_PREVIOUS)  # it is refused as any other line
    if before is None:
        if first["event"] == CONTINUED and first["entry"] > 1:
            return Head(entry=first["entry"] - 1, line_hash=first["previous"])
        return Head(entry=0, line_hash=FIRST_PREVIOUS)
    former, head = before
    if first["entry"] > head.entry + 1:
        raise ConfigError(
            f"{path}: a file is missing before it: entries {head.entry + 1} to {first['entry'] - 1}"
        )
    if first["entry"] <= head.entry:
        raise ConfigError(f"{path}: begins at entry {first['entry']}, and {former} ends at {head.entry}")
    return head


def is_in_use(path: Path) -> bool:
    """Whether a process that runs now writes this log. Raises ConfigError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return False


def _open_alone(path: Path) -> IO[bytes]:
    is_new = not path.exists()
    try:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE), "r+b")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise AuditInUse(f"{path}: the audit log is in use by another process") from None
    if is_new:
        sync_directory(path.parent)
    return file


def _append_whole(file: IO[bytes], line: bytes) -> None:
    """All of the line or, where the disk is full, none of it."""
    handle = file.fileno()
    size = os.fstat(handle).st_size
    try:
        written = os.write(handle, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, size)
        raise


def _cut_torn_end(file: IO[bytes]) -> int:
    """Drop the last lines from the first one on that is not whole; return how many bytes that were.

    Of lines that were not flushed a power loss may leave a later one: a part that never came to disk reads
    as zeros, which no line holds.
    """
    size = file.seek(0, os.SEEK_END)
    start = file.seek(max(0, size - MAX_LINE_BYTES))
    written, _, _ = file.read().partition(b"\0")
    whole = start + written.rfind(b"\n") + 1
    if whole == size:
        return 0
    file.truncate(whole)
    file.flush()
    os.fsync(file.fileno())
    return size - whole


def _read_head(file: IO[bytes], path: Path) -> Head:
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return Head(entry=0, line_hash=FIRST_PREVIOUS)
    file.seek(max(0, size - MAX_LINE_BYTES))
    line = file.read().splitlines(keepends=True)[-1]
    try:
        return Head(entry=int(json.loads(line)["entry"]), line_hash=hashlib.sha256(line).hexdigest())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ConfigError(f"{path}: the last entry of the audit log is damaged") from None


def read_line(line: bytes) -> dict[str, Any]:
    """The entry that a line holds; whether the chain holds is not looked at. Raises ConfigError."""
    if not line.endswith(b"\n"):
        raise ConfigError("cut short")
    try:
        entry = json.loads(line)
        kinds = type(entry["entry"]), type(entry["event"]), type(entry["previous"])
    except (ValueError, KeyError, TypeError, RecursionError):
        kinds = None
    if kinds != (int, str, str):
        raise ConfigError("not an entry of an audit log")
    return dict(entry)


def _checked(line: bytes, *, head: Head) -> dict[str, Any]:
    """The entry of a line. head: what it has to follow."""
    number, previous = head.entry + 1, head.line_hash
    try:
        entry = read_line(line)
    except ConfigError as error:
        raise ConfigError(f"entry {number}: {error}") from None
    if entry["entry"] != number:
        raise ConfigError(f"entry {number}: expected this number, got {entry['entry']}")
    if entry["previous"] != previous:
        raise ConfigError(f"entry {number}: the entry before it was changed, or is missing")
    return entry
