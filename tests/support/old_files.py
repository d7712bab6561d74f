"""Databases as earlier versions of Chorale wrote them. Source: tests/fixtures/README.md."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

VERSION_0 = Path(__file__).parents[1] / "fixtures" / "version_0"


def restore(name: str, path: Path) -> dict[str, Any]:
    """Write the database of that name to the path; returns what the code of its time answered from it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((VERSION_0 / f"{name}.sql").read_text())
    answers: dict[str, Any] = json.loads((VERSION_0 / f"{name}.json").read_text())
    return answers


def schema(path: Path) -> dict[str, Any]:
    """Columns, references and indexes of every table, and the version."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        found: dict[str, Any] = {
            table: {
                "columns": connection.execute(f"PRAGMA table_info({table})").fetchall(),
                "references": connection.execute(f"PRAGMA foreign_key_list({table})").fetchall(),
                "indexes": sorted(
                    (unique, origin, connection.execute(f"PRAGMA index_info({index})").fetchall())
                    for _, index, unique, origin, _ in connection.execute(f"PRAGMA index_list({table})")
                ),
            }
            for (table,) in tables
        }
        found["version"] = connection.execute("PRAGMA user_version").fetchone()
    return found
