"""The record of a phase that is over: what is stored of it and told to operator, silos and audit log.

Source: docs/protocol.md 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chorale.observability.logs import get_logger
from chorale.transport.wire import phase_kind
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2
from coordinator.phase_machine import GIVEN_UP_IN, PhaseState
from coordinator.reasons import WAITED_FOR, Absent
from coordinator.resources import Resources
from coordinator.storage.store import Absence, PhaseRow
from strategies.base import PhaseResult

log = get_logger("coordinator.jobs.phase_record")


class ApprovalWait:
    """How long a phase waited for people at its silos, in this process."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    def note(self, awaited: Mapping[str, str], *, now: float) -> None:
        """awaited: by silo, as told to operators. now: monotonic."""
        self._seconds = self.seconds(now=now)
        self._since = now if {*WAITED_FOR.values()} & {*awaited.values()} else None

    def seconds(self, *, now: float) -> float:
        return self._seconds + (0.0 if self._since is None else now - self._since)


def phase_record(
    resources: Resources,
    row: PhaseRow,
    result: PhaseResult,
    *,
    state: PhaseState,
    attempts: int,
    state_digest: bytes,
    quantities: Sequence[str],
    upload_bytes: int,
    verified_by: int,
    threshold: int,
    approval_seconds: float,
) -> records_pb2.PhaseRecord:
    """left_out: silos that are not in the sum, each with where it was lost first; proven liars; and silos for
    which the phase was given up, though their inputs were there.

    approval_seconds: as ApprovalWait has them.
    """
    cohort = row.cohort if attempts and row.cohort else []
    first: dict[str, Absence] = {}
    for absence in resources.store.absences(row.sequence):
        if absence.silo not in cohort or absence.reason == Absent.LIED or absence.stage in GIVEN_UP_IN:
            first.setdefault(absence.silo, absence)
    return records_pb2.PhaseRecord(
        job_digest=row.job,
        round=row.round,
        phase=row.phase,
        attempts=attempts,
        result=state.value,
        reason=result.reason,
        cohort=cohort,
        left_out=[
            records_pb2.LeftOut(
                silo=silo, stage=absence.stage, reason=absence.reason, rule=absence.rule, text=absence.text
            )
            for silo, absence in sorted(first.items())
        ],
        data_share=result.data_share,
        figures=dict(result.figures),
        tables={
            name: records_pb2.Table(shape=table.shape, values=table.ravel())
            for name, table in result.tables.items()
        },
        state_digest=state_digest,
        wall_seconds=max(0.0, resources.clock.unix_seconds() - row.started_unix_seconds - approval_seconds),
        approval_seconds=approval_seconds,
        upload_bytes=upload_bytes,
        quantities=quantities,
        verified_by=verified_by,
        threshold=threshold,
    )


def note_absences(resources: Resources, row: PhaseRow, attempt: int, absences: Sequence[Absence]) -> None:
    """Of the session that ends, or of the signatures that it led to: stored, counted and logged."""
    resources.store.add_absences(row.sequence, attempt, absences)
    for absence in absences:
        resources.metrics.dropouts.labels(silo=absence.silo, stage=absence.stage).inc()
        log.warning(
            "silo left out",
            silo=absence.silo,
            stage=absence.stage,
            reason=absence.reason,
            job=row.job.hex()[:12],
            round=row.round,
            phase=row.phase,
            attempt=attempt,
        )


def told_to_silos(record: records_pb2.PhaseRecord) -> pb.CoordinatorMessage:
    """Without tables: they are by class, for the job's operator, and silos may refuse to see such sums.
    Nor what came with a refusal: policy and people of one institution are no matter of another."""
    public = records_pb2.PhaseRecord()
    public.CopyFrom(record)
    public.ClearField("tables")
    for left in public.left_out:
        left.ClearField("rule")
        left.ClearField("text")
    return pb.CoordinatorMessage(outcome=pb.PhaseOutcome(record=public))


def publish(resources: Resources, record: records_pb2.PhaseRecord) -> None:
    """In metrics, audit log and log; the silos are told by the job's runner."""
    metrics, kind, job_id = resources.metrics, phase_kind(record.phase), record.job_digest.hex()[:12]
    metrics.rounds.labels(phase=kind, result=record.result).inc()
    if record.cohort:  # of the last sum: a phase that was used up has none
        metrics.cohort_size.labels(phase=kind).set(len(record.cohort))
    metrics.clipped.inc(record.figures.get("clipped", 0.0))
    if "accuracy" in record.figures:
        metrics.show_figures(job_id, record.figures)
    if kind == "train":
        metrics.data_share.labels(federation_job=job_id).set(record.data_share)
    resources.audit.append(
        "phase_ended",
        job=job_id,
        round=record.round,
        phase=record.phase,
        attempts=record.attempts,
        result=record.result,
        reason=record.reason,
        cohort=list(record.cohort),
        left_out=[f"{entry.silo} {entry.stage} {entry.reason}" for entry in record.left_out],
        state_digest=record.state_digest.hex(),
    )
    log.info(
        "phase ended",
        result=record.result,
        reason=record.reason,
        cohort=list(record.cohort),
        left_out=[entry.silo for entry in record.left_out],
        data_share=record.data_share,
        job=job_id,
        round=record.round,
        phase=record.phase,
        attempt=record.attempts,
    )
