"""A job without a signature and rows of its phases, as the sequence of phases reads them."""

from __future__ import annotations

from typing import Any

from chorale.job import Job, SignedJob
from coordinator.jobs.sequence import Step
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import PhaseRow
from tests.support.settings import job_spec


def make_job(preset: str = "fedavg", **fields: Any) -> Job:
    """Three rounds and two attempts at a phase, unless the test says otherwise."""
    often = {"enrollment_every": 1, "max_attempts": 2, **({} if "steps" in fields else {"rounds": 3})}
    spec = job_spec(**{"strategy": {"preset": preset}, "input_shape": (4,), **often} | fields)
    signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
    return Job(spec=spec, signed=signed, operator="ops")


def make_row(sequence: int, step: Step, state: PhaseState, *, record_json: str | None = None) -> PhaseRow:
    round, phase = step
    return PhaseRow(
        sequence=sequence,
        job=b"",
        round=round,
        phase=phase,
        roster_version=1,
        state=state,
        attempt=1,
        started_unix_seconds=0.0,
        upload_bytes=0,
        cohort=None,
        session_digest=None,
        state_digest=b"",
        record_json=record_json,
    )
