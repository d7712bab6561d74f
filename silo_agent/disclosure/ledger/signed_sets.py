"""The cohorts whose sum this silo signed, each compared with those before: two over nearly the same
silos differ by the data of a few. Source: docs/protocol.md 6.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from chorale.runtime.database import Migration
from crypto.errors import PolicyRefusal, Refusal
from crypto.session.messages import SessionTerms
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger.costs import is_covered
from strategies.analysis.method import KINDS

TABLES: Migration = (
    """
    CREATE TABLE signed_sets ( -- every U3 that this silo signed and that others' shares may have revealed
        number INTEGER NOT NULL PRIMARY KEY, -- in the order of signing
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        attempt INTEGER NOT NULL,
        kind VARCHAR NOT NULL,
        data_set VARCHAR NOT NULL,
        survivors VARCHAR NOT NULL,
        min_cohort INTEGER NOT NULL,
        is_change BOOLEAN NOT NULL, -- counts against the policy's max_cohort_changes
        is_covered BOOLEAN NOT NULL DEFAULT 0, -- by epsilon
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
)

# Sums of these kinds carry no noise, and two of them over nearly the same silos differ by one's data.
DIFFERENCED_KINDS = frozenset({"column-moments", "class-presence", "calibrate", "fine-tune"})
# Rounds of a job that grows trees: records by input and bin are the same in each tree.
TREE_LEVEL = "tree-level"
# Sums of these kinds tell of the same values and categories, so they are compared with one another.
OF_COLUMNS = frozenset({"column-moments", *KINDS})
SAME_PHASE = "job_digest = :job AND round = :round AND phase = :phase"
# Attempts at one phase exclude each other: quorums of t share an honest silo, and it
# never adverts for a phase that it revealed (docs/protocol.md 3.1).
_OTHER_SETS = f"data_set = :data_set AND NOT ({SAME_PHASE})"


def phase_of(key: SessionTerms | PendingReveal) -> dict[str, Any]:
    """As `SAME_PHASE` and the statements around it name it."""
    return {"job": key.job_digest, "round": key.round, "phase": key.phase}


def refusal(key: SessionTerms | PendingReveal, why: str, code: Refusal) -> PolicyRefusal:
    return PolicyRefusal(f"job {key.job_digest.hex()[:12]} round {key.round} {key.phase}: {why}", code=code)


def joined(names: Iterable[str]) -> str:
    """Silos as the tables hold them."""
    return "\n".join(sorted(names))


