"""The reveal rule: which sums this silo has been part of, and which it never will be.

One row per (job, round, phase) holds the silo's only answer; every cohort it signed is kept and
compared with the next. Every check and the write it allows share one transaction.
Source: docs/protocol.md 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Engine,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from crypto.errors import PolicyRefusal, Refusal
from crypto.session.messages import SessionTerms
from crypto.session.reveal import PendingReveal
from silo_agent.ledger.ledger_parameters import OF_DATA_SET, OF_JOB, OF_ROUND, of_phase, same_phase
from silo_agent.ledger.ledger_tables import jobs, phases, reveals, signed_sets
from silo_agent.policy.policy import Policy

# Sums of these kinds carry no noise, and two of them over nearly the same silos differ by one's data.
DIFFERENCED_KINDS = frozenset({"class-presence", "calibrate", "fine-tune"})
SHARES_KEPT = timedelta(days=30)


class RevealStatus(StrEnum):
    PENDING = "pending"  # signed; the answer has not left
    REVEALED = "revealed"  # the answer may have left


class Decision(StrEnum):
    """What this institution said to a job."""

    OFFERED = "offered"
    APPROVED = "approved"
    REJECTED = "rejected"
    SUSPENDED = "suspended"  # by the agent itself, whose data could not answer; a person approves anew


_OF_KIND: BindParameter[str] = bindparam("of_kind")
_OF_ATTEMPT: BindParameter[int] = bindparam("of_attempt")
_JOB = select(jobs).where(jobs.c.job_digest == OF_JOB)
_REVEAL = select(reveals).where(same_phase(reveals))
_LAST_ROUND = select(func.max(phases.c.round)).where(phases.c.job_digest == OF_JOB)
_LAST_SIGNED = select(func.max(signed_sets.c.attempt)).where(same_phase(signed_sets))
_BEGUN_ALONE = select(phases).where(same_phase(phases))
_BEGUN_IN_ROUND = select(phases).where(
    phases.c.job_digest == OF_JOB, phases.c.round == OF_ROUND, phases.c.phase.not_like("%.%")
)
_ANSWERED = (
    select(signed_sets.c.attempt)
    .where(signed_sets.c.job_digest == OF_JOB, signed_sets.c.kind == _OF_KIND)
    .limit(1)
)
# Attempts at one phase exclude each other: quorums of t share an honest silo, and it
# never adverts for a phase that it revealed (docs/protocol.md 3.1).
_IS_OTHER = and_(
    signed_sets.c.kind == _OF_KIND, signed_sets.c.data_set == OF_DATA_SET, ~same_phase(signed_sets)
)
_OTHER_SETS = select(signed_sets.c.survivors, signed_sets.c.min_cohort).where(_IS_OTHER).distinct()
_PHASE_BEFORE = (
    select(signed_sets.c.job_digest, signed_sets.c.round, signed_sets.c.phase)
    .where(_IS_OTHER)
    .order_by(signed_sets.c.number.desc())
    .limit(1)
    .subquery()
)
# of all its attempts: any of them may have been revealed by others' shares
_SETS_BEFORE = select(signed_sets.c.survivors).join(
    _PHASE_BEFORE,
    and_(
        signed_sets.c.job_digest == _PHASE_BEFORE.c.job_digest,
        signed_sets.c.round == _PHASE_BEFORE.c.round,
        signed_sets.c.phase == _PHASE_BEFORE.c.phase,
    ),
)
_CHANGES = (
    select(signed_sets.c.round, signed_sets.c.phase)
    .where(
        signed_sets.c.job_digest == OF_JOB,
        signed_sets.c.kind == _OF_KIND,
        signed_sets.c.is_change,
        ~same_phase(signed_sets),
    )
    .distinct()  # attempts at one phase count once
)
_BEGIN, _ADD_PENDING, _ADD_SIGNED = insert(phases), insert(reveals), insert(signed_sets)
_ERASE_PENDING = delete(reveals).where(same_phase(reveals), reveals.c.status == RevealStatus.PENDING)
_MARK_REVEALED = update(reveals).where(same_phase(reveals)).values(status=RevealStatus.REVEALED)
_FORGET_OTHERS = delete(signed_sets).where(same_phase(signed_sets), signed_sets.c.attempt != _OF_ATTEMPT)


class Reveals:
    """`crypto.session.silo_session.RevealLedger` of one silo: synchronous and durable."""

    def __init__(
        self,
        engine: Engine,
        *,
        policy: Policy,
        data_set: str,
        clock: Callable[[], datetime],
        tell: Callable[[PendingReveal], None],
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._data_set = data_set
        self._clock = clock
        self._tell = tell

    def check_attempt(self, terms: SessionTerms) -> None:
        """What `begin_attempt` would refuse, before any data is touched. Writes nothing."""
        with self._engine.connect() as connection:
            _check_attempt(connection, terms)

    def begin_attempt(self, terms: SessionTerms) -> None:
        """Bind the phase to roster and state, and erase what an earlier attempt left pending.

        Raises PolicyRefusal if the job is not approved, the phase was revealed, the round or
        attempt is out of range, or roster or state differ from the first attempt's.
        """
        with self._engine.begin() as connection:
            if not _check_attempt(connection, terms):
                connection.execute(_BEGIN, _bound(terms))
            connection.execute(_ERASE_PENDING, of_phase(terms))

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        """Raises PolicyRefusal where a sum over these silos may not be revealed."""
        self._policy.check_cohort(survivors)
        with self._engine.begin() as connection:
            _approved_job(connection, terms)
            _check_not_revealed(connection, terms)
            self._check_near(connection, terms, survivors, terms.rule.min_cohort)

    def write_pending(self, pending: PendingReveal) -> None:
        """Record the signed set and the one answer to it. Raises PolicyRefusal as `check_reveal`."""
        with self._engine.begin() as connection:
            found = _row(connection, pending)
            if found is not None and found.answer == pending.to_bytes():
                return
            if found is not None:
                raise _refusal(pending, "another answer is recorded already", Refusal.ALREADY_REVEALED)
            _approved_job(connection, pending)
            is_change = self._check_near(connection, pending, pending.survivors, pending.min_cohort)
            connection.execute(_ADD_SIGNED, self._signed_set(pending, is_change=is_change))
            connection.execute(_ADD_PENDING, self._pending_row(pending))

    def mark_revealed(self, pending: PendingReveal) -> None:
        """Durable, and told, before the first share leaves; once, however often it is repeated.

        Raises PolicyRefusal if the job was rejected here since it was signed.
        """
        with self._engine.begin() as connection:
            found = _row(connection, pending)
            if found is None or found.cohort_digest != pending.cohort_digest:
                raise _refusal(pending, "no such answer is recorded", Refusal.ALREADY_REVEALED)
            if found.status == RevealStatus.REVEALED:
                return
            _approved_job(connection, pending)
            connection.execute(_MARK_REVEALED, of_phase(pending))
            # t silos signed this attempt, and honest ones that revealed an earlier attempt never
            # do: its cohort was not revealed and need not be compared with again.
            connection.execute(_FORGET_OTHERS, {**of_phase(pending), "of_attempt": pending.attempt})
        self._tell(pending)

    def bound_roster(self, job_digest: bytes, round: int, phase: str) -> int | None:
        """Version of the roster under which this silo adverted for the round; None if it did not."""
        of = {"of_job": job_digest, "of_round": round, "of_phase": phase}
        with self._engine.connect() as connection:
            begun = connection.execute(_begun(phase), of).first()
        return None if begun is None else begun.roster_version

    def has_answered(self, job_digest: bytes, kind: str) -> bool:
        """Whether this silo stands in a signed cohort of this kind of phase in the job."""
        with self._engine.connect() as connection:
            return connection.execute(_ANSWERED, {"of_job": job_digest, "of_kind": kind}).first() is not None

    def recorded(self, job_digest: bytes, round: int, phase: str) -> tuple[PendingReveal, bool] | None:
        """The recorded answer of a phase and whether it may have left; None if there is none."""
        of = {"of_job": job_digest, "of_round": round, "of_phase": phase}
        with self._engine.begin() as connection:
            found = connection.execute(_REVEAL, of).one_or_none()
        if found is None or found.answer is None:
            return None
        return PendingReveal.from_bytes(found.answer), found.status == RevealStatus.REVEALED

    def is_revealed(self, job_digest: bytes, round: int, phase: str, *, silo: str) -> bool:
        """Whether this silo's answer for the phase may have left, with the silo itself in U3."""
        of = {"of_job": job_digest, "of_round": round, "of_phase": phase}
        with self._engine.connect() as connection:
            found = connection.execute(_REVEAL, of).one_or_none()
        if found is None or found.status != RevealStatus.REVEALED:
            return False
        return silo in found.survivors.split("\n")

    def blank_old_shares(self) -> int:
        """Forget the shares of answers revealed long ago; their keys and cohorts stay."""
        oldest = (self._clock() - SHARES_KEPT).timestamp()
        old = and_(
            reveals.c.status == RevealStatus.REVEALED,
            reveals.c.written_unix_seconds < oldest,
            reveals.c.answer.is_not(None),
        )
        with self._engine.begin() as connection:
            return connection.execute(update(reveals).where(old).values(answer=None)).rowcount

    def _check_near(
        self,
        connection: Connection,
        key: SessionTerms | PendingReveal,
        survivors: tuple[str, ...],
        min_cohort: int,
    ) -> bool:
        """Whether the reveal is near an earlier one and counts against the policy."""
        kind = kind_of(key.phase)
        of = {**of_phase(key), "of_kind": kind, "of_data_set": self._data_set}
        if not _is_near(connection, of, survivors, min_cohort):
            return False
        if kind in DIFFERENCED_KINDS:
            raise _refusal(
                key, f"a {kind} sum over nearly the same silos was signed before", Refusal.OVERLAPPING_COHORT
            )
        before = set(connection.execute(_SETS_BEFORE, of).scalars())
        if before == {_joined(survivors)}:  # a dropout that lasts counts once
            return False
        limit = self._policy.max_cohort_changes
        if len(connection.execute(_CHANGES, of).all()) >= limit:
            raise _refusal(key, f"cohort changed nearly, more than {limit} times", Refusal.OVERLAPPING_COHORT)
        return True

    def _signed_set(self, pending: PendingReveal, *, is_change: bool) -> dict[str, Any]:
        return _key(pending) | {
            "attempt": pending.attempt,
            "kind": kind_of(pending.phase),
            "data_set": self._data_set,
            "survivors": _joined(pending.survivors),
            "min_cohort": pending.min_cohort,
            "is_change": is_change,
        }

    def _pending_row(self, pending: PendingReveal) -> dict[str, Any]:
        return _key(pending) | {
            "status": RevealStatus.PENDING,
            "attempt": pending.attempt,
            "state_digest": pending.state_digest,
            "cohort_digest": pending.cohort_digest,
            "data_set": self._data_set,
            "survivors": _joined(pending.survivors),
            "answer": pending.to_bytes(),
            "written_unix_seconds": self._clock().timestamp(),
        }


