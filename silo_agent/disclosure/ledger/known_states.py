"""Which global states this silo knows to be computed, and what it needs to check the next.

A silo trains on a state that it computed itself or that t silos computed, and never on one from before the
newest of these. Every write is durable on return. Source: docs/protocol.md 7.11.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TypeAlias

from chorale.runtime.database import Database, Migration
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal
from crypto.identity.certificates import SignedBody
from crypto.session.sum_check import SumCheck

TABLES: Migration = (
    """
    CREATE TABLE known_states ( -- the newest of each job
        job_digest BLOB NOT NULL PRIMARY KEY,
        round INTEGER NOT NULL, -- of the phase that it is the outcome of: round, stage and number
        stage INTEGER NOT NULL,
        number INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        draw_seed BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE next_states ( -- what this silo signed as the outcome of a phase
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        body BLOB NOT NULL,
        signature BLOB NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE sum_checks ( -- what checks U3 and the sum of an attempt; of the newest rounds
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        attempt INTEGER NOT NULL,
        sum_check BLOB NOT NULL, -- SumCheck
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
    """
    CREATE TABLE bad_sums ( -- phases whose sum failed its check
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
)

Position: TypeAlias = tuple[int, int, int]  # chorale.job.Job.position

KEPT_ROUNDS = 1  # before that of the newest state: their sums may have read the arrays that it still has
FIRST: Position = (0, -1, 0)  # of the state that a job starts from


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownState:
    """The newest. position: of the phase that it is the outcome of. draw_seed: empty where it holds none."""

    position: Position
    state_digest: bytes
    draw_seed: bytes


class KnownStates:
    """One silo's, of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest(self, job_digest: bytes) -> KnownState | None:
        """None before the first phase of the job."""
        with self._database.reading() as connection:
            return _newest(connection, job_digest)

    def accept(self, job_digest: bytes, state: KnownState) -> None:
        """A state that others computed, or that the job starts from. Raises PolicyRefusal(code=STATE) for an
        older one."""
        with self._database.transaction() as connection:
            _move(connection, job_digest, state)

    def check_of(self, key: PhaseKey) -> SumCheck | None:
        """None where this silo was not in U2 of the attempt, or its round is long over."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT sum_check FROM sum_checks"
                " WHERE job_digest = ? AND round = ? AND phase = ? AND attempt = ?",
                (key.job_digest, key.round, key.phase, key.attempt),
            ).fetchone()
        return None if found is None else SumCheck.from_bytes(found["sum_check"])

    def signed(self, key: PhaseKey) -> SignedBody | None:
        """What this silo signed as the phase's outcome, in any attempt."""
        with self._database.reading() as connection:
            found = _signed(connection, key)
        return None if found is None else SignedBody(body=found["body"], signature=found["signature"])

    def sign(self, key: PhaseKey, signed: SignedBody, state: KnownState) -> None:
        """Before the statement leaves: the one outcome of the phase, and the newest state.

        Raises PolicyRefusal(code=STATE) where the phase has another outcome or a later state is known.
        """
        with self._database.transaction() as connection:
            found = _signed(connection, key)
            if found is not None and found["body"] != signed.body:
                raise _refusal(key.job_digest, "another outcome of this phase was signed")
            if found is not None:
                return
            _move(connection, key.job_digest, state)
            connection.execute(
                "INSERT INTO next_states (job_digest, round, phase, body, signature) VALUES (?, ?, ?, ?, ?)",
                (key.job_digest, key.round, key.phase, signed.body, signed.signature),
            )

    def has_bad_sum(self, key: PhaseKey) -> bool:
        """Whether a sum of the phase failed its check, in any attempt."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT 1 FROM bad_sums WHERE job_digest = ? AND round = ? AND phase = ?",
                (key.job_digest, key.round, key.phase),
            ).fetchone()
        return found is not None

    def note_bad_sum(self, key: PhaseKey) -> int:
        """A sum of the phase failed its check; of how many phases of the job one did."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO bad_sums (job_digest, round, phase) VALUES (?, ?, ?)"
                " ON CONFLICT (job_digest, round, phase) DO NOTHING",
                (key.job_digest, key.round, key.phase),
            )
            (count,) = connection.execute(
                "SELECT count(*) FROM bad_sums WHERE job_digest = ?", (key.job_digest,)
            ).fetchone()
        return int(count)


def keep_check(connection: sqlite3.Connection, check: SumCheck) -> None:
    """Before the first byte of y(u) leaves: from then on this silo can check the sum.

    Raises PolicyRefusal(code=STATE) where a later state became known since y(u) was computed.
    """
    newest = _newest(connection, check.job_digest)
    if newest is None or newest.state_digest != check.state_digest:
        raise _refusal(check.job_digest, "the state of this input is not the newest known any more")
    connection.execute(
        "INSERT INTO sum_checks (job_digest, round, phase, attempt, sum_check) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (job_digest, round, phase, attempt) DO UPDATE SET sum_check = excluded.sum_check",
        (check.job_digest, check.round, check.phase, check.attempt, check.to_bytes()),
    )


def _newest(connection: sqlite3.Connection, job_digest: bytes) -> KnownState | None:
    found = connection.execute("SELECT * FROM known_states WHERE job_digest = ?", (job_digest,)).fetchone()
    if found is None:
        return None
    return KnownState(
        position=(found["round"], found["stage"], found["number"]),
        state_digest=found["state_digest"],
        draw_seed=found["draw_seed"],
    )


def _move(connection: sqlite3.Connection, job_digest: bytes, state: KnownState) -> None:
    before = _newest(connection, job_digest)
    if before == state:
        return
    if before is not None and state.position <= before.position:
        raise _refusal(job_digest, "a later global state is known here")
    connection.execute(
        "INSERT INTO known_states (job_digest, round, stage, number, state_digest, draw_seed)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (job_digest) DO UPDATE SET round = excluded.round,"
        " stage = excluded.stage, number = excluded.number, state_digest = excluded.state_digest,"
        " draw_seed = excluded.draw_seed",
        (job_digest, *state.position, state.state_digest, state.draw_seed),
    )
    # of older rounds no U3 is asked for any more
    oldest = state.position[0] - KEPT_ROUNDS
    connection.execute("DELETE FROM sum_checks WHERE job_digest = ? AND round < ?", (job_digest, oldest))


def _signed(connection: sqlite3.Connection, key: PhaseKey) -> sqlite3.Row | None:
    found: sqlite3.Row | None = connection.execute(
        "SELECT body, signature FROM next_states WHERE job_digest = ? AND round = ? AND phase = ?",
        (key.job_digest, key.round, key.phase),
    ).fetchone()
    return found


def _refusal(job_digest: bytes, why: str) -> PolicyRefusal:
    return PolicyRefusal(f"job {job_digest.hex()[:12]}: {why}", code=Refusal.STATE)
