"""What the coordinator hands out for an archive of evidence: proofs that silos signed, and its own statement.

No value of a silo is in it, and no sum. Source: docs/protocol.md 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from chorale import evidence
from chorale.evidence import AuditExcerpt, CoordinatorStatement, LeftOutFact, PhaseFacts, Runs
from chorale.spec.state import state_from_file
from chorale.transport.wire import CHUNK_BYTES, signed_body_to_wire
from chorale.v1 import federation_pb2, records_pb2
from chorale.v1 import operations_pb2 as pb
from coordinator.resources import Resources
from coordinator.storage.store import JobRow, PhaseRow

AUDITED = ("job_submitted", "job_controlled", "phase_ended", "job_ended")


def evidence_of(
    resources: Resources, row: JobRow, summary: records_pb2.JobSummary, model: Path
) -> Iterator[pb.EvidenceMessage]:
    """The job, the signed statement, the rosters of its phases with the present one, the proofs. Blocks.

    model: the state that the job hands out.
    """
    phases = [phase for phase in resources.store.phases(row.digest) if phase.is_ended]
    statement = _statement(resources, row, summary, model, phases)
    signed = evidence.sign_statement(statement, resources.credentials.identity)
    return _messages(resources, row, phases, signed)


def _messages(
    resources: Resources, row: JobRow, phases: list[PhaseRow], signed: bytes
) -> Iterator[pb.EvidenceMessage]:
    store = resources.store
    yield pb.EvidenceMessage(job=row.signed.to_wire())
    for offset in range(0, len(signed), CHUNK_BYTES):
        chunk = federation_pb2.Chunk(offset=offset, data=signed[offset : offset + CHUNK_BYTES])
        yield pb.EvidenceMessage(statement=chunk)
    versions = {phase.sequence: phase.roster_version for phase in phases}
    for version in sorted({*versions.values(), resources.roster_book.current.version}):
        yield pb.EvidenceMessage(roster=signed_body_to_wire(store.roster(version)))
    for sequence, proof in store.proofs_by_phase(row.digest).items():
        if sequence in versions:
            proof.ClearField("roster")
            yield pb.EvidenceMessage(proof=pb.EvidenceProof(proof=proof, roster_version=versions[sequence]))


def _statement(
    resources: Resources,
    row: JobRow,
    summary: records_pb2.JobSummary,
    model: Path,
    phases: list[PhaseRow],
) -> CoordinatorStatement:
    connections = resources.attendance.connections
    return CoordinatorStatement(
        federation=resources.settings.federation,
        job=row.digest.hex(),
        made=evidence.now(),
        coordinator=resources.credentials.member.name,
        software=Runs.here(resources.software),
        silos={
            name: Runs(version=connections[name].software.version, sha256=connections[name].software.sha256)
            for name in sorted(set(summary.silos) & connections.keys())
        },
        submitted=datetime.fromtimestamp(int(row.submitted_unix_seconds), UTC),
        status=summary.status,
        reason=summary.reason,
        model=model.stem,
        model_round=summary.model_round,
        kept=summary.kept,
        arrays=evidence.shapes_of(state_from_file(model)),
        phases=tuple(_facts(phase) for phase in phases),
        audit=AuditExcerpt.of(resources.settings.directory / "audit.jsonl", job=row.digest, events=AUDITED),
    )


def _facts(phase: PhaseRow) -> PhaseFacts:
    record = phase.record
    assert record is not None  # it has ended
    return PhaseFacts(
        round=record.round,
        phase=record.phase,
        roster_version=phase.roster_version,
        attempts=record.attempts,
        result=record.result,
        reason=record.reason,
        cohort=tuple(record.cohort),
        left_out=tuple(
            LeftOutFact(silo=each.silo, stage=each.stage, reason=each.reason) for each in record.left_out
        ),
        data_share=evidence.number(record.data_share),
        figures={name: evidence.number(value) for name, value in sorted(record.figures.items())},
        state=record.state_digest.hex(),
        seconds=evidence.number(record.wall_seconds),
        upload_bytes=record.upload_bytes,
        quantities=tuple(record.quantities),
        verified_by=record.verified_by,
        threshold=record.threshold,
    )