def kind_of(phase: str) -> str:
    """The ledger's unit of reveals: `evaluate.0` and `evaluate.1` are one kind."""
    return phase.partition(".")[0]


def _check_attempt(connection: Connection, terms: SessionTerms) -> bool:
    """Whether an earlier attempt began the phase. Raises PolicyRefusal."""
    _check_job(connection, terms)
    _check_not_revealed(connection, terms)
    _check_round(connection, terms)
    _check_not_signed(connection, terms)
    return _check_begun(connection, terms)


def _check_job(connection: Connection, terms: SessionTerms) -> None:
    job = _approved_job(connection, terms)
    if terms.round > job.rounds:
        raise _refusal(terms, f"the job ends with round {job.rounds}", Refusal.TERMS)
    if not 1 <= terms.attempt <= job.max_attempts:
        raise _refusal(terms, f"attempt {terms.attempt} of at most {job.max_attempts}", Refusal.TERMS)


def _approved_job(connection: Connection, key: SessionTerms | PendingReveal) -> Row[Any]:
    """What the ledger holds of the job; an institution may take its approval back at any moment."""
    job = connection.execute(_JOB, {"of_job": key.job_digest}).one_or_none()
    if job is None or job.decision != Decision.APPROVED:
        raise _refusal(key, "the job is not approved here", Refusal.JOB_NOT_APPROVED)
    return job


