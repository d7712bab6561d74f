"""The reveal rule: which sums this silo has been part of, and which it never will be.

One row per (job, round, phase) holds the silo's only answer; every cohort it signed is kept and
compared with the next. Every check and the write it allows share one transaction.
Source: docs/protocol.md 6.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from chorale.runtime.database import Database, Migration
from chorale.transport.wire import phase_kind
from crypto.errors import PolicyRefusal, Refusal
from crypto.session.messages import LedgerMark, SessionTerms
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger.analyses import are_first_records, check_analysis, check_others
from silo_agent.disclosure.ledger.costs import is_covered
from silo_agent.disclosure.ledger.signed_sets import (
    SAME_PHASE,
    TREE_LEVEL,
    forget_other_attempts,
    is_change,
    joined,
    last_attempt,
    note_signed,
    phase_of,
    refusal,
)
from silo_agent.disclosure.ledger.standing import Standing, check_not_put_back, next_mark
from silo_agent.disclosure.ledger.state_uses import (
    StateUse,
    check_survivors,
    check_use,
    forget_use,
    settle_use,
)
from silo_agent.disclosure.policy.drawn_rounds import MAX_UNASKED_OPENINGS
from silo_agent.disclosure.policy.policy import Policy
from strategies.phases.enrollment import ENROLLMENT
from strategies.phases.training import TRAIN

TABLES: Migration = (
    """
    CREATE TABLE phases ( -- what the first advert for a phase bound it to
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        roster_version INTEGER NOT NULL,
        roster_digest BLOB NOT NULL,
        state_digest BLOB NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE reveals (
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        status VARCHAR NOT NULL, -- RevealStatus
        attempt INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        cohort_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL, -- id of an account, here and in the other tables
        survivors VARCHAR NOT NULL, -- U3, sorted, one name a line
        answer BLOB, -- PendingReveal; null once blanked
        written_unix_seconds FLOAT NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE abandoned_phases ( -- never revealed by this silo, and it may have signed that
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
)

SHARES_KEPT = timedelta(days=30)
MAX_OPENINGS_OF_A_JOB = 2  # revealed here: all silos together then leave fewer than 4 draws to choose from


class RevealStatus(StrEnum):
    PENDING = "pending"  # signed; the answer has not left
    REVEALED = "revealed"  # the answer may have left


class Decision(StrEnum):
    """What this institution said to a job."""

    OFFERED = "offered"
    APPROVED = "approved"
    REJECTED = "rejected"
    SUSPENDED = "suspended"  # by the agent: data gave no input, or sums failed; a person approves again


class Reveals(Standing):
    """`crypto.session.silo_session.RevealLedger` of one silo: synchronous and durable."""

    def __init__(
        self,
        database: Database,
        *,
        policy: Policy,
        data_set: str,
        clock: Callable[[], datetime],
        tell: Callable[[PendingReveal], None],
    ) -> None:
        super().__init__(database)
        self._policy = policy
        self._data_set = data_set
        self._clock = clock
        self._tell = tell

    def take(self, policy: Policy) -> None:
        """What is checked from now on."""
        self._policy = policy

    def check_attempt(self, terms: SessionTerms) -> None:
        """What `begin_attempt` would refuse, before any data is touched. Writes nothing."""
        with self._database.transaction() as connection:
            _check_attempt(connection, terms)
            self._check_openings(connection, terms)
            self._check_analysis(connection, terms)

    def check_analysis(self, job_digest: bytes) -> None:
        """Raises PolicyRefusal where the data set has answered as many others as policy allows, or one that
        cuts a column otherwise."""
        with self._database.reading() as connection:
            check_others(connection, job_digest, data_set=self._data_set, most=self._policy.analyses.most)

    def are_first_records(self, job_digest: bytes, records_digest: bytes) -> bool:
        """Whether an analysis may sum these records: it counted no others before. Durable."""
        with self._database.transaction() as connection:
            return are_first_records(connection, job_digest, records_digest, data_set=self._data_set)

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        """Bind the phase to roster and state, and erase what an earlier attempt left pending.

        Returns what the advert says of this ledger, the input's reservation included.
        Raises PolicyRefusal if the job is not approved, the phase was revealed, the round or
        attempt is out of range, or roster or state differ from the first attempt's.
        """
        with self._database.transaction() as connection:
            self._check_openings(connection, terms)
            if not _check_attempt(connection, terms):
                connection.execute(
                    "INSERT INTO phases"
                    " (job_digest, round, phase, roster_version, roster_digest, state_digest)"
                    " VALUES (:job, :round, :phase, :roster_version, :roster_digest, :state_digest)",
                    phase_of(terms)
                    | {
                        "roster_version": terms.roster_version,
                        "roster_digest": terms.roster_digest,
                        "state_digest": terms.state_digest,
                    },
                )
            connection.execute(
                f"DELETE FROM reveals WHERE {SAME_PHASE} AND status = :pending",
                phase_of(terms) | {"pending": RevealStatus.PENDING},
            )
            return next_mark(connection, terms, unix_seconds=self._clock().timestamp())

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        """Raises PolicyRefusal where a sum over these silos may not be revealed."""
        self._policy.check_cohort(survivors)
        with self._database.transaction() as connection:
            _approved_job(connection, terms)
            _check_not_revealed(connection, terms)
            self._check_openings(connection, terms)
            check_survivors(connection, phase_of(terms), survivors, data_set=self._data_set)
            self._check_analysis(connection, terms, survivors)
            self._is_change(connection, terms, survivors, terms.rule.min_cohort)

    def write_pending(self, pending: PendingReveal) -> None:
        """Record the signed set and the one answer to it. Raises PolicyRefusal as `check_reveal`."""
        answer = pending.to_bytes()
        with self._database.transaction() as connection:
            found = _recorded(connection, phase_of(pending))
            if found is not None and found["answer"] == answer:
                return
            if found is not None:
                raise refusal(pending, "another answer is recorded already", Refusal.ALREADY_REVEALED)
            _approved_job(connection, pending)
            _check_not_abandoned(connection, pending)
            check_survivors(connection, phase_of(pending), pending.survivors, data_set=self._data_set)
            self._check_analysis(connection, pending, pending.survivors)
            values = phase_of(pending) | {
                "attempt": pending.attempt,
                "kind": _kind(connection, pending),
                "data_set": self._data_set,
                "survivors": joined(pending.survivors),
                "min_cohort": pending.min_cohort,
                "is_change": self._is_change(connection, pending, pending.survivors, pending.min_cohort),
                "is_covered": is_covered(connection, self._data_set, phase_of(pending)),
                "status": RevealStatus.PENDING,
                "state_digest": pending.state_digest,
                "cohort_digest": pending.cohort_digest,
                "answer": answer,
                "unix_seconds": self._clock().timestamp(),
            }
            note_signed(connection, values)
            connection.execute(
                "INSERT INTO reveals (job_digest, round, phase, status, attempt, state_digest, cohort_digest,"
                " data_set, survivors, answer, written_unix_seconds) VALUES (:job, :round, :phase, :status,"
                " :attempt, :state_digest, :cohort_digest, :data_set, :survivors, :answer, :unix_seconds)",
                values,
            )

    def mark_revealed(self, pending: PendingReveal) -> None:
        """Durable, and told, before the first share leaves; once, however often it is repeated.

        Raises PolicyRefusal if the job was rejected here since it was signed.
        """
        with self._database.transaction() as connection:
            found = _recorded(connection, phase_of(pending))
            if found is None or found["cohort_digest"] != pending.cohort_digest:
                raise refusal(pending, "no such answer is recorded", Refusal.ALREADY_REVEALED)
            if found["status"] == RevealStatus.REVEALED:
                return
            _approved_job(connection, pending)
            self._check_openings(connection, pending)  # several may have been signed before one is revealed
            self._check_analysis(connection, pending, pending.survivors)
            _check_not_abandoned(connection, pending)
            connection.execute(
                f"UPDATE reveals SET status = :revealed WHERE {SAME_PHASE}",
                phase_of(pending) | {"revealed": RevealStatus.REVEALED},
            )
            forget_other_attempts(connection, pending)
        self._tell(pending)

    def check_use(self, use: StateUse) -> None:
        """Before data are touched for a sum over training arrays. Raises PolicyRefusal.

        `Budget.spend` records the use; `check_reveal` compares its U3.
        """
        with self._database.transaction() as connection:
            check_use(connection, use, data_set=self._data_set, max_repeats=self._policy.max_repeats)

    def settle(self, job_digest: bytes, round: int, phase: str, survivors: Iterable[str]) -> None:
        """t valid signatures of the phase's silos name this U3: further sums over its arrays may follow."""
        of = {"job": job_digest, "round": round, "phase": phase}
        with self._database.transaction() as connection:
            settle_use(connection, of, survivors, data_set=self._data_set)

    def abandon(self, job_digest: bytes, round: int, phase: str) -> None:
        """This silo never reveals the phase, in any attempt; durable before it signs that.

        Raises PolicyRefusal(code=ALREADY_REVEALED) if its shares may have left.
        """
        with self._database.transaction() as connection:
            _abandon(connection, job_digest, round, phase)

    def note_abandoned(self, job_digest: bytes, round: int, phase: str) -> None:
        """t named silos signed that they never reveal the phase: it has no sum, and was no use of a state.

        Raises PolicyRefusal(code=ALREADY_REVEALED) as `abandon`, which this includes.
        """
        with self._database.transaction() as connection:
            forget_use(connection, _abandon(connection, job_digest, round, phase))

    def bound_roster(self, job_digest: bytes, round: int, phase: str) -> int | None:
        """Version of the roster under which this silo adverted for the round; None if it did not."""
        with self._database.reading() as connection:
            begun = _begun(connection, {"job": job_digest, "round": round, "phase": phase})
        return begun[0]["roster_version"] if begun else None

    def has_answered(self, job_digest: bytes, kind: str) -> bool:
        """Whether this silo stands in a signed cohort of this kind of phase in the job."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT 1 FROM signed_sets WHERE job_digest = ? AND kind = ? LIMIT 1", (job_digest, kind)
            ).fetchone()
        return found is not None

    def recorded(self, job_digest: bytes, round: int, phase: str) -> tuple[PendingReveal, bool] | None:
        """The recorded answer of a phase and whether it may have left; None if there is none."""
        with self._database.reading() as connection:
            found = _recorded(connection, {"job": job_digest, "round": round, "phase": phase})
        if found is None or found["answer"] is None:
            return None
        return PendingReveal.from_bytes(found["answer"]), found["status"] == RevealStatus.REVEALED

    def is_revealed(self, job_digest: bytes, round: int, phase: str, *, silo: str) -> bool:
        """Whether this silo's answer for the phase may have left, with the silo itself in U3."""
        with self._database.reading() as connection:
            found = _recorded(connection, {"job": job_digest, "round": round, "phase": phase})
        if found is None or found["status"] != RevealStatus.REVEALED:
            return False
        return silo in found["survivors"].split("\n")

    def blank_old_shares(self) -> int:
        """Forget the shares of answers revealed long ago; their keys and cohorts stay."""
        oldest = (self._clock() - SHARES_KEPT).timestamp()
        with self._database.transaction() as connection:
            return connection.execute(
                "UPDATE reveals SET answer = NULL"
                " WHERE status = ? AND written_unix_seconds < ? AND answer IS NOT NULL",
                (RevealStatus.REVEALED, oldest),
            ).rowcount

    def _check_openings(self, connection: sqlite3.Connection, key: SessionTerms | PendingReveal) -> None:
        """Raises PolicyRefusal where one more opening of a draw may not be revealed, whatever became of those
        before. Source: docs/protocol.md 6.12."""
        if key.round != 0 or phase_kind(key.phase) != ENROLLMENT:
            return
        if not _approved_job(connection, key)["draws_rounds"]:
            return
        of_job, unasked = connection.execute(
            "WITH asked AS (SELECT job_digest FROM persons_decisions WHERE decision = :approved)"
            " SELECT count(*) FILTER (WHERE job_digest = :job),"
            " count(*) FILTER (WHERE data_set = :data_set AND job_digest NOT IN asked)"
            " * (:job NOT IN asked)"
            " FROM reveals JOIN jobs USING (job_digest)"
            " WHERE draws_rounds AND round = 0 AND phase LIKE :opening AND status = :revealed",
            {
                "job": key.job_digest,
                "data_set": self._data_set,
                "opening": f"{ENROLLMENT}.%",
                "revealed": RevealStatus.REVEALED,
                "approved": Decision.APPROVED,
            },
        ).fetchone()
        if of_job >= MAX_OPENINGS_OF_A_JOB:
            raise refusal(key, f"{of_job} openings of the job were revealed", Refusal.POLICY)
        if unasked >= MAX_UNASKED_OPENINGS:
            raise refusal(
                key,
                f"{unasked} openings of jobs that no person approved were revealed over this data set; "
                "to go on: chorale silo approve",
                Refusal.POLICY,
            )

    def _check_analysis(
        self,
        connection: sqlite3.Connection,
        key: SessionTerms | PendingReveal,
        survivors: tuple[str, ...] | None = None,
    ) -> None:
        most = self._policy.analyses.most
        check_analysis(connection, key, data_set=self._data_set, most=most, survivors=survivors)

    def _is_change(
        self,
        connection: sqlite3.Connection,
        key: SessionTerms | PendingReveal,
        survivors: tuple[str, ...],
        min_cohort: int,
    ) -> bool:
        return is_change(
            connection,
            key,
            survivors,
            kind=_kind(connection, key),
            data_set=self._data_set,
            min_cohort=min_cohort,
            max_changes=self._policy.max_cohort_changes,
        )


def _check_attempt(connection: sqlite3.Connection, terms: SessionTerms) -> bool:
    """Whether an earlier attempt began the phase. Raises PolicyRefusal."""
    job = _approved_job(connection, terms)
    if terms.round > job["rounds"]:
        raise refusal(terms, f"the job ends with round {job['rounds']}", Refusal.TERMS)
    if not 1 <= terms.attempt <= job["max_attempts"]:
        raise refusal(terms, f"attempt {terms.attempt} of at most {job['max_attempts']}", Refusal.TERMS)
    _check_not_revealed(connection, terms)
    (last_round,) = connection.execute(
        "SELECT max(round) FROM phases WHERE job_digest = ?", (terms.job_digest,)
    ).fetchone()
    if last_round is not None and terms.round < last_round:
        raise refusal(terms, f"round {last_round} was begun already", Refusal.STAGE)
    # what was signed under an attempt's number stays its only content; the next has the next number
    last_signed = last_attempt(connection, terms)
    if last_signed is not None and terms.attempt <= last_signed:
        raise refusal(terms, f"attempt {last_signed} was signed already", Refusal.STAGE)
    begun = _begun(connection, phase_of(terms))
    for row in begun:
        if (row["roster_version"], row["roster_digest"]) != (terms.roster_version, terms.roster_digest):
            raise refusal(terms, f"was begun under roster version {row['roster_version']}", Refusal.ROSTER)
    same = [row for row in begun if row["phase"] == terms.phase]
    if same and same[0]["state_digest"] != terms.state_digest:
        raise refusal(terms, "was begun with another global state", Refusal.STATE)
    return bool(same)


def _begun(connection: sqlite3.Connection, of_phase: dict[str, Any]) -> list[sqlite3.Row]:
    """Phases that were begun and share one roster: those of a round, or one outside rounds by itself."""
    same = SAME_PHASE
    if "." not in of_phase["phase"]:
        same = "job_digest = :job AND round = :round AND phase NOT LIKE '%.%'"
    return connection.execute(f"SELECT * FROM phases WHERE {same}", of_phase).fetchall()


def _approved_job(connection: sqlite3.Connection, key: SessionTerms | PendingReveal) -> sqlite3.Row:
    """What the ledger holds of the job; an institution may take its approval back at any moment.

    Raises PolicyRefusal, too, of a ledger that was put back.
    """
    check_not_put_back(connection)
    job: sqlite3.Row | None = connection.execute(
        "SELECT * FROM jobs WHERE job_digest = ?", (key.job_digest,)
    ).fetchone()
    if job is None or job["decision"] != Decision.APPROVED:
        raise refusal(key, "the job is not approved here", Refusal.JOB_NOT_APPROVED)
    return job


def _kind(connection: sqlite3.Connection, key: SessionTerms | PendingReveal) -> str:
    """Of sums that are compared with one another."""
    kind = phase_kind(key.phase)
    return TREE_LEVEL if kind == TRAIN and _approved_job(connection, key)["grows_trees"] else kind


def _check_not_revealed(connection: sqlite3.Connection, key: SessionTerms | PendingReveal) -> None:
    found = _recorded(connection, phase_of(key))
    if found is not None and found["status"] == RevealStatus.REVEALED:
        raise refusal(key, "was revealed before", Refusal.ALREADY_REVEALED)
    _check_not_abandoned(connection, key)


def _abandon(connection: sqlite3.Connection, job_digest: bytes, round: int, phase: str) -> dict[str, Any]:
    """The phase as statements name it."""
    of = {"job": job_digest, "round": round, "phase": phase}
    found = _recorded(connection, of)
    if found is not None and found["status"] == RevealStatus.REVEALED:
        scope = f"job {job_digest.hex()[:12]} round {round} {phase}"
        raise PolicyRefusal(f"{scope}: was revealed before", code=Refusal.ALREADY_REVEALED)
    connection.execute(
        "INSERT INTO abandoned_phases (job_digest, round, phase) VALUES (:job, :round, :phase)"
        " ON CONFLICT DO NOTHING",
        of,
    )
    return of


def _check_not_abandoned(connection: sqlite3.Connection, key: SessionTerms | PendingReveal) -> None:
    found = connection.execute(f"SELECT 1 FROM abandoned_phases WHERE {SAME_PHASE}", phase_of(key)).fetchone()
    if found is not None:
        raise refusal(key, "was abandoned, and is never revealed", Refusal.ALREADY_REVEALED)


def _recorded(connection: sqlite3.Connection, of_phase: dict[str, Any]) -> sqlite3.Row | None:
    found: sqlite3.Row | None = connection.execute(
        f"SELECT * FROM reveals WHERE {SAME_PHASE}", of_phase
    ).fetchone()
    return found
