"""What the coordinator must remember: jobs, phases, who was left out, rosters in use.

Every step of a phase is one transaction, durable before anything that follows from it is sent.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path

from google.protobuf import json_format

from chorale.job import SignedJob
from chorale.observability.audit_head import AuditHead
from chorale.runtime.database import Commit, Database
from chorale.v1 import records_pb2, session_pb2
from coordinator.complaints import FiledComplaint
from coordinator.phase_machine import ENDED, PhaseState
from coordinator.reasons import Reason
from coordinator.storage.schema import MIGRATIONS
from crypto.errors import ConfigError, LocalProtocolError
from crypto.identity.certificates import SignedBody


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
    session_digest: of the stored session that UNMASK resumes. self_mask_seeds: b by silo of U3, of a revealed
    phase that opens a draw."""

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
    session_digest: bytes | None
    state_digest: bytes
    record_json: str | None
    self_mask_seeds: dict[str, bytes] | None = None

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
    """A silo that is not in the sum: when it was lost, and why (closed list, docs/protocol.md 9).

    rule, text: as its refusal has them.
    """

    silo: str
    stage: str
    reason: str
    rule: str = ""
    text: str = ""

    @property
    def why(self) -> Reason:
        return Reason(code=self.reason, rule=self.rule, text=self.text)


