"""What the coordinator must remember: jobs, phases, who was left out, rosters in use.

Every step of a phase is one transaction, durable before anything that follows from it is sent.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import sqlalchemy as sa
from google.protobuf import json_format

from chorale.job import SignedJob
from chorale.runtime.database import close_database, open_database
from chorale.v1 import records_pb2
from coordinator.members.complaints import FiledComplaint
from coordinator.phase_machine import ENDED, PhaseState
from coordinator.storage.store_tables import (
    complaints,
    jobs,
    left_out,
    metadata,
    phases,
    rosters,
    round_rosters,
)
from crypto.errors import ConfigError, LocalProtocolError
from crypto.identity.certificates import SignedBody

# A phase runs some thirty statements, and to build one takes longer than to run it.
_OF_JOB: sa.BindParameter[bytes] = sa.bindparam("of_job")
_OF_ROUND: sa.BindParameter[int] = sa.bindparam("of_round")
_OF_PHASE: sa.BindParameter[str] = sa.bindparam("of_phase")
_OF_SEQUENCE: sa.BindParameter[int] = sa.bindparam("of_sequence")
_OF_REASON: sa.BindParameter[str] = sa.bindparam("of_reason")
_OF_STATE: sa.BindParameter[str] = sa.bindparam("of_state")
_MOST: sa.BindParameter[int] = sa.bindparam("most")
_JOB = jobs.select().where(jobs.c.digest == _OF_JOB)
_UPDATE_JOB = jobs.update().where(jobs.c.digest == _OF_JOB)
_ROUND_ROSTER = sa.select(round_rosters.c.version).where(
    round_rosters.c.job == _OF_JOB, round_rosters.c.round == _OF_ROUND
)
_PHASE = phases.select().where(phases.c.sequence == _OF_SEQUENCE)
_PHASE_AT = phases.select().where(
    phases.c.job == _OF_JOB, phases.c.round == _OF_ROUND, phases.c.phase == _OF_PHASE
)
_PHASES_AFTER = (
    phases.select()
    .where(phases.c.job == _OF_JOB, phases.c.sequence > _OF_SEQUENCE)
    .order_by(phases.c.sequence)
)
_COUNT_IN_STATE = (
    sa.select(sa.func.count())
    .select_from(phases)
    .where(phases.c.job == _OF_JOB, phases.c.phase == _OF_PHASE, phases.c.state == _OF_STATE)
)
_NEWEST_STARTS = (
    sa.select(phases.c.state_digest)
    .where(phases.c.job == _OF_JOB)
    .order_by(phases.c.sequence.desc())
    .limit(_MOST)
)
_UPDATE_PHASE = phases.update().where(phases.c.sequence == _OF_SEQUENCE)
_ABSENCES = left_out.select().where(left_out.c.phase == _OF_SEQUENCE).order_by(left_out.c.sequence)
_ABSENT_SINCE = (
    sa.select(left_out.c.silo)
    .join(phases, left_out.c.phase == phases.c.sequence)
    .where(phases.c.job == _OF_JOB, phases.c.sequence > _OF_SEQUENCE, left_out.c.reason == _OF_REASON)
    .limit(1)
)
_COMPLAINTS = complaints.select().where(complaints.c.phase == _OF_SEQUENCE).order_by(complaints.c.sequence)


class JobStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # by the silos' privacy budget; the model so far stays
    FAILED = "failed"

    @property
    def is_ended(self) -> bool:
        return self not in (JobStatus.RUNNING, JobStatus.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    signed: SignedJob
    digest: bytes
    status: JobStatus
    reason: str
    submitted_unix_seconds: float
    state_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """state_digest: of the global state that the phase starts from. cohort: U3, from UNMASK on.
    session: what UNMASK resumes."""

    sequence: int
    job: bytes
    round: int
    phase: str
    roster_version: int
    state: PhaseState
    attempt: int
    started_unix_seconds: float
    upload_bytes: int
    cohort: list[str] | None
    session: bytes | None
    state_digest: bytes
    record_json: str | None

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def record(self) -> records_pb2.PhaseRecord | None:
        if self.record_json is None:
            return None
        return json_format.Parse(self.record_json, records_pb2.PhaseRecord())


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A silo that is not in the sum: when it was lost, and why (closed list, docs/protocol.md 9)."""

    silo: str
    stage: str
    reason: str


