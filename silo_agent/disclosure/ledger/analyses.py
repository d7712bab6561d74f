"""Which analyses a data set has answered: few in all, over the same silos, and each of the same records.

Two tables over other silos, or of parts that were cut otherwise, may be solved for a cell that neither shows.
A time to an event is counted by ending: its own counts less the events' would be those of censored records.
Source: docs/protocol.md 6.14, docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from chorale.runtime.database import Migration
from chorale.spec.analysis_spec import DescribedColumn
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import any_spec
from chorale.transport.wire import phase_kind
from crypto.errors import Refusal, Rule
from crypto.session.messages import SessionTerms
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger.signed_sets import SAME_PHASE, joined, note_signed, phase_of, refusal
from silo_agent.disclosure.policy.privacy_policy import refusal_by
from strategies.analysis.method import KINDS

TABLES: Migration = (
    """
    CREATE TABLE described_records ( -- of each analysis, as they were when its first sum was made
        job_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL,
        records_digest BLOB NOT NULL,
        UNIQUE (job_digest, data_set)
    )
    """,
)

_OF_ANALYSES = f"data_set = :data_set AND kind IN ({', '.join(map(repr, KINDS))})"


def check_analysis(
    connection: sqlite3.Connection,
    key: SessionTerms | PendingReveal,
    *,
    data_set: str,
    most: int,
    survivors: tuple[str, ...] | None = None,
) -> None:
    """most: analyses of the data set, this one included. survivors: U3; None before it is known. Raises
    PolicyRefusal, also where sums were only signed: others' shares may have revealed them."""
    if phase_kind(key.phase) not in KINDS:
        return
    check_others(connection, key.job_digest, data_set=data_set, most=most)
    if survivors is None:
        return
    found = connection.execute(
        f"SELECT 1 FROM signed_sets WHERE {_OF_ANALYSES} AND NOT ({SAME_PHASE})"
        " AND survivors != :survivors LIMIT 1",
        {**phase_of(key), "data_set": data_set, "survivors": joined(survivors)},
    ).fetchone()
    if found is not None:
        raise refusal(
            key, "a sum of an analysis over other silos was signed before", Refusal.OVERLAPPING_COHORT
        )


def check_others(connection: sqlite3.Connection, job_digest: bytes, *, data_set: str, most: int) -> None:
    """Raises PolicyRefusal where the data set has answered as many other analyses, or one whose parts of a
    column are other ones than this one's."""
    others = connection.execute(
        f"SELECT DISTINCT job_digest FROM signed_sets WHERE {_OF_ANALYSES} AND job_digest != :job",
        {"data_set": data_set, "job": job_digest},
    ).fetchall()
    if len(others) >= most:
        raise refusal_by(
            f"an analysis after {len(others)} others of the data set", f"at most {most}", Rule.MOST_ANALYSES
        )
    cuts = _cuts(connection, job_digest)
    for each in others:
        its = _cuts(connection, each["job_digest"])
        if other := [name for name, cut in cuts.items() if its.get(name, cut) != cut]:
            raise refusal_by(
                "an analysis that has other parts of it, or as a time to an event, than one before",
                f"{other[0]} cut alike in all analyses of the data set",
                Rule.MOST_ANALYSES,
            )


def _cuts(connection: sqlite3.Connection, job_digest: bytes) -> dict[str, tuple[object, ...]]:
    """The parts of each column, and whether they are counted by ending; none of a job that a recovery
    recorded, after which no other analysis is over the same silos."""
    row = connection.execute("SELECT spec FROM jobs WHERE job_digest = ?", (job_digest,)).fetchone()
    if row is None or row["spec"] is None:
        return {}
    spec = any_spec(row["spec"], source="job")
    if isinstance(spec, JobSpec):
        return {} if spec.subgroups is None else {spec.subgroups.name: _cut(spec.subgroups, is_time=False)}
    return {each.name: _cut(each, is_time=each.name in spec.times) for each in spec.columns}


def _cut(column: DescribedColumn, *, is_time: bool) -> tuple[object, ...]:
    return column.edges, column.categories, column.unit, is_time


def are_first_records(
    connection: sqlite3.Connection, job_digest: bytes, records_digest: bytes, *, data_set: str
) -> bool:
    """Whether the job's sums are of these records alone; from the first on, sent or not."""
    of = {"job": job_digest, "data_set": data_set, "digest": records_digest}
    connection.execute(
        "INSERT INTO described_records (job_digest, data_set, records_digest)"
        " VALUES (:job, :data_set, :digest) ON CONFLICT DO NOTHING",
        of,
    )
    found = connection.execute(
        "SELECT records_digest = :digest FROM described_records"
        " WHERE job_digest = :job AND data_set = :data_set",
        of,
    ).fetchone()
    return bool(found[0])


def note_recovered(connection: sqlite3.Connection, job_digest: bytes, data_sets: Iterable[str]) -> None:
    """An analysis that may have run since a snapshot counts as one, over silos that are not known; once,
    however often it is recovered."""
    noted = connection.execute(
        "SELECT data_set FROM signed_sets WHERE job_digest = ? AND survivors = ''", (job_digest,)
    ).fetchall()
    held = [row["data_set"] for row in noted]
    new = [each for each in dict.fromkeys(data_sets) if each not in held]
    for place, data_set in enumerate(new, start=len(held)):
        values = {
            "job": job_digest,
            "round": 0,
            "phase": f"{KINDS[0]}.0",
            "attempt": -place,
            "kind": KINDS[0],
            "data_set": data_set,
            "survivors": "",
            "min_cohort": 0,
            "is_change": False,
            "is_covered": False,
        }
        note_signed(connection, values)
