"""One use of a state: which sums read the same arrays, and who is known to be in them.

The difference of two sums over the same arrays shows the inputs of the silos that only one of them holds, to
the last digit. So a second sum over the same arrays must cover the same silos, or differ by enough to hide
each. Every function is one step of a transaction of the ledger. Source: docs/protocol.md 6.10.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.job import Job
from chorale.runtime.database import Migration
from chorale.spec.selection import tests_in
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey, phase_kind
from crypto.errors import PolicyRefusal, Refusal
from crypto.session.cohort import CohortRule
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN

TABLES: Migration = (
    """
    CREATE TABLE state_uses ( -- phases whose input was made from training arrays, a row for each arm's
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        training_digest BLOB NOT NULL, -- of the arrays
        min_distance INTEGER NOT NULL,
        survivors VARCHAR, -- U3, sorted, one name a line, once t signatures prove it
        written_unix_seconds FLOAT NOT NULL,
        members INTEGER NOT NULL,
        is_drawn BOOLEAN NOT NULL,
        reads INTEGER NOT NULL, -- training samples (1), hold-outs (2)
        UNIQUE (data_set, job_digest, round, phase, training_digest)
    )
    """,
    "CREATE INDEX state_uses_by_arrays ON state_uses (data_set, training_digest)",
)

READS_TRAINING, READS_HOLDOUT = 1, 2
READS_ALL = READS_TRAINING | READS_HOLDOUT
# kinds that sum how good the model is, the first one where its round tests
TESTS = frozenset({TRAIN, EVALUATE, EVALUATE_ALL})
_SAME_PHASE = "job_digest = :job AND round = :round AND phase = :phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUse:
    """A phase whose sum reads training arrays.

    training_digests: of what silos are asked with (Strategy.use_digests), one for each arm of a search whose
    arrays are its own. min_distance: silos by which the U3
    of two such sums differ at least, unless they are equal. members: m.
    is_drawn: whether the phase names silos by a draw. reads: of which samples its sums tell, as bits; sums
    that have none in common have no number of a silo in common either.
    """

    job_digest: bytes
    round: int
    phase: str
    training_digests: tuple[bytes, ...]
    min_distance: int
    members: int
    is_drawn: bool
    reads: int = READS_ALL

    @classmethod
    def of(
        cls, job: Job, key: PhaseKey, state: GlobalState, *, rule: CohortRule, assumed_colluders: int
    ) -> StateUse | None:
        """None where the phase reads no training arrays, or where epsilon covers all that leaves (6.2)."""
        if job.spec.privacy is not None or not job.strategy.reads_state(key.kind):
            return None
        return cls(
            job_digest=key.job_digest,
            round=key.round,
            phase=key.phase,
            training_digests=job.method.use_digests(key.kind, state),
            # a difference of two sums then holds two honest silos at least
            min_distance=max(rule.min_cohort, assumed_colluders + 2),
            members=rule.members,
            is_drawn=job.spec.draws_rounds and not job.names_everyone(key.phase),
            reads=_reads(job, key),
        )

    @property
    def of_phase(self) -> dict[str, Any]:
        return {"job": self.job_digest, "round": self.round, "phase": self.phase}

    def refusal(self, why: str, code: Refusal) -> PolicyRefusal:
        scope = f"job {self.job_digest.hex()[:12]} round {self.round} {self.phase}"
        return PolicyRefusal(f"{scope}: {why}", code=code)


def check_use(connection: sqlite3.Connection, use: StateUse, *, data_set: str, max_repeats: int) -> None:
    """Before data are touched, and again before anything leaves.

    Raises PolicyRefusal(code=STATE_USED_UP) where as many sums as are allowed read these arrays, and
    PolicyRefusal(code=STATE) where nothing proves who was in one of them, or where rounds are drawn and one
    was of the same kind, or tested the model as this one does.
    """
    own = {row["training_digest"] for row in _rows(connection, data_set, use.of_phase)}
    if own and own != {*use.training_digests}:
        raise use.refusal("was begun over other training arrays", Refusal.STATE)
    for digest in use.training_digests:
        _check_use(use, _others(connection, use, digest, data_set), max_repeats=max_repeats)


def _check_use(use: StateUse, earlier: Sequence[sqlite3.Row], *, max_repeats: int) -> None:
    """Of one model. earlier: other phases over it."""
    if len(earlier) > max_repeats:
        raise use.refusal(
            f"{len(earlier)} sums were taken over this model before, expected at most {max_repeats} repeats "
            "(max_repeats)",
            Refusal.STATE_USED_UP,
        )
    for row in earlier:
        before = f"job {row['job_digest'].hex()[:12]} round {row['round']} {row['phase']}"
        kinds = {phase_kind(row["phase"]), phase_kind(use.phase)}
        is_test = kinds <= TESTS and bool(use.reads & row["reads"] & READS_HOLDOUT)
        if (len(kinds) == 1 or is_test) and (use.is_drawn or row["is_drawn"]):
            # nobody sees all sums over the state, and too few see two of them to keep one from being revealed
            once = "one sum of a kind" if len(kinds) == 1 else "one test of a model"
            raise use.refusal(
                f"where rounds are drawn each silo is in {once} over a model, and {before} took it",
                Refusal.STATE,
            )
        if row["survivors"] is None:
            raise use.refusal(
                f"a sum over this model began in {before}, and nothing proves who was in it", Refusal.STATE
            )


def record_use(
    connection: sqlite3.Connection,
    use: StateUse,
    *,
    data_set: str,
    max_repeats: int,
    unix_seconds: float,
) -> None:
    """Before the first byte of y(u) leaves; another attempt adds nothing. Raises PolicyRefusal as
    `check_use`."""
    check_use(connection, use, data_set=data_set, max_repeats=max_repeats)
    connection.executemany(
        "INSERT INTO state_uses (data_set, job_digest, round, phase, training_digest, min_distance,"
        " members, is_drawn, reads, survivors, written_unix_seconds) VALUES (:data_set, :job, :round, :phase,"
        " :digest, :min_distance, :members, :is_drawn, :reads, NULL, :unix_seconds)"
        " ON CONFLICT (data_set, job_digest, round, phase, training_digest) DO NOTHING",
        [
            {
                **use.of_phase,
                "data_set": data_set,
                "digest": digest,
                "min_distance": use.min_distance,
                "members": use.members,
                "is_drawn": use.is_drawn,
                "reads": use.reads,
                "unix_seconds": unix_seconds,
            }
            for digest in use.training_digests
        ],
    )


def check_survivors(
    connection: sqlite3.Connection, of_phase: dict[str, Any], survivors: Iterable[str], *, data_set: str
) -> None:
    """Before this silo signs U3. Raises PolicyRefusal(code=OVERLAPPING_COHORT) where it is too near that of
    another sum over the same arrays, PolicyRefusal(code=STATE) where that is not known."""
    rows = _rows(connection, data_set, of_phase)
    if not rows:
        return  # it reads no training arrays, or epsilon covers all of it
    row = rows[0]  # but for the digest all are alike
    use = StateUse(
        job_digest=row["job_digest"],
        round=row["round"],
        phase=row["phase"],
        training_digests=tuple(each["training_digest"] for each in rows),
        min_distance=row["min_distance"],
        members=row["members"],
        is_drawn=row["is_drawn"],
        reads=row["reads"],
    )
    others = (
        other for digest in use.training_digests for other in _others(connection, use, digest, data_set)
    )
    for other in others:
        if other["survivors"] is None:
            raise use.refusal("nothing proves who was in another sum over this model", Refusal.STATE)
        own, before = set(survivors), set(other["survivors"].split("\n"))
        changed = len(own ^ before)
        least = max(use.min_distance, other["min_distance"])
        if 0 < changed < least:
            raise use.refusal(
                f"another sum over this model differs by {changed} silos, expected none or at least {least}",
                Refusal.OVERLAPPING_COHORT,
            )
        # of three sets out of one named set, however far apart, sums may add up to one silo
        if changed and len(own | before) <= min(use.members, other["members"]):
            raise use.refusal(
                f"another sum over this model differs by {changed} of the same named silos, expected none",
                Refusal.OVERLAPPING_COHORT,
            )


def settle_use(
    connection: sqlite3.Connection, of_phase: dict[str, Any], survivors: Iterable[str], *, data_set: str
) -> None:
    """U3 of an earlier use, once t signatures prove it. What was settled stays: there is one U3 a phase.

    Of a phase that this silo revealed its own row says it (`_others`), and nothing is written.
    """
    connection.execute(
        f"UPDATE state_uses SET survivors = :survivors WHERE data_set = :data_set AND {_SAME_PHASE}"
        f" AND survivors IS NULL AND NOT EXISTS (SELECT 1 FROM reveals WHERE {_SAME_PHASE}"
        " AND status = 'revealed')",
        {**of_phase, "data_set": data_set, "survivors": "\n".join(sorted(survivors))},
    )


def forget_use(connection: sqlite3.Connection, of_phase: dict[str, Any]) -> None:
    """t named silos never reveal the phase: it has no sum, so it was no use."""
    connection.execute(f"DELETE FROM state_uses WHERE {_SAME_PHASE}", of_phase)


def _reads(job: Job, key: PhaseKey) -> int:
    """An evaluation between rounds sums what hold-outs give, and the rounds of such a job do not."""
    if key.kind == EVALUATE_ALL:
        return READS_HOLDOUT
    is_round = not job.names_everyone(key.phase)
    return READS_TRAINING if is_round and not tests_in(job.spec) else READS_ALL


def _rows(connection: sqlite3.Connection, data_set: str, of_phase: dict[str, Any]) -> list[sqlite3.Row]:
    return connection.execute(
        f"SELECT * FROM state_uses WHERE data_set = :data_set AND {_SAME_PHASE}",
        {**of_phase, "data_set": data_set},
    ).fetchall()


def _others(connection: sqlite3.Connection, use: StateUse, digest: bytes, data_set: str) -> list[sqlite3.Row]:
    """Other phases over the same arrays, of that digest, whose sums tell of the same samples.

    survivors: as this silo revealed them, else as settled: t silos may also have signed U3 of an attempt that
    was not the one revealed.
    """
    return connection.execute(
        """
        SELECT job_digest, round, phase, min_distance, members, is_drawn, reads,
            coalesce(revealed.survivors, state_uses.survivors) AS survivors
        FROM state_uses LEFT JOIN (
            SELECT job_digest, round, phase, survivors FROM reveals WHERE status = 'revealed'
        ) AS revealed USING (job_digest, round, phase)
        """
        "WHERE data_set = :data_set AND training_digest = :digest AND reads & :reads"
        f" AND NOT ({_SAME_PHASE})",
        {**use.of_phase, "data_set": data_set, "digest": digest, "reads": use.reads},
    ).fetchall()
