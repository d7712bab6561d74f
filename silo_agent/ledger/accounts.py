"""Which account a data set's inputs are charged to, by the units that it holds and not by its name.

Each unit belongs to the account that saw it first, for good. An input is charged to the data set's own
account and to every account that one of its units belongs to; so the account of a unit holds all that was
ever released about it. Every function is one transaction. Source: docs/privacy.md "The ledger".
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from chorale.runtime.audit import AuditLog
from chorale.runtime.database import Database
from crypto.errors import ConfigError
from silo_agent.ledger.unit_marks import NO_MARKS, SideMarks, UnitKey

DELTA_EVENT = "delta changed"  # audit entry: all that an account spent has another value from here on
ACCOUNT_EVENT = "account"  # audit entry: what a data set is charged to from here on
CHUNK_MARKS = 1 << 20  # of a row: 16 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """units_are_known: every unit ever charged is remembered. sides_are_fixed: none of them ever changed
    between training and hold-out. is_generation: opened for units alone that no other account holds."""

    id: str
    units_are_known: bool
    sides_are_fixed: bool
    is_generation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """account: the data set's own. also: others that hold a unit of it, or may."""

    account: str
    also: tuple[str, ...] = ()


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
            return list(_accounts(connection).values())

    def charged(self, data_set: str) -> Charged:
        """As of the agent's last start; of a data set that no agent started with, an account of its name."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM own_accounts WHERE data_set = ?", (data_set,)).fetchone()
        if row is None:
            return Charged(account=data_set)
        return Charged(account=row["account"], also=tuple(json.loads(row["also"])))

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

    def marks(self, accounts: Iterable[str]) -> SideMarks:
        """The units of these accounts; on both sides, where one account cannot say on which they were."""
        with self._database.transaction() as connection:
            known = _accounts(connection)
            of = [(_marks(connection, each), known[each].sides_are_fixed) for each in accounts]
        return SideMarks(
            train=np.unique(np.concatenate([NO_MARKS, *(m.train if fixed else m.all for m, fixed in of)])),
            held_out=np.unique(
                np.concatenate([NO_MARKS, *(m.held_out if fixed else m.all for m, fixed in of)])
            ),
        )

    def bind(
        self, data_set: str, found: SideMarks | None, *, delta: float, configured: Collection[str]
    ) -> str:
        """The own account of a data set with these units, opened where it has none; stays for good.

        A name that no account has gets the account that holds most of its units and that no other of the
        `configured` data sets has: it was renamed. found: None where nobody can say its units.
        """
        with self._database.transaction() as connection:
            own = _bound(connection)
            if data_set in own:
                connection.execute(  # of a ledger from before accounts had a row
                    "INSERT INTO accounts (data_set, delta) VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (own[data_set], delta),
                )
                return own[data_set]
            taken = {own[name] for name in configured if name in own}
            account = None if found is None else _renamed(connection, found, taken)
            if account is None:
                account = _free_id(connection, data_set)
                _open(connection, account, delta=delta, is_generation=False)
            _bind(connection, data_set, account)
            return account

    def learn(self, account: str, found: SideMarks | None) -> None:
        """Remember the units of the account's data set that belong to none yet, and note a changed side.

        found: None where nobody can say them: it may hold units of every other account from now on.
        """
        with self._database.transaction() as connection:
            known = _accounts(connection)
            if found is None:
                connection.execute(
                    "UPDATE accounts SET units_are_known = 0, sides_are_fixed = 0 WHERE data_set = ?",
                    (account,),
                )
                return
            if not known[account].units_are_known:
                connection.execute(
                    "UPDATE accounts SET units_are_known = 1, sides_are_fixed ="
                    " NOT EXISTS (SELECT 1 FROM charges WHERE account = :account) WHERE data_set = :account",
                    {"account": account},
                )
            for other in known.keys() - {account}:
                before = _marks(connection, other)
                if not known[account].is_generation:  # which leaves those of others out
                    _compare_sides(connection, other, before, found)
                found = found.without(before.all)
            before = _marks(connection, account)
            _compare_sides(connection, account, before, found)
            _compare_sides(connection, account, found, found)  # the same record on both sides
            new = found.without(before.all)
            for is_held_out, marks in ((False, new.train), (True, new.held_out)):
                for start in range(0, len(marks), CHUNK_MARKS):
                    connection.execute(
                        "INSERT INTO unit_marks (account, is_held_out, marks) VALUES (?, ?, ?)",
                        (account, is_held_out, marks[start : start + CHUNK_MARKS].tobytes()),
                    )

    def settle(self, found: Mapping[str, SideMarks | None]) -> None:
        """Which accounts each data set is charged to until the next start, once all of them were learned."""
        with self._database.transaction() as connection:
            connection.execute(  # of data sets that no agent started with since accounts have a row
                "INSERT OR IGNORE INTO accounts (data_set, delta)"
                " SELECT data_set, max(delta) FROM releases GROUP BY data_set"
            )
            known, own = _accounts(connection), _bound(connection)
            held = {each: _marks(connection, each).all for each in known}
            for name, marks in found.items():
                account = own[name]
                also = {each for each in known if marks is None or not known[each].units_are_known}
                if marks is not None and not known[account].is_generation:
                    units = marks.all
                    also |= {
                        each
                        for each in known.keys() - also - {account}
                        if np.isin(units, held[each], assume_unique=True).any()
                    }
                connection.execute(
                    "UPDATE own_accounts SET also = :also, is_told = 0"
                    " WHERE data_set = :data_set AND also != :also",
                    {"also": json.dumps(sorted(also - {account})), "data_set": name},
                )

    def tell(self, audit_log: AuditLog) -> None:
        """Enter changes of deltas, and of what data sets are charged to, into the audit log.

        A crash repeats an entry.
        """
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
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM own_accounts WHERE NOT is_told").fetchall()
        for row in rows:
            audit_log.append(
                ACCOUNT_EVENT, data_set=row["data_set"], account=row["account"], also=json.loads(row["also"])
            )
            with self._database.transaction() as connection:
                connection.execute(
                    "UPDATE own_accounts SET is_told = 1 WHERE data_set = ?", (row["data_set"],)
                )

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

    def open_generation(self, data_set: str) -> str:
        """A new own account, of those units alone that no account holds at the next start. Its id.

        Its delta is that of the account that the data set has, so that one policy is right for both.

        Raises ConfigError where some account cannot say its units, so that none is provably of it alone.
        """
        with self._database.transaction() as connection:
            known, own = _accounts(connection), _bound(connection).get(data_set)
            if own is None:
                raise ConfigError(f"data set {data_set}: no account yet; the agent opens it when it starts")
            for each in known.values():
                if not each.units_are_known:
                    raise ConfigError(
                        f"data set {data_set}: the units of account {each.id} are not known, so none is "
                        "provably outside it: start the agent once with that account's data set under `data:`"
                    )
            (delta,) = connection.execute("SELECT delta FROM accounts WHERE data_set = ?", (own,)).fetchone()
            account = _free_id(connection, data_set)
            _open(connection, account, delta=delta, is_generation=True)
            connection.execute("DELETE FROM own_accounts WHERE data_set = ?", (data_set,))
            _bind(connection, data_set, account)
        return account


def sides_are_fixed(connection: sqlite3.Connection, account: str) -> bool:
    """Whether no unit of the account ever was in training and in the hold-out. Training and hold-out of
    private jobs then share none, over all jobs."""
    found = connection.execute(
        "SELECT sides_are_fixed FROM accounts WHERE data_set = ?", (account,)
    ).fetchone()
    return found is not None and bool(found["sides_are_fixed"])


def _accounts(connection: sqlite3.Connection) -> dict[str, Account]:
    rows = connection.execute("SELECT * FROM accounts ORDER BY rowid").fetchall()
    return {
        row["data_set"]: Account(
            id=row["data_set"],
            units_are_known=bool(row["units_are_known"]),
            sides_are_fixed=bool(row["sides_are_fixed"]),
            is_generation=bool(row["is_generation"]),
        )
        for row in rows
    }


def _bound(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT data_set, account FROM own_accounts").fetchall()
    return {row["data_set"]: row["account"] for row in rows}


def _renamed(connection: sqlite3.Connection, found: SideMarks, taken: Collection[str]) -> str | None:
    units, best, account = found.all, (False, 0), None
    for each in _accounts(connection).values():
        shared = int(np.isin(units, _marks(connection, each.id).all, assume_unique=True).sum())
        # of a data set with generations the last one: it leaves out what the earlier ones hold
        rank = (each.is_generation, shared)
        if each.id not in taken and shared and rank >= best:
            best, account = rank, each.id
    return account


def _free_id(connection: sqlite3.Connection, data_set: str) -> str:
    """Its name, or where an account has that id already, with the least number from 2. No name has a #."""
    ids, number = _accounts(connection).keys(), 1
    account = data_set
    while account in ids:
        number += 1
        account = f"{data_set}#{number}"
    return account


