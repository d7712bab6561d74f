"""What the coordinator counts. Every label comes from a closed set and starts at zero.

`silo` labels come from the roster, `federation_job` from accepted jobs; nothing here is a figure
of one silo. Source: DESIGN 10.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from coordinator.phase_machine import STAGES, PhaseState
from coordinator.reasons import FailureReason
from coordinator.storage.store import JobStatus
from strategies.registry import PHASE_KINDS

PREFIX = "chorale_coordinator"
STAGE_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, math.inf)
FIGURES = ("accuracy", "loss")


class AttemptResult(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"


class Transfer(StrEnum):
    UPLOAD = "upload"
    DOWNLOAD = "download"
    MESSAGE = "message"


class CoordinatorMetrics:
    """One registry per process; the attributes are the metrics."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._count_rounds()
        self._count_silos()
        self._gauge_jobs()

    def _count_rounds(self) -> None:
        self.rounds = self._counter("rounds", "Phases that ended, by phase and result.", "phase", "result")
        self.attempts = self._counter(
            "attempts", "Sessions that ended, by phase and result.", "phase", "result"
        )
        self.session_failures = self._counter(
            "session_failures", "Sessions that ended without a sum, by reason.", "reason"
        )
        self.stage_duration = Histogram(
            f"{PREFIX}_stage_duration_seconds",
            "How long the stages of sessions took, by stage.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self.registry,
        )
        self.cohort_size = self._gauge("cohort_size", "Silos in the last revealed sum, by phase.", "phase")
        self.clipped = self._counter("clipped_values", "Values that silos clipped to their bound.")
        for phase in PHASE_KINDS:
            self.cohort_size.labels(phase=phase)
            for state in (PhaseState.APPLIED, PhaseState.USED_UP):
                self.rounds.labels(phase=phase, result=state.value)
            for result in AttemptResult:
                self.attempts.labels(phase=phase, result=result.value)
        for reason in FailureReason:
            self.session_failures.labels(reason=reason.value)
        for stage in STAGES:
            self.stage_duration.labels(stage=stage.value)

    def _count_silos(self) -> None:
        self.dropouts = self._counter(
            "dropouts", "Times a silo was left out of a session, by silo and stage.", "silo", "stage"
        )
        self.received_bytes = self._counter("received_bytes", "Bytes received from silos, by kind.", "kind")
        self.sent_bytes = self._counter("sent_bytes", "Bytes sent to silos, by kind.", "kind")
        self.refused_calls = self._counter(
            "refused_calls", "Calls refused because of certificate, roster or role, by role.", "role"
        )
        self.connected_silos = self._gauge("connected_silos", "Silos attending now.")
        for kind in Transfer:
            self.received_bytes.labels(kind=kind.value)
            self.sent_bytes.labels(kind=kind.value)
        for role in ("silo", "operator", "coordinator", "unknown"):
            self.refused_calls.labels(role=role)

    def _gauge_jobs(self) -> None:
        self.jobs = self._gauge("jobs", "Jobs that were ever submitted, by status.", "status")
        for status in JobStatus:
            self.jobs.labels(status=status.value)
        self.checkpoint = self._gauge(
            "checkpoint_timestamp_seconds",
            "When the newest checkpoint of a running job was written.",
            "federation_job",
        )
        self.accuracy = self._gauge("accuracy", "Last accuracy of the global model.", "federation_job")
        self.loss = self._gauge("loss", "Last loss of the global model.", "federation_job")
        self.data_share = self._gauge(
            "data_share", "Share of the federation's data in the last train phase, 0 to 1.", "federation_job"
        )
        self.rounds_completed = self._gauge("rounds_completed", "Train rounds applied.", "federation_job")
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds", "When the coordinator's own certificate expires."
        )
        self.roster_expiry = self._gauge("roster_expiry_timestamp_seconds", "When the roster in use expires.")
        self.roster_signed = self._gauge(
            "roster_signed_timestamp_seconds", "When the authority signed the roster in use."
        )
        self.roster_version = self._gauge("roster_version", "Version of the roster in use.")

    def know_silos(self, names: Iterable[str]) -> None:
        """Start the counts of these silos at zero."""
        for name in names:
            for stage in STAGES:
                self.dropouts.labels(silo=name, stage=stage.value)

    def know_job(self, job_id: str) -> None:
        """Accuracy and loss are not a number until a sum has shown them."""
        self.accuracy.labels(federation_job=job_id).set(math.nan)
        self.loss.labels(federation_job=job_id).set(math.nan)
        self.data_share.labels(federation_job=job_id)
        self.rounds_completed.labels(federation_job=job_id)

    def count_jobs(self, counts: Mapping[JobStatus, int]) -> None:
        """counts: jobs of each status; one that is not there has none."""
        for status in JobStatus:
            self.jobs.labels(status=status.value).set(counts.get(status, 0))

    def note_checkpoint(self, job_id: str, unix_seconds: float) -> None:
        self.checkpoint.labels(federation_job=job_id).set(unix_seconds)

    def await_no_checkpoint(self, job_id: str) -> None:
        """The job is paused or over: its checkpoint may grow old."""
        with suppress(KeyError):  # it was not waited for before either
            self.checkpoint.remove(job_id)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)