def _check_not_revealed(connection: Connection, key: SessionTerms | PendingReveal) -> None:
    found = _row(connection, key)
    if found is not None and found.status == RevealStatus.REVEALED:
        raise _refusal(key, "was revealed before", Refusal.ALREADY_REVEALED)


def _check_round(connection: Connection, terms: SessionTerms) -> None:
    last = connection.execute(_LAST_ROUND, {"of_job": terms.job_digest}).scalar_one()
    if last is not None and terms.round < last:
        raise _refusal(terms, f"round {last} was begun already", Refusal.STAGE)


def _check_not_signed(connection: Connection, terms: SessionTerms) -> None:
    """What was signed under an attempt's number stays its only content; the next has the next number."""
    last = connection.execute(_LAST_SIGNED, of_phase(terms)).scalar_one()
    if last is not None and terms.attempt <= last:
        raise _refusal(terms, f"attempt {last} was signed already", Refusal.STAGE)


def _check_begun(connection: Connection, terms: SessionTerms) -> bool:
    """Whether the phase was begun, with this roster and this state."""
    begun = connection.execute(_begun(terms.phase), of_phase(terms)).all()
    for row in begun:
        if (row.roster_version, row.roster_digest) != (terms.roster_version, terms.roster_digest):
            raise _refusal(terms, f"was begun under roster version {row.roster_version}", Refusal.ROSTER)
    same = [row for row in begun if row.phase == terms.phase]
    if same and same[0].state_digest != terms.state_digest:
        raise _refusal(terms, "was begun with another global state", Refusal.STATE)
    return bool(same)