def _open(connection: sqlite3.Connection, account: str, *, delta: float, is_generation: bool) -> None:
    connection.execute(
        "INSERT INTO accounts (data_set, delta, units_are_known, sides_are_fixed, is_generation)"
        " VALUES (?, ?, 1, 1, ?)",
        (account, delta, is_generation),
    )


def _bind(connection: sqlite3.Connection, data_set: str, account: str) -> None:
    connection.execute(
        "INSERT INTO own_accounts (data_set, account, also) VALUES (?, ?, '[]')", (data_set, account)
    )


def _marks(connection: sqlite3.Connection, account: str) -> SideMarks:
    of_side = []
    for is_held_out in (False, True):
        rows = connection.execute(
            "SELECT marks FROM unit_marks WHERE account = ? AND is_held_out = ?", (account, is_held_out)
        ).fetchall()
        marks = np.frombuffer(b"".join(row["marks"] for row in rows), NO_MARKS.dtype)
        of_side.append(np.sort(marks, kind="stable"))  # of sorted runs, which it merges
    return SideMarks(train=of_side[0], held_out=of_side[1])


def _compare_sides(connection: sqlite3.Connection, account: str, before: SideMarks, now: SideMarks) -> None:
    has_moved = (
        np.isin(now.train, before.held_out, assume_unique=True).any()
        or np.isin(now.held_out, before.train, assume_unique=True).any()
    )
    if has_moved:
        connection.execute("UPDATE accounts SET sides_are_fixed = 0 WHERE data_set = ?", (account,))
