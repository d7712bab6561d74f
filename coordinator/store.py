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

from chorale.database import open_database
from chorale.job import SignedJob
from chorale.v1 import records_pb2
from coordinator.complaints import FiledComplaint
from coordinator.round_machine import ENDED, RoundState
from coordinator.store_tables import complaints, jobs, left_out, metadata, phases, rosters, round_rosters
from crypto.errors import ConfigError, LocalProtocolError
from crypto.messages import SignedBody


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
    state: RoundState
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
        self._engine.dispose()

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
            row = connection.execute(jobs.select().where(jobs.c.digest == digest)).first()
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
            connection.execute(
                jobs.update().where(jobs.c.digest == digest).values(status=status.value, reason=reason)
            )

    def pin_round_roster(self, job: bytes, round: int, version: int) -> int:
        """The roster version of a round is that of its first attempt (docs/protocol.md 3.2)."""
        where = sa.and_(round_rosters.c.job == job, round_rosters.c.round == round)
        with self._engine.begin() as connection:
            pinned = connection.execute(sa.select(round_rosters.c.version).where(where)).scalar()
            if pinned is not None:
                return int(pinned)
            connection.execute(round_rosters.insert().values(job=job, round=round, version=version))
            return version

    # phases

    def begin_phase(
        self, job: bytes, round: int, phase: str, *, roster_version: int, unix_seconds: float
    ) -> PhaseRow:
        """The row of a phase, new or as it stands; it starts from the job's present state."""
        with self._engine.begin() as connection:
            start = connection.execute(
                sa.select(jobs.c.state_digest).where(jobs.c.digest == job)
            ).scalar_one()
            row = connection.execute(_phase_at(job, round, phase)).first()
            if row is None:
                connection.execute(
                    phases.insert().values(
                        job=job,
                        round=round,
                        phase=phase,
                        roster_version=roster_version,
                        state=RoundState.WAITING.value,
                        attempt=0,
                        started_unix_seconds=unix_seconds,
                        state_digest=start,
                    )
                )
                row = connection.execute(_phase_at(job, round, phase)).one()
        return _phase_row(row)

    def phases(self, job: bytes) -> list[PhaseRow]:
        """In the order in which they began."""
        select = phases.select().where(phases.c.job == job).order_by(phases.c.sequence)
        with self._engine.begin() as connection:
            return [_phase_row(row) for row in connection.execute(select)]

    def newest_starts(self, job: bytes, count: int) -> list[bytes]:
        """Digests of the states that the newest phases start from, newest first."""
        select = sa.select(phases.c.state_digest).where(phases.c.job == job)
        with self._engine.begin() as connection:
            newest = select.order_by(phases.c.sequence.desc()).limit(count)
            return list(connection.execute(newest).scalars())

    def phase(self, sequence: int) -> PhaseRow:
        with self._engine.begin() as connection:
            row = connection.execute(sa.select(phases).where(phases.c.sequence == sequence)).one()
        return _phase_row(row)

    def begin_attempt(self, sequence: int, attempt: int) -> None:
        """Durable before anything is sent under that number: none comes twice."""
        values = {"attempt": attempt, "state": RoundState.WAITING.value, "session": None, "upload_bytes": 0}
        number = sa.select(phases.c.attempt).where(phases.c.sequence == sequence)
        with self._engine.begin() as connection:
            last = connection.execute(number).scalar_one()
            if attempt <= last:
                raise LocalProtocolError(f"store: attempt {attempt} follows attempt {last}")
            connection.execute(_update_phase(sequence).values(**values))

    def set_phase_state(self, sequence: int, state: RoundState) -> None:
        with self._engine.begin() as connection:
            connection.execute(_update_phase(sequence).values(state=state.value))

    def enter_unmask(
        self, sequence: int, *, session: bytes, cohort: Sequence[str], upload_bytes: int
    ) -> None:
        """From here on this very session is resumed (docs/protocol.md 6)."""
        values = {"session": session, "cohort": list(cohort), "upload_bytes": upload_bytes}
        with self._engine.begin() as connection:
            connection.execute(_update_phase(sequence).values(state=RoundState.UNMASK.value, **values))

    def enter_revealed(self, sequence: int, *, upload_bytes: int) -> None:
        """The sum is known and stored; no share is asked for again."""
        with self._engine.begin() as connection:
            connection.execute(
                _update_phase(sequence).values(state=RoundState.REVEALED.value, upload_bytes=upload_bytes)
            )

    def end_phase(self, sequence: int, *, state: RoundState, record: records_pb2.PhaseRecord) -> None:
        """One transaction: the phase's result, its record and the job's new state, once."""
        if state not in ENDED:
            raise LocalProtocolError(f"store: a phase does not end in state {state.value}")
        with self._engine.begin() as connection:
            row = connection.execute(phases.select().where(phases.c.sequence == sequence)).one()
            if RoundState(row.state) in ENDED:
                return
            connection.execute(
                _update_phase(sequence).values(
                    state=state.value, record_json=json_format.MessageToJson(record), session=None
                )
            )
            connection.execute(
                jobs.update().where(jobs.c.digest == row.job).values(state_digest=record.state_digest)
            )

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
        select = left_out.select().where(left_out.c.phase == sequence).order_by(left_out.c.sequence)
        with self._engine.begin() as connection:
            rows = connection.execute(select).all()
        return [Absence(silo=row.silo, stage=row.stage, reason=row.reason) for row in rows]

    def was_absent_since(self, job: bytes, sequence: int, reason: str) -> bool:
        """Whether a silo was left out for this reason in a phase after that one."""
        later = sa.and_(phases.c.job == job, phases.c.sequence > sequence, left_out.c.reason == reason)
        select = sa.select(left_out.c.silo).join(phases, left_out.c.phase == phases.c.sequence)
        with self._engine.begin() as connection:
            return connection.execute(select.where(later).limit(1)).first() is not None

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
        select = complaints.select().where(complaints.c.phase == sequence).order_by(complaints.c.sequence)
        with self._engine.begin() as connection:
            rows = connection.execute(select).all()
        return [FiledComplaint(attempt=row.attempt, sender=row.sender, accused=row.accused) for row in rows]


def _phase_at(job: bytes, round: int, phase: str) -> sa.Select[tuple[object, ...]]:
    return sa.select(phases).where(phases.c.job == job, phases.c.round == round, phases.c.phase == phase)


def _update_phase(sequence: int) -> sa.Update:
    return phases.update().where(phases.c.sequence == sequence)


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
    values["state"] = RoundState(values["state"])
    return PhaseRow(**values)
