"""Where this ledger stands, as adverts say it, and what it keeps of other silos' ledgers.

A ledger that was put back from a snapshot has forgotten what it said since, and its peers have not. Each
advert says a number that rises and a keyed hash of a chain over all reservations; what a peer repeats and
this ledger lacks means that it was restored from an old copy. Every check and the write that it allows share
one transaction. Source: docs/protocol.md 5.11, 6.13.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from chorale.runtime.database import Commit, Database, Migration
from crypto import encoding
from crypto.errors import PolicyRefusal, Refusal
from crypto.session.messages import LedgerMark, LedgerStatement, SessionTerms

TABLES: Migration = (
    """
    CREATE TABLE own_heads ( -- what this silo's adverts said of this ledger
        sequence INTEGER NOT NULL PRIMARY KEY,
        head BLOB NOT NULL -- a chain over the inputs that were reserved
    )
    """,
    """
    CREATE TABLE ledger_key (
        only INTEGER NOT NULL PRIMARY KEY, -- always 1
        key BLOB NOT NULL, -- of the marks
        settled INTEGER NOT NULL, -- what was said up to here and lost is charged
        newest_lost INTEGER -- null, or the sequence of a statement of this silo that is not in own_heads
    )
    """,
    """
    CREATE TABLE peer_statements ( -- of each other silo, what it said last of its ledger
        silo VARCHAR NOT NULL PRIMARY KEY,
        sequence INTEGER NOT NULL,
        mark BLOB NOT NULL,
        signature BLOB NOT NULL
    )
    """,
)

KEY_BYTES = 32
HALF_BYTES = 16  # of a mark: the keyed hash of the head, and what only this ledger's key can make for it
RECOVER = "chorale silo ledger --config <this silo's file> --recover --restarts N"
_LAST_TIME = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


class Standing:
    """What a session asks of the ledger beside reveals: what it keeps of others, and what they keep of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def peer_statements(self, names: Collection[str]) -> Mapping[str, LedgerStatement]:
        """What is kept of these silos' ledgers."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM peer_statements").fetchall()
        return {
            row["silo"]: LedgerStatement(row["sequence"], row["mark"], row["signature"])
            for row in rows
            if row["silo"] in names
        }

    def keep_statements(self, statements: Mapping[str, LedgerStatement]) -> None:
        """The newest of each silo; durable with what has to be durable before y(u) leaves."""
        with self._database.transaction(Commit.UNFLUSHED) as connection:
            connection.executemany(
                "INSERT INTO peer_statements (silo, sequence, mark, signature) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (silo) DO UPDATE SET sequence = excluded.sequence, mark = excluded.mark,"
                " signature = excluded.signature WHERE excluded.sequence > sequence",
                [(silo, *statement) for silo, statement in statements.items()],
            )

    def check_echoes(
        self, echoes: Collection[LedgerStatement], *, is_signed: Callable[[LedgerStatement], bool]
    ) -> None:
        """Stop this ledger, durably, if it does not hold what this silo said of it.

        is_signed: by this silo's present key, for a ledger that lost its own. Anybody may write an echo, so
        one that this silo did not make is ignored. Raises PolicyRefusal(code=LEDGER), now and from then on.
        """
        with self._database.transaction() as connection:
            key, settled = _key_and_settled(connection)
            for echo in echoes:
                if echo.sequence <= settled or _holds(connection, key, echo):
                    continue
                if _is_of(key, echo) or is_signed(echo):
                    connection.execute(
                        "UPDATE ledger_key SET newest_lost = max(coalesce(newest_lost, 0), ?)",
                        (echo.sequence,),
                    )
        with self._database.reading() as connection:
            check_not_put_back(connection)


def next_mark(connection: sqlite3.Connection, terms: SessionTerms, *, unix_seconds: float) -> LedgerMark:
    """The mark of an advert that is about to leave, once the input's reservation is there.

    The sequence is the time, so that it counts nothing: one more than the last only where the clock stood.
    """
    of_phase = {"job": terms.job_digest, "round": terms.round, "phase": terms.phase}
    inputs = connection.execute(
        "SELECT input_id, coalesce(cost_digest, x'') FROM releases"
        " WHERE job_digest = :job AND round = :round AND phase = :phase ORDER BY input_id",
        of_phase,
    ).fetchall()
    last = connection.execute("SELECT * FROM own_heads ORDER BY sequence DESC LIMIT 1").fetchone()
    before, head = (0, b"") if last is None else (last["sequence"], last["head"])
    key, settled = _key_and_settled(connection)
    sequence = max(before + 1, settled + 1, int(unix_seconds))
    head = encoding.digest(
        "ledger-head", head, sequence, terms.digest(), [[bytes(each[0]), bytes(each[1])] for each in inputs]
    )
    connection.execute("INSERT INTO own_heads (sequence, head) VALUES (?, ?)", (sequence, head))
    return LedgerMark(sequence, _mark(key, sequence, head))


def check_not_put_back(connection: sqlite3.Connection) -> None:
    """Before data are touched, and before anything leaves. Raises PolicyRefusal(code=LEDGER)."""
    found = connection.execute("SELECT newest_lost FROM ledger_key WHERE newest_lost IS NOT NULL").fetchone()
    if found is None:
        return
    said = datetime.fromtimestamp(min(found["newest_lost"], _LAST_TIME), UTC)
    raise PolicyRefusal(
        "ledger: it was put back from a snapshot, or another copy of it served: other silos keep what this "
        f"silo said at {said:%Y-%m-%d %H:%M:%S} UTC, and the ledger does not; put the newest ledger back, or "
        f"charge what may be missing: {RECOVER}",
        code=Refusal.LEDGER,
    )


def settle(connection: sqlite3.Connection, *, unix_seconds: float) -> None:
    """What was lost is charged: what peers keep of it up to now stops this ledger no more."""
    connection.execute(
        "UPDATE ledger_key SET settled = max(settled, coalesce(newest_lost, 0), :now,"
        " coalesce((SELECT max(sequence) FROM own_heads), 0)), newest_lost = NULL",
        {"now": int(unix_seconds)},
    )


def _key_and_settled(connection: sqlite3.Connection) -> tuple[bytes, int]:
    connection.execute(
        "INSERT INTO ledger_key (only, key, settled) VALUES (1, ?, 0) ON CONFLICT DO NOTHING",
        (os.urandom(KEY_BYTES),),
    )
    row = connection.execute("SELECT key, settled FROM ledger_key").fetchone()
    return row["key"], row["settled"]


def _holds(connection: sqlite3.Connection, key: bytes, statement: LedgerStatement) -> bool:
    found = connection.execute(
        "SELECT head FROM own_heads WHERE sequence = ?", (statement.sequence,)
    ).fetchone()
    return found is not None and _mark(key, statement.sequence, found["head"]) == statement.mark


def _mark(key: bytes, sequence: int, head: bytes) -> bytes:
    return _owned(key, sequence, _keyed(key, "ledger-mark", sequence, head))


def _is_of(key: bytes, statement: LedgerStatement) -> bool:
    """Whether this ledger's key made the mark, whatever head it was made of."""
    expected = _owned(key, statement.sequence, statement.mark[:HALF_BYTES])
    return hmac.compare_digest(expected, statement.mark)


def _owned(key: bytes, sequence: int, salted_head: bytes) -> bytes:
    return salted_head + _keyed(key, "ledger-mark-owner", sequence, salted_head)


def _keyed(key: bytes, purpose: str, sequence: int, data: bytes) -> bytes:
    return hmac.digest(key, encoding.encode(purpose, sequence, data), "sha256")[:HALF_BYTES]