def _bound(terms: SessionTerms) -> dict[str, Any]:
    return _key(terms) | {
        "roster_version": terms.roster_version,
        "roster_digest": terms.roster_digest,
        "state_digest": terms.state_digest,
    }


def _begun(phase: str) -> Select[Any]:
    """Phases that share one roster: those of a round, or one outside rounds by itself."""
    return _BEGUN_ALONE if "." in phase else _BEGUN_IN_ROUND


def _row(connection: Connection, key: SessionTerms | PendingReveal) -> Row[Any] | None:
    return connection.execute(_REVEAL, of_phase(key)).one_or_none()


def _is_near(connection: Connection, of: dict[str, Any], survivors: tuple[str, ...], min_cohort: int) -> bool:
    for row in connection.execute(_OTHER_SETS, of):
        changed = len(set(survivors) ^ set(row.survivors.split("\n")))
        if 1 <= changed <= max(min_cohort, row.min_cohort) - 1:
            return True
    return False


def _key(key: SessionTerms | PendingReveal) -> dict[str, Any]:
    return {"job_digest": key.job_digest, "round": key.round, "phase": key.phase}


def _joined(names: Iterable[str]) -> str:
    return "\n".join(sorted(names))


def _refusal(key: SessionTerms | PendingReveal, why: str, code: Refusal) -> PolicyRefusal:
    return PolicyRefusal(f"job {key.job_digest.hex()[:12]} round {key.round} {key.phase}: {why}", code=code)