class Store:
    """One SQLite file. Calls are short and synchronous; one writer at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._engine = open_database(path)
        metadata.create_all(self._engine)

    def close(self) -> None:
        close_database(self._engine)

    # rosters

    def add_roster(self, version: int, signed: SignedBody) -> None:
        with self._engine.begin() as connection:
            known = connection.execute(sa.select(rosters.c.body).where(rosters.c.version == version)).scalar()
            if known is not None and known != signed.body:
                raise ConfigError(f"roster: version {version} was in use before with other content")
            if known is None:
                connection.execute(
                    rosters.insert().values(version=version, body=signed.body, signature=signed.signature)
                )

    def newest_roster_version(self) -> int:
        with self._engine.begin() as connection:
            return connection.execute(sa.select(sa.func.max(rosters.c.version))).scalar() or 0

    def roster(self, version: int) -> SignedBody:
        with self._engine.begin() as connection:
            row = connection.execute(rosters.select().where(rosters.c.version == version)).one()
        return SignedBody(body=row.body, signature=row.signature)

    # jobs

    def add_job(self, signed: SignedJob, *, state_digest: bytes, unix_seconds: float) -> bool:
        """False if the job is here already; its first submission stands."""
        insert = jobs.insert().values(
            digest=signed.digest,
            spec=signed.spec_bytes,
            signature=signed.signature,
            operator_certificate=signed.operator_certificate,
            status=JobStatus.RUNNING.value,
            submitted_unix_seconds=unix_seconds,
            state_digest=state_digest,
        )
        with self._engine.begin() as connection:
            if connection.execute(sa.select(jobs.c.digest).where(jobs.c.digest == signed.digest)).first():
                return False
            connection.execute(insert)
            return True

    def job(self, digest: bytes) -> JobRow | None:
        with self._engine.begin() as connection:
            row = connection.execute(_JOB, {"of_job": digest}).first()
        return None if row is None else _job_row(row)

    def jobs(self) -> list[JobRow]:
        """In the order of submission."""
        with self._engine.begin() as connection:
            return [_job_row(row) for row in connection.execute(jobs.select().order_by(jobs.c.sequence))]

    def count_jobs(self) -> dict[JobStatus, int]:
        """How many jobs have each status; one that none has is not there."""
        select = sa.select(jobs.c.status, sa.func.count()).group_by(jobs.c.status)
        with self._engine.begin() as connection:
            return {JobStatus(status): count for status, count in connection.execute(select)}

    def set_job_status(self, digest: bytes, status: JobStatus, *, reason: str = "") -> None:
        with self._engine.begin() as connection:
            connection.execute(_UPDATE_JOB, {"of_job": digest, "status": status.value, "reason": reason})

    def pin_round_roster(self, job: bytes, round: int, version: int) -> int:
        """The roster version of a round is that of its first attempt (docs/protocol.md 3.2)."""
        with self._engine.begin() as connection:
            pinned = connection.execute(_ROUND_ROSTER, {"of_job": job, "of_round": round}).scalar()
            if pinned is not None:
                return int(pinned)
            connection.execute(round_rosters.insert(), {"job": job, "round": round, "version": version})
            return version

    # phases

    def begin_phase(
        self, job: bytes, round: int, phase: str, *, roster_version: int, unix_seconds: float
    ) -> PhaseRow:
        """The row of a phase, new or as it stands; it starts from the job's present state."""
        of = {"of_job": job, "of_round": round, "of_phase": phase}
        with self._engine.begin() as connection:
            row = connection.execute(_PHASE_AT, of).first()
            if row is None:
                values = {
                    "job": job,
                    "round": round,
                    "phase": phase,
                    "roster_version": roster_version,
                    "state": PhaseState.WAITING.value,
                    "attempt": 0,
                    "started_unix_seconds": unix_seconds,
                    "state_digest": connection.execute(_JOB, of).one().state_digest,
                }
                connection.execute(phases.insert(), values)
                row = connection.execute(_PHASE_AT, of).one()
        return _phase_row(row)

    def phases(self, job: bytes, *, after: int = 0) -> list[PhaseRow]:
        """In the order in which they began. after: only those of a greater sequence number."""
        of = {"of_job": job, "of_sequence": after}
        with self._engine.begin() as connection:
            return [_phase_row(row) for row in connection.execute(_PHASES_AFTER, of)]

    def count_applied(self, job: bytes, phase: str) -> int:
        """In how many rounds the phase of this name was applied."""
        of = {"of_job": job, "of_phase": phase, "of_state": PhaseState.APPLIED.value}
        with self._engine.begin() as connection:
            return connection.execute(_COUNT_IN_STATE, of).scalar_one()

    def newest_starts(self, job: bytes, count: int) -> list[bytes]:
        """Digests of the states that the newest phases start from, newest first."""
        with self._engine.begin() as connection:
            return list(connection.execute(_NEWEST_STARTS, {"of_job": job, "most": count}).scalars())

    def phase(self, sequence: int) -> PhaseRow:
        with self._engine.begin() as connection:
            row = connection.execute(_PHASE, {"of_sequence": sequence}).one()
        return _phase_row(row)

    def begin_attempt(self, sequence: int, attempt: int) -> None:
        """Durable before anything is sent under that number: none comes twice."""
        values = {"attempt": attempt, "state": PhaseState.WAITING.value, "session": None, "upload_bytes": 0}
        with self._engine.begin() as connection:
            last = connection.execute(_PHASE, {"of_sequence": sequence}).one().attempt
            if attempt <= last:
                raise LocalProtocolError(f"store: attempt {attempt} follows attempt {last}")
            _update(connection, sequence, values)

    def set_phase_state(self, sequence: int, state: PhaseState) -> None:
        with self._engine.begin() as connection:
            _update(connection, sequence, {"state": state.value})

    def enter_unmask(
        self, sequence: int, *, session: bytes, cohort: Sequence[str], upload_bytes: int
    ) -> None:
        """From here on this very session is resumed (docs/protocol.md 6)."""
        values = {"session": session, "cohort": list(cohort), "upload_bytes": upload_bytes}
        with self._engine.begin() as connection:
            _update(connection, sequence, {"state": PhaseState.UNMASK.value, **values})

    def enter_revealed(self, sequence: int, *, upload_bytes: int) -> None:
        """The sum is known and stored; no share is asked for again."""
        with self._engine.begin() as connection:
            _update(connection, sequence, {"state": PhaseState.REVEALED.value, "upload_bytes": upload_bytes})

    def end_phase(self, sequence: int, *, state: PhaseState, record: records_pb2.PhaseRecord) -> None:
        """One transaction: the phase's result, its record and the job's new state, once."""
        if state not in ENDED:
            raise LocalProtocolError(f"store: a phase does not end in state {state.value}")
        with self._engine.begin() as connection:
            row = connection.execute(_PHASE, {"of_sequence": sequence}).one()
            if PhaseState(row.state) in ENDED:
                return
            record_json = json_format.MessageToJson(record)
            _update(
                connection,
                sequence,
                {"state": state.value, "record_json": record_json, "session": None},
            )
            connection.execute(_UPDATE_JOB, {"of_job": row.job, "state_digest": record.state_digest})

    def add_absences(self, sequence: int, attempt: int, absences: Sequence[Absence]) -> None:
        with self._engine.begin() as connection:
            for absence in absences:
                insert = left_out.insert().prefix_with("OR IGNORE")
                connection.execute(
                    insert.values(
                        phase=sequence,
                        attempt=attempt,
                        silo=absence.silo,
                        stage=absence.stage,
                        reason=absence.reason,
                    )
                )

    def absences(self, sequence: int) -> list[Absence]:
        """All of a phase, in the order in which they came."""
        with self._engine.begin() as connection:
            rows = connection.execute(_ABSENCES, {"of_sequence": sequence}).all()
        return [Absence(silo=row.silo, stage=row.stage, reason=row.reason) for row in rows]

    def was_absent_since(self, job: bytes, sequence: int, reason: str) -> bool:
        """Whether a silo was left out for this reason in a phase after that one."""
        of = {"of_job": job, "of_sequence": sequence, "of_reason": reason}
        with self._engine.begin() as connection:
            return connection.execute(_ABSENT_SINCE, of).first() is not None

    def add_complaint(self, sequence: int, complaint: FiledComplaint) -> None:
        with self._engine.begin() as connection:
            connection.execute(
                complaints.insert()
                .prefix_with("OR IGNORE")
                .values(
                    phase=sequence,
                    attempt=complaint.attempt,
                    sender=complaint.sender,
                    accused=complaint.accused,
                )
            )

    def complaints(self, sequence: int) -> list[FiledComplaint]:
        with self._engine.begin() as connection:
            rows = connection.execute(_COMPLAINTS, {"of_sequence": sequence}).all()
        return [FiledComplaint(attempt=row.attempt, sender=row.sender, accused=row.accused) for row in rows]


def _update(connection: sa.Connection, sequence: int, values: dict[str, object]) -> None:
    connection.execute(_UPDATE_PHASE, {"of_sequence": sequence, **values})


def _job_row(row: sa.Row[tuple[object, ...]]) -> JobRow:
    signed = SignedJob(
        spec_bytes=row.spec, signature=row.signature, operator_certificate=row.operator_certificate
    )
    return JobRow(
        signed=signed,
        digest=row.digest,
        status=JobStatus(row.status),
        reason=row.reason,
        submitted_unix_seconds=row.submitted_unix_seconds,
        state_digest=row.state_digest,
    )


def _phase_row(row: sa.Row[tuple[object, ...]]) -> PhaseRow:
    values = dict(row._mapping)
    values["state"] = PhaseState(values["state"])
    return PhaseRow(**values)