def note_signed(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """values: by the names of the columns, `phase_of` included."""
    connection.execute(
        "INSERT INTO signed_sets"
        " (job_digest, round, phase, attempt, kind, data_set, survivors, min_cohort, is_change,"
        " is_covered) VALUES (:job, :round, :phase, :attempt, :kind, :data_set, :survivors,"
        " :min_cohort, :is_change, :is_covered)",
        values,
    )


def forget_other_attempts(connection: sqlite3.Connection, revealed: PendingReveal) -> None:
    """t silos signed this attempt, and honest ones that revealed an earlier one never do: its cohort was not
    revealed and need not be compared with again."""
    connection.execute(
        f"DELETE FROM signed_sets WHERE {SAME_PHASE} AND attempt != :attempt",
        phase_of(revealed) | {"attempt": revealed.attempt},
    )


def last_attempt(connection: sqlite3.Connection, terms: SessionTerms) -> int | None:
    """The newest that was signed of the phase."""
    (last,) = connection.execute(
        f"SELECT max(attempt) FROM signed_sets WHERE {SAME_PHASE}", phase_of(terms)
    ).fetchone()
    return None if last is None else int(last)


def is_change(
    connection: sqlite3.Connection,
    key: SessionTerms | PendingReveal,
    survivors: tuple[str, ...],
    *,
    kind: str,
    data_set: str,
    min_cohort: int,
    max_changes: int,
) -> bool:
    """Whether the sum counts as a change of the cohort. Raises PolicyRefusal where none may follow.

    Sums of all jobs and kinds of the data set are compared and counted, but those that epsilon covers.
    """
    of = {**phase_of(key), "kind": kind, "data_set": data_set}
    differenced = DIFFERENCED_KINDS | {TREE_LEVEL}
    alike = OF_COLUMNS if kind in OF_COLUMNS else differenced & {kind}
    of_alike = f"{_OTHER_SETS} AND kind IN ({', '.join(map(repr, alike))})"
    if alike and _is_near(connection, of_alike, of, survivors, min_cohort):
        why = f"a sum of {' or '.join(sorted(alike))} over nearly the same silos was signed before"
        raise refusal(key, why, Refusal.OVERLAPPING_COHORT)
    # of three sets of one job, however far apart, sums may add up to one silo
    of_job = f"{_OTHER_SETS} AND kind = :kind AND job_digest = :job"
    if kind in differenced and _is_other(connection, of_job, of, survivors):
        raise refusal(
            key, f"a {kind} sum of the job over other silos was signed before", Refusal.OVERLAPPING_COHORT
        )
    bare = f"{_OTHER_SETS} AND NOT is_covered"
    if is_covered(connection, data_set, of):
        return False
    if not _is_near(connection, bare, of, survivors, min_cohort):
        return False
    # of the phase before, all its attempts: any of them may have been revealed by others' shares
    before = connection.execute(
        f"""
        SELECT DISTINCT survivors FROM signed_sets JOIN (
            SELECT job_digest, round, phase FROM signed_sets WHERE {bare} ORDER BY number DESC LIMIT 1
        ) USING (job_digest, round, phase)
        """,
        of,
    ).fetchall()
    if [row["survivors"] for row in before] == [joined(survivors)]:  # a dropout that lasts counts once
        return False
    granted = _granted(connection, key.job_digest, data_set)
    if _beyond_grants(connection, of) > max_changes:
        also = f" and {granted} that were granted" if granted else ""
        why = f"cohort changed nearly, more than {max_changes}{also} times"
        raise refusal(key, why, Refusal.OVERLAPPING_COHORT)
    return True


def _granted(connection: sqlite3.Connection, job_digest: bytes, data_set: str) -> int:
    """Changes that the institution granted to a job on this data set."""
    (granted,) = connection.execute(
        "SELECT coalesce(sum(changes), 0) FROM cohort_change_grants WHERE job_digest = ? AND data_set = ?",
        (job_digest, data_set),
    ).fetchone()
    return int(granted)


def _beyond_grants(connection: sqlite3.Connection, of: dict[str, Any]) -> int:
    """Changes of all jobs, this one included, less what each job was granted. Attempts at one phase count
    once."""
    rows = connection.execute(
        "SELECT job_digest, count(DISTINCT round || ' ' || phase) AS changes FROM signed_sets"
        f" WHERE is_change AND {_OTHER_SETS} GROUP BY job_digest",
        of,
    ).fetchall()
    changes = Counter({row["job_digest"]: row["changes"] for row in rows})
    changes[of["job"]] += 1
    beyond = (count - _granted(connection, job, of["data_set"]) for job, count in changes.items())
    return sum(max(0, each) for each in beyond)


def _is_near(
    connection: sqlite3.Connection,
    which: str,
    of: dict[str, Any],
    survivors: tuple[str, ...],
    min_cohort: int,
) -> bool:
    sets = connection.execute(
        f"SELECT DISTINCT survivors, min_cohort FROM signed_sets WHERE {which}", of
    ).fetchall()
    for row in sets:
        changed = len(set(survivors) ^ set(row["survivors"].split("\n")))
        if 1 <= changed <= max(min_cohort, row["min_cohort"]) - 1:
            return True
    return False


def _is_other(
    connection: sqlite3.Connection, which: str, of: dict[str, Any], survivors: tuple[str, ...]
) -> bool:
    found = connection.execute(
        f"SELECT 1 FROM signed_sets WHERE {which} AND survivors != :survivors LIMIT 1",
        of | {"survivors": joined(survivors)},
    ).fetchone()
    return found is not None