class Store:
    """One SQLite file. Calls are short and synchronous; one writer at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._database = Database(path, MIGRATIONS)

    def close(self) -> None:
        self._database.close()

    def audit_head(self) -> AuditHead:
        """What is known of the audit log."""
        return AuditHead(self._database)

    # rosters

    def add_roster(self, version: int, signed: SignedBody) -> None:
        with self._database.transaction() as connection:
            known = connection.execute("SELECT body FROM rosters WHERE version = ?", (version,)).fetchone()
            if known is not None and known["body"] != signed.body:
                raise ConfigError(f"roster: version {version} was in use before with other content")
            if known is None:
                connection.execute(
                    "INSERT INTO rosters (version, body, signature) VALUES (?, ?, ?)",
                    (version, signed.body, signed.signature),
                )

    def newest_roster_version(self) -> int:
        with self._database.reading() as connection:
            (version,) = connection.execute("SELECT max(version) FROM rosters").fetchone()
        return version or 0

    def roster(self, version: int) -> SignedBody:
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM rosters WHERE version = ?", (version,)).fetchone()
        return SignedBody(body=row["body"], signature=row["signature"])

    def rosters(self) -> list[SignedBody]:
        """All that were in use, in order of version."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM rosters ORDER BY version").fetchall()
        return [SignedBody(body=row["body"], signature=row["signature"]) for row in rows]

    # jobs

    def add_job(self, signed: SignedJob, *, state_digest: bytes, unix_seconds: float) -> bool:
        """False if the job is here already; its first submission stands."""
        with self._database.transaction() as connection:
            added = connection.execute(
                "INSERT INTO jobs (digest, spec, signature, operator_certificate, status, reason,"
                " submitted_unix_seconds, state_digest)"
                " VALUES (?, ?, ?, ?, ?, '', ?, ?) ON CONFLICT (digest) DO NOTHING",
                (
                    signed.digest,
                    signed.spec_bytes,
                    signed.signature,
                    signed.operator_certificate,
                    JobStatus.RUNNING,
                    unix_seconds,
                    state_digest,
                ),
            )
            return added.rowcount == 1

    def job(self, digest: bytes) -> JobRow | None:
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM jobs WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else _job_row(row)

    def jobs(self) -> list[JobRow]:
        """In the order of submission."""
        with self._database.reading() as connection:
            return [_job_row(row) for row in connection.execute("SELECT * FROM jobs ORDER BY sequence")]

    def last_ended(self, most: int) -> list[JobRow]:
        """So many jobs that have ended, those that were submitted last."""
        ended = [status for status in JobStatus if status.is_ended]
        marks = ", ".join("?" * len(ended))
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT * FROM jobs WHERE status IN ({marks}) ORDER BY sequence DESC LIMIT ?", (*ended, most)
            ).fetchall()
        return [_job_row(row) for row in rows]

    def count_jobs(self) -> dict[JobStatus, int]:
        """How many jobs have each status; one that none has is not there."""
        with self._database.reading() as connection:
            counts = connection.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall()
        return {JobStatus(status): count for status, count in counts}

    def set_job_status(self, digest: bytes, status: JobStatus, *, reason: str = "") -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET status = ?, reason = ? WHERE digest = ?", (status, reason, digest)
            )

    def pin_round_roster(self, job: bytes, round: int, version: int) -> int:
        """The roster version of a round is that of its first attempt (docs/protocol.md 3.2)."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO round_rosters (job, round, version) VALUES (?, ?, ?)"
                " ON CONFLICT (job, round) DO NOTHING",
                (job, round, version),
            )
            (pinned,) = connection.execute(
                "SELECT version FROM round_rosters WHERE job = ? AND round = ?", (job, round)
            ).fetchone()
        return int(pinned)

    # phases

    def begin_phase(
        self, job: bytes, round: int, phase: str, *, roster_version: int, unix_seconds: float
    ) -> PhaseRow:
        """The row of a phase, new or as it stands; it starts from the job's present state."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO phases (job, round, phase, roster_version, state, attempt, started_unix_seconds,"
                " upload_bytes, state_digest)"
                " SELECT digest, ?, ?, ?, ?, 0, ?, 0, state_digest FROM jobs WHERE digest = ?"
                " ON CONFLICT (job, round, phase) DO NOTHING",
                (round, phase, roster_version, PhaseState.WAITING, unix_seconds, job),
            )
            row = connection.execute(
                "SELECT * FROM phases WHERE job = ? AND round = ? AND phase = ?", (job, round, phase)
            ).fetchone()
        return _phase_row(row)

    def phases(self, job: bytes, *, after: int = 0) -> list[PhaseRow]:
        """In the order in which they began. after: only those of a greater sequence number."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM phases WHERE job = ? AND sequence > ? ORDER BY sequence", (job, after)
            )
            return [_phase_row(row) for row in rows]

    def count_applied(self, job: bytes, phase: str) -> int:
        """In how many rounds the phase of this name was applied."""
        with self._database.reading() as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM phases WHERE job = ? AND phase = ? AND state = ?",
                (job, phase, PhaseState.APPLIED),
            ).fetchone()
        return int(count)

    def last_applied(self, job: bytes, phase: str) -> int:
        """The last round in which the phase of this name was applied; 0 if in none."""
        with self._database.reading() as connection:
            (round,) = connection.execute(
                "SELECT max(round) FROM phases WHERE job = ? AND phase = ? AND state = ?",
                (job, phase, PhaseState.APPLIED),
            ).fetchone()
        return round or 0

    def newest_starts(self, job: bytes, count: int) -> list[bytes]:
        """Digests of the states that the newest phases start from, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT state_digest FROM phases WHERE job = ? ORDER BY sequence DESC LIMIT ?", (job, count)
            )
            return [row["state_digest"] for row in rows]

    def phase(self, sequence: int) -> PhaseRow:
        with self._database.reading() as connection:
            return _phase(connection, sequence)

    def begin_attempt(self, sequence: int, attempt: int) -> None:
        """Durable before anything is sent under that number: none comes twice."""
        with self._database.transaction() as connection:
            last = _phase(connection, sequence).attempt
            if attempt <= last:
                raise LocalProtocolError(f"store: attempt {attempt} follows attempt {last}")
            connection.execute(
                "UPDATE phases SET attempt = ?, state = ?, session_digest = NULL, upload_bytes = 0"
                " WHERE sequence = ?",
                (attempt, PhaseState.WAITING, sequence),
            )

    def set_phase_state(self, sequence: int, state: PhaseState) -> None:
        """A stage before UNMASK: nothing that is sent depends on it, so no flush is waited for."""
        with self._database.transaction(Commit.UNFLUSHED) as connection:
            connection.execute("UPDATE phases SET state = ? WHERE sequence = ?", (state, sequence))

    def enter_unmask(
        self, sequence: int, *, session_digest: bytes, cohort: Sequence[str], upload_bytes: int
    ) -> None:
        """From here on this very session is resumed (docs/protocol.md 6)."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE phases SET state = ?, session_digest = ?, cohort = ?, upload_bytes = ?"
                " WHERE sequence = ?",
                (PhaseState.UNMASK, session_digest, json.dumps(list(cohort)), upload_bytes, sequence),
            )

    def enter_revealed(
        self, sequence: int, *, upload_bytes: int, self_mask_seeds: Mapping[str, bytes] | None = None
    ) -> None:
        """The sum is known and stored; no share is asked for again."""
        seeds = None
        if self_mask_seeds is not None:
            seeds = json.dumps({silo: seed.hex() for silo, seed in self_mask_seeds.items()})
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE phases SET state = ?, upload_bytes = ?, self_mask_seeds = ? WHERE sequence = ?",
                (PhaseState.REVEALED, upload_bytes, seeds, sequence),
            )

    def end_phase(
        self,
        sequence: int,
        *,
        state: PhaseState,
        record: records_pb2.PhaseRecord,
        proof: session_pb2.StateProof | None = None,
        cohort: session_pb2.CohortProof | None = None,
        abandoned: session_pb2.AbandonedProof | None = None,
    ) -> None:
        """One transaction: the phase's result, its record, the job's new state and its proof, once."""
        if state not in ENDED:
            raise LocalProtocolError(f"store: a phase does not end in state {state.value}")
        with self._database.transaction(Commit.QUIET) as connection:
            row = _phase(connection, sequence)
            if row.is_ended:
                return
            connection.execute(
                "UPDATE phases SET state = ?, record_json = ?, session_digest = NULL WHERE sequence = ?",
                (state, json_format.MessageToJson(record), sequence),
            )
            connection.execute(
                "UPDATE jobs SET state_digest = ? WHERE digest = ?", (record.state_digest, row.job)
            )
            if proof is not None:
                connection.execute(
                    "INSERT INTO state_proofs (phase, proof) VALUES (?, ?)",
                    (sequence, proof.SerializeToString()),
                )
            if cohort is not None or abandoned is not None:
                blobs = [None if each is None else each.SerializeToString() for each in (cohort, abandoned)]
                connection.execute(
                    "INSERT INTO phase_proofs (phase, cohort, abandoned) VALUES (?, ?, ?)", (sequence, *blobs)
                )

    def proofs(self, job: bytes) -> list[session_pb2.StateProof]:
        """Of the job's phases that moved its state: the first and the newest; one where they are the same."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT proof FROM state_proofs JOIN phases ON state_proofs.phase = phases.sequence"
                " WHERE job = ? ORDER BY sequence",
                (job,),
            ).fetchall()
        ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
        return [session_pb2.StateProof.FromString(row["proof"]) for row in ends]

    def proofs_by_phase(self, job: bytes) -> dict[int, session_pb2.StateProof]:
        """All of the job's, by the sequence numbers of their phases, in order."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT sequence, proof FROM state_proofs JOIN phases ON state_proofs.phase = phases.sequence"
                " WHERE job = ? ORDER BY sequence",
                (job,),
            ).fetchall()
        return {row["sequence"]: session_pb2.StateProof.FromString(row["proof"]) for row in rows}

    def phase_proofs(
        self, job: bytes, *, after: int
    ) -> tuple[list[session_pb2.CohortProof], list[session_pb2.AbandonedProof]]:
        """Of the job's phases of greater sequence numbers: who was in their sums, and which have none."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT phase_proofs.cohort, abandoned FROM phase_proofs"
                " JOIN phases ON phase_proofs.phase = phases.sequence"
                " WHERE job = ? AND sequence > ? ORDER BY sequence",
                (job, after),
            ).fetchall()
        cohorts = [session_pb2.CohortProof.FromString(row["cohort"]) for row in rows if row["cohort"]]
        given_up = [
            session_pb2.AbandonedProof.FromString(row["abandoned"]) for row in rows if row["abandoned"]
        ]
        return cohorts, given_up

    def unproven_phases(self, job: bytes, *, after: int) -> list[PhaseRow]:
        """Of the job's phases of greater sequence numbers, those without a sum of which nothing says who is
        in it, though silos may have given inputs."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT phases.* FROM phases LEFT JOIN phase_proofs ON phase_proofs.phase = phases.sequence"
                " WHERE job = ? AND sequence > ? AND state = ? AND attempt > 0 AND phase_proofs.phase IS NULL"
                " ORDER BY sequence",
                (job, after, PhaseState.USED_UP),
            ).fetchall()
        return [_phase_row(row) for row in rows]

    def add_abandoned(self, sequence: int, proof: session_pb2.AbandonedProof) -> None:
        """The phase has ended, and has no sum."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO phase_proofs (phase, abandoned) VALUES (?, ?)",
                (sequence, proof.SerializeToString()),
            )

    def add_absences(self, sequence: int, attempt: int, absences: Sequence[Absence]) -> None:
        with self._database.transaction() as connection:
            for absence in absences:
                connection.execute(
                    "INSERT INTO left_out (phase, attempt, silo, stage, reason, rule, text)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (phase, attempt, silo) DO NOTHING",
                    (sequence, attempt, *astuple(absence)),
                )

    def absences(self, sequence: int) -> list[Absence]:
        """All of a phase, in the order in which they came."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT silo, stage, reason, rule, text FROM left_out WHERE phase = ? ORDER BY sequence",
                (sequence,),
            )
            return [Absence(**row) for row in rows]

    def was_absent_since(self, job: bytes, sequence: int, reason: str) -> bool:
        """Whether a silo was left out for this reason in a phase after that one."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT silo FROM left_out JOIN phases ON left_out.phase = phases.sequence"
                " WHERE phases.job = ? AND phases.sequence > ? AND left_out.reason = ? LIMIT 1",
                (job, sequence, reason),
            ).fetchone()
        return row is not None

    def add_complaint(self, complaint: FiledComplaint) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO complaints (phase, attempt, sender, accused) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (phase, attempt, sender) DO NOTHING",
                (complaint.phase, complaint.attempt, complaint.sender, complaint.accused),
            )

    def complaints(self, job: bytes) -> list[FiledComplaint]:
        """Of all phases of the job, in order."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT c.phase, c.attempt, c.sender, c.accused FROM complaints AS c"
                " JOIN phases ON phases.sequence = c.phase WHERE job = ? ORDER BY c.sequence",
                (job,),
            )
            return [FiledComplaint(**row) for row in rows]


def _job_row(row: sqlite3.Row) -> JobRow:
    signed = SignedJob(
        spec_bytes=row["spec"], signature=row["signature"], operator_certificate=row["operator_certificate"]
    )
    return JobRow(
        signed=signed,
        digest=row["digest"],
        status=JobStatus(row["status"]),
        reason=row["reason"],
        submitted_unix_seconds=row["submitted_unix_seconds"],
        state_digest=row["state_digest"],
    )


def _phase(connection: sqlite3.Connection, sequence: int) -> PhaseRow:
    return _phase_row(connection.execute("SELECT * FROM phases WHERE sequence = ?", (sequence,)).fetchone())


def _phase_row(row: sqlite3.Row) -> PhaseRow:
    values = dict(row)
    values["state"] = PhaseState(row["state"])
    values["cohort"] = None if row["cohort"] is None else json.loads(row["cohort"])
    if (seeds := row["self_mask_seeds"]) is not None:
        values["self_mask_seeds"] = {silo: bytes.fromhex(seed) for silo, seed in json.loads(seeds).items()}
    return PhaseRow(**values)
