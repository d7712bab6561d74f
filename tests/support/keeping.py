"""`python -m tests.support.keeping <chorale arguments>`: the product, with nothing it stores ever lost.

A file is linked into a folder before it is removed, replaced or emptied, every statement for SQLite is
written down with its values, and so is every path that was opened for writing. What C code alone writes
and removes is not seen: that is SQLite's own log, whose content comes from those statements.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from chorale.transport import tls

KEEP = "CHORALE_TEST_KEEP"  # folder for what is kept
STATEMENTS = "statements.sql"
OPENED = "opened.txt"  # paths opened for writing, one a line
WRITING = os.O_WRONLY | os.O_RDWR


class Keeper:
    """An audit hook (PEP 578): it is called for every removal, renaming and opening before it happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._opened = os.open(folder / OPENED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._inside = threading.local()
        self._takes: dict[str, Callable[..., None]] = {
            "os.remove": lambda path, folder: self._keep(_path(path, folder)),
            "os.rename": lambda _, target, __, folder: self._keep(_path(target, folder)),
            "os.truncate": lambda path, _: self._keep(_path(path), copies=True),
            "open": self._on_open,
            "sqlite3.connect": self._note,
        }

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        take = self._takes.get(event)
        if take is None or getattr(self._inside, "is_busy", False):
            return
        self._inside.is_busy = True
        try:
            take(*arguments)
        finally:
            self._inside.is_busy = False

    def _on_open(self, path: Any, _mode: str | None, flags: int) -> None:
        if flags & WRITING and not isinstance(path, int):
            self._note(path)
            if flags & os.O_TRUNC:
                self._keep(_path(path), copies=True)

    def _note(self, path: Any) -> None:
        os.write(self._opened, os.fsencode(path) + b"\n")

    def _keep(self, path: Path, *, copies: bool = False) -> None:
        """A link holds the bytes of a file that goes; one that stays and is emptied must be copied."""
        if path.is_file():
            kept = self._folder / f"{next(self._numbers):05d}-{path.parent.name}-{path.name}"
            if copies:
                kept.write_bytes(path.read_bytes())
            else:
                os.link(path, kept)


def install(folder: Path) -> None:
    statements = (folder / STATEMENTS).open("ab", buffering=0)

    class Recorded(sqlite3.Connection):
        def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
            cells = values.values() if isinstance(values, Mapping) else values
            written = [cell if isinstance(cell, bytes) else repr(cell).encode() for cell in cells]
            statements.write(b"\n".join([statement.encode(), *written, b""]))
            return super().execute(statement, values)

    sqlite3.connect = partial(sqlite3.connect, factory=Recorded)  # type: ignore[assignment]
    sys.addaudithook(Keeper(folder).on_event)


def _path(path: Any, folder: int = -1) -> Path:
    """The file meant: an open one by its number, or one named from an open folder, as shutil.rmtree does."""
    if isinstance(path, int):
        return Path(f"/proc/self/fd/{path}")
    above = "" if folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
    return Path(above, os.fsdecode(path))


if __name__ == "__main__":
    tls.restrict_to_tls13()  # what follows may import grpc
    install(Path(os.environ[KEEP]))
    from cli.main import main

    main()
