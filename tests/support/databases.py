"""Tables of a database that a test fills."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path


def write_table(folder: Path, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table `t` of a database in this folder, as new; its URL, which the file `url` holds too."""
    with closing(sqlite3.connect(folder / "t.sqlite")) as database, database:
        database.execute("DROP TABLE IF EXISTS t")
        database.execute(f"CREATE TABLE t ({', '.join(headings)})")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(headings))})", rows)
    url = f"sqlite:///{folder}/t.sqlite"
    (folder / "url").write_text(url + "\n")
    return url
