"""The newest entry of an audit log that a database knows of: a file that went, was cut or was put back shows.

Written at every start and at an orderly end, so it may be older than the log's own end, and is never newer.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Protocol

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog, Head, read_lines
from chorale.runtime.database import Database
from crypto.errors import ConfigError

TABLES = ("CREATE TABLE audit_head (entry INTEGER NOT NULL, line_hash VARCHAR NOT NULL)",)
TEXT = "1 since a start that found entries of the audit log missing which had been there."
LOST = "audit.entries_lost"  # the first entry after a start that missed some

log = get_logger("runtime.audit_head")


class _Gauge(Protocol):
    def set(self, value: float) -> None: ...


class AuditHead:
    """What a database knows of a log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self, path: Path, audit: AuditLog, lost: _Gauge | None = None) -> bool:
        """Say in log, metric and audit log that entries are missing which were there; give whether they are.
        The party goes on: its ledger and store hold what it must not forget."""
        with self._database.transaction() as connection:
            known = _read(connection)
        is_lost = known is not None and not _holds(path, known)
        if known is not None and is_lost:
            log.warning("audit log lacks entries that it had", file=str(path), last_known_entry=known.entry)
            audit.append(LOST, last_known_entry=known.entry, last_known_hash=known.line_hash)
            if lost is not None:
                lost.set(1)
        self.keep(audit)
        return is_lost

    def keep(self, audit: AuditLog) -> None:
        """Remember where the log ends now; a disk that is full keeps the older end."""
        head = audit.head
        try:
            audit.flush()
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM audit_head")
                connection.execute("INSERT INTO audit_head VALUES (?, ?)", (head.entry, head.line_hash))
        except (OSError, sqlite3.Error) as error:
            log.warning("end of the audit log not kept", reason=str(error).lower())


def _read(connection: sqlite3.Connection) -> Head | None:
    row = connection.execute("SELECT entry, line_hash FROM audit_head").fetchone()
    return None if row is None else Head(entry=row["entry"], line_hash=row["line_hash"])


def _holds(path: Path, known: Head) -> bool:
    """Whether the entry is in the log, or the log continues it: its file was closed and is elsewhere."""
    if known.entry == 0:
        return True
    try:
        for line, entry in read_lines(path):
            if entry["entry"] == known.entry:
                return hashlib.sha256(line).hexdigest() == known.line_hash
            if entry["entry"] > known.entry:
                return (entry["entry"], entry["previous"]) == (known.entry + 1, known.line_hash)
    except ConfigError:
        pass
    return False
