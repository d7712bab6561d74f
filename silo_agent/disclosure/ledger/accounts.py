"""Which account a data set's inputs are charged to: the one that its settings name, whatever it holds.

So neither what is charged nor what is refused follows from a record. Each unit belongs to the account that
saw it first, for good, and to the side that it was on then; inputs of any other account leave it out. So the
account of a unit holds all that was ever released about it. Every function is one transaction. Source:
docs/privacy.md "The ledger".
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from chorale.runtime.audit import AuditLog
from chorale.runtime.database import Database, Migration
from crypto.errors import ConfigError
from silo_agent.training.unit_marks import NO_MARKS, SideMarks, UnitKey

TABLES: Migration = (
    """
    CREATE TABLE contents ( -- what each data set held when it was last read, for the institution's people
        data_set VARCHAR NOT NULL PRIMARY KEY, -- its name in the settings
        records INTEGER NOT NULL,
        units INTEGER, -- null: each record is one
        columns VARCHAR, -- a JSON list; null: they have no names
        read_unix_seconds FLOAT NOT NULL
    )
    """,
    """
    CREATE TABLE accounts ( -- the delta at which everything that a data set ever released is valued
        data_set VARCHAR NOT NULL PRIMARY KEY,
        delta FLOAT NOT NULL,
        units_are_known BOOLEAN NOT NULL DEFAULT 0,
        sides_are_fixed BOOLEAN NOT NULL DEFAULT 0,
        divided_by VARCHAR -- what decided on sides first; null: nothing yet
    )
    """,
    """
    CREATE TABLE unit_marks ( -- each unit belongs to the account that saw it first
        number INTEGER NOT NULL PRIMARY KEY,
        account VARCHAR NOT NULL,
        is_held_out BOOLEAN NOT NULL, -- when it was first seen
        marks BLOB NOT NULL -- 16 bytes each, sorted: HMAC-SHA256 by the silo's unit.key
    )
    """,
    "CREATE INDEX unit_marks_by_account ON unit_marks (account, is_held_out)",
    """
    CREATE TABLE unit_keys ( -- what tells the key of the marks from another
        only INTEGER NOT NULL PRIMARY KEY, -- always 1
        digest BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE delta_changes ( -- by an administrator: everything of the account is valued at the new one
        number INTEGER NOT NULL PRIMARY KEY,
        account VARCHAR NOT NULL,
        delta_before FLOAT NOT NULL,
        delta FLOAT NOT NULL,
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
)

DELTA_EVENT = "delta changed"  # audit entry: all that an account spent has another value from here on
CHUNK_MARKS = 1 << 20  # of a row: 16 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """units_are_known: every unit ever charged is remembered. sides_are_fixed: all settings of its data sets
    always divided them in one way, so that none is used in training and in the hold-out."""

    id: str
    units_are_known: bool
    sides_are_fixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a data set held when the agent last read it. units: None where each record is one. columns: None
    where they have no names."""

    records: int
    units: int | None
    columns: tuple[str, ...] | None
    read: datetime


class Accounts:
    """Those of one ledger."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def note_contents(
        self, data_set: str, *, records: int, units: int | None, columns: Sequence[str] | None
    ) -> None:
        """What a data set of that name holds now, in place of what was noted before. As `Contents`."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO contents (data_set, records, units, columns, read_unix_seconds)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    data_set,
                    records,
                    units,
                    None if columns is None else json.dumps(list(columns)),
                    self._clock().timestamp(),
                ),
            )

    def contents(self, data_set: str) -> Contents | None:
        """None of a data set that no agent has read yet."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM contents WHERE data_set = ?", (data_set,)).fetchone()
        if row is None:
            return None
        return Contents(
            records=row["records"],
            units=row["units"],
            columns=None if row["columns"] is None else tuple(json.loads(row["columns"])),
            read=datetime.fromtimestamp(row["read_unix_seconds"], UTC),
        )

    def all(self) -> list[Account]:
        """In the order in which they were opened."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM accounts ORDER BY rowid").fetchall()
        return [
            Account(
                id=row["data_set"],
                units_are_known=bool(row["units_are_known"]),
                sides_are_fixed=bool(row["sides_are_fixed"]),
            )
            for row in rows
        ]

    def check_key(self, key: UnitKey) -> None:
        """Raises ConfigError for another key than the one that the marks were made with."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO unit_keys (only, digest) VALUES (1, ?) ON CONFLICT DO NOTHING", (key.digest,)
            )
            (digest,) = connection.execute("SELECT digest FROM unit_keys").fetchone()
        if digest != key.digest:
            raise ConfigError("ledger: its accounts were made with another unit.key: put that one back")

    @property
    def has_key(self) -> bool:
        with self._database.reading() as connection:
            return connection.execute("SELECT 1 FROM unit_keys").fetchone() is not None

    def marks(self, account: str) -> SideMarks:
        """The units of an account; each on both sides, where it was not always divided in one way."""
        with self._database.transaction() as connection:
            found = _marks(connection, account)
            if sides_are_fixed(connection, account):
                return found
        return SideMarks(train=found.all, held_out=found.all)

    def open(self, account: str, *, delta: float) -> None:
        """Where it is not there yet."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO accounts (data_set, delta, units_are_known, sides_are_fixed) VALUES (?, ?, 1, 1)"
                " ON CONFLICT DO NOTHING",
                (account, delta),
            )

    def learn(self, account: str, found: SideMarks | None, *, divided_by: str) -> None:
        """Remember the units of one of the account's data sets that belong to no account yet.

        found: None if the units cannot be read; overlap is then assumed. divided_by: what in the settings
        decides on which side a unit is.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE accounts SET units_are_known = units_are_known AND :known, sides_are_fixed ="
                " sides_are_fixed AND :known AND coalesce(divided_by, :by) = :by,"
                " divided_by = coalesce(divided_by, :by) WHERE data_set = :account",
                {"account": account, "known": found is not None, "by": divided_by},
            )
            if found is None:
                return
            for row in connection.execute("SELECT data_set FROM accounts").fetchall():
                found = found.without(_marks(connection, row["data_set"]).all)
            held_out = np.setdiff1d(found.held_out, found.train, assume_unique=True)  # on both: for training
            for is_held_out, marks in ((False, found.train), (True, held_out)):
                for start in range(0, len(marks), CHUNK_MARKS):
                    connection.execute(
                        "INSERT INTO unit_marks (account, is_held_out, marks) VALUES (?, ?, ?)",
                        (account, is_held_out, marks[start : start + CHUNK_MARKS].tobytes()),
                    )

    def check_apart(self) -> None:
        """Raises ConfigError where there are several accounts, and one whose units are not known."""
        accounts = self.all()
        unknown = next((each.id for each in accounts if not each.units_are_known), None)
        if unknown is not None and len(accounts) > 1:
            others = ", ".join(each.id for each in accounts if each.id != unknown)
            raise ConfigError(
                "data.account: expected one account of all data sets where the records of one are read for a "
                f"job alone (data.from), so that nobody can keep them apart; got {unknown} beside {others}"
            )

    def tell(self, audit_log: AuditLog) -> None:
        """Enter changes of deltas into the audit log. A crash repeats an entry."""
        with self._database.reading() as connection:
            changes = connection.execute(
                "SELECT * FROM delta_changes WHERE NOT is_told ORDER BY number"
            ).fetchall()
        for row in changes:
            audit_log.append(
                DELTA_EVENT, account=row["account"], delta_before=row["delta_before"], delta=row["delta"]
            )
            with self._database.transaction() as connection:
                connection.execute("UPDATE delta_changes SET is_told = 1 WHERE number = ?", (row["number"],))

    def change_delta(self, account: str, delta: float, *, unix_seconds: float) -> None:
        """Value everything that the account spent, and will spend, at another delta.

        Raises ConfigError for an account that is not there, or that has this one.
        """
        with self._database.transaction() as connection:
            row = connection.execute("SELECT delta FROM accounts WHERE data_set = ?", (account,)).fetchone()
            if row is None:
                raise ConfigError(f"account {account}: there is none; the agent opens it when it starts")
            if row["delta"] == delta:
                raise ConfigError(f"account {account}: its delta is {delta:g} already")
            connection.execute("UPDATE accounts SET delta = ? WHERE data_set = ?", (delta, account))
            connection.execute(
                "INSERT INTO delta_changes (account, delta_before, delta, is_told, written_unix_seconds)"
                " VALUES (?, ?, ?, 0, ?)",
                (account, row["delta"], delta, unix_seconds),
            )


def sides_are_fixed(connection: sqlite3.Connection, account: str) -> bool:
    """Whether no unit of the account ever was in training and in the hold-out, by the settings alone.
    Training and hold-out of private jobs then share none, over all jobs."""
    found = connection.execute(
        "SELECT sides_are_fixed FROM accounts WHERE data_set = ?", (account,)
    ).fetchone()
    return found is not None and bool(found["sides_are_fixed"])


def _marks(connection: sqlite3.Connection, account: str) -> SideMarks:
    of_side = []
    for is_held_out in (False, True):
        rows = connection.execute(
            "SELECT marks FROM unit_marks WHERE account = ? AND is_held_out = ?", (account, is_held_out)
        ).fetchall()
        marks = np.frombuffer(b"".join(row["marks"] for row in rows), NO_MARKS.dtype)
        of_side.append(np.sort(marks, kind="stable"))  # of sorted runs, which it merges
    return SideMarks(train=of_side[0], held_out=of_side[1])


def account_delta(connection: sqlite3.Connection, account: str) -> float | None:
    """At which all that it released is valued; None before it is opened."""
    found = connection.execute("SELECT delta FROM accounts WHERE data_set = ?", (account,)).fetchone()
    return None if found is None else found["delta"]


def open_account(connection: sqlite3.Connection, account: str, delta: float) -> None:
    """Its first row, unless there is one."""
    connection.execute(
        "INSERT INTO accounts (data_set, delta) VALUES (?, ?) ON CONFLICT (data_set) DO NOTHING",
        (account, delta),
    )
