"""What the coordinator counts. Every label comes from a closed set and starts at zero.

`silo` labels come from the roster, `federation_job` from accepted jobs; nothing here is a figure
of one silo.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from chorale.observability.audit_head import TEXT as TEXT_LOST
from chorale.observability.process_metrics import LoopLag
from chorale.runtime import disk
from coordinator.phase_machine import STAGES, PhaseState
from coordinator.reasons import FailureReason
from coordinator.storage.backup import backup_made
from coordinator.storage.store import JobStatus
from strategies.declared_parts import PHASE_KINDS

PREFIX = "chorale_coordinator"
STAGE_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, math.inf)
INTERVALS, ENDS = ("noise", "sampling"), ("low", "high")  # of a figure, as its record names them
LATER = ()  # the values of a label that are not known at the start

M = TypeVar("M", Counter, Gauge)

DROPOUT_STAGES = (*STAGES, PhaseState.REVEALED)  # also of who signs no next state


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
        self._add_phases()
        self._add_silos()
        self._add_jobs()

    def _add_phases(self) -> None:
        ends = (PhaseState.APPLIED, PhaseState.USED_UP)
        self.rounds = self._new(
            Counter, "rounds", "Phases that ended, by phase and result.", phase=PHASE_KINDS, result=ends
        )
        self.attempts = self._new(
            Counter,
            "attempts",
            "Sessions that ended, by phase and result.",
            phase=PHASE_KINDS,
            result=AttemptResult,
        )
        self.session_failures = self._new(
            Counter, "session_failures", "Sessions that ended without a sum, by reason.", reason=FailureReason
        )
        self.stage_duration = Histogram(
            f"{PREFIX}_stage_duration_seconds",
            "How long the stages of sessions took, by stage.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self.registry,
        )
        for stage in STAGES:
            self.stage_duration.labels(stage=stage.value)
        self.cohort_size = self._new(
            Gauge, "cohort_size", "Silos in the last revealed sum, by phase.", phase=PHASE_KINDS
        )
        self.clipped = self._new(Counter, "clipped_values", "Values that silos clipped to their bound.")

    def _add_silos(self) -> None:
        self.dropouts = self._new(
            Counter,
            "dropouts",
            "Times a silo was left out of a session, or a round was given up for it, by silo and stage.",
            silo=LATER,
            stage=DROPOUT_STAGES,
        )
        self.overdue = self._new(
            Gauge, "overdue", "Jobs whose round stands still until this silo answers, by silo.", silo=LATER
        )
        self.second_agents = self._new(
            Counter,
            "second_agents",
            "Times an agent was turned away because another one uses its certificate, by silo.",
            silo=LATER,
        )
        self.received_bytes = self._new(
            Counter, "received_bytes", "Bytes received from silos, by kind.", kind=Transfer
        )
        self.sent_bytes = self._new(Counter, "sent_bytes", "Bytes sent to silos, by kind.", kind=Transfer)
        self.refused_calls = self._new(
            Counter,
            "refused_calls",
            "Calls refused because of certificate, roster or role, by role.",
            role=("silo", "operator", "coordinator", "unknown"),
        )
        self.connections_without_certificate = self._new(
            Gauge,
            "connections_without_certificate",
            "Open connections on which nobody has called with a certificate.",
        )
        self.connections_cut = self._new(
            Counter,
            "cut_connections",
            "Connections that were cut: too many without a certificate, or of one member.",
        )
        self.connected_silos = self._new(Gauge, "connected_silos", "Silos attending now.")
        self.software_digests = self._new(
            Gauge,
            "software_digests",
            "Different digests of Chorale that silos attending now report, none left out.",
        )

    def _add_jobs(self) -> None:
        self.jobs = self._new(Gauge, "jobs", "Jobs that were ever submitted, by status.", status=JobStatus)
        self.checkpoint = self._new(
            Gauge,
            "checkpoint_timestamp_seconds",
            "When the newest checkpoint of a running job was written.",
            federation_job=LATER,
        )
        self.accuracy = self._new(
            Gauge,
            "accuracy",
            "Last accuracy of the global model, over that sum's silos.",
            federation_job=LATER,
        )
        self.loss = self._new(
            Gauge,
            "loss",
            "Last loss of the global model, over that sum's silos.",
            federation_job=LATER,
        )
        self.accuracy_interval = self._new(
            Gauge,
            "accuracy_interval",
            "Ends of its 95 % interval: of the records that were tested, under noise alone, or of new ones.",
            federation_job=LATER,
            of=INTERVALS,
            end=ENDS,
        )
        self.loss_interval = self._new(
            Gauge,
            "loss_interval",
            "The same of the loss; a private job clips each record's, so its mean is at least in there.",
            federation_job=LATER,
            of=INTERVALS,
            end=ENDS,
        )
        self.data_share = self._new(
            Gauge,
            "data_share",
            "Share of the federation's data in the last train phase, 0 to 1.",
            federation_job=LATER,
        )
        self.rounds_completed = self._new(
            Gauge, "rounds_completed", "Train rounds applied.", federation_job=LATER
        )
        self.certificate_expiry = self._new(
            Gauge, "certificate_expiry_timestamp_seconds", "When the coordinator's own certificate expires."
        )
        self.credentials_refused = self._new(
            Gauge,
            "credentials_refused",
            "1 while files of certificate, key or authority hold what was refused; the former are in use.",
        )
        self.roster_expiry = self._new(
            Gauge, "roster_expiry_timestamp_seconds", "When the roster in use expires."
        )
        self.roster_signed = self._new(
            Gauge, "roster_signed_timestamp_seconds", "When the authority signed the roster in use."
        )
        self.refused_rosters = self._new(
            Counter, "refused_rosters", "Times that the roster file was not taken over."
        )
        self.roster_version = self._new(Gauge, "roster_version", "Version of the roster in use.")
        self.loop_lag = LoopLag()
        self._new(Gauge, "event_loop_lag_seconds", LoopLag.TEXT).set_function(self.loop_lag.longest_seconds)
        self._backup = self._new(
            Gauge, "backup_timestamp_seconds", "When the newest backup was made; 0: none of this directory."
        )
        self.audit_entries_lost = self._new(Gauge, "audit_entries_lost", TEXT_LOST)
        self._free_bytes = self._new(
            Gauge, "state_free_bytes", "Bytes free on the disk of the coordinator's directory."
        )
        self._size_bytes = self._new(
            Gauge, "state_size_bytes", "Bytes that the disk of the coordinator's directory has."
        )

    def _new(self, metric: type[M], name: str, text: str, /, **labels: Iterable[str]) -> M:
        """A metric with a series for each combination of its labels' values, at zero."""
        created = metric(f"{PREFIX}_{name}", text, tuple(labels), registry=self.registry)
        for values in product(*labels.values()) if labels else ():
            created.labels(*values)
        return created

    def watch_directory(self, directory: Path) -> None:
        """Its disk and its backups are looked at in every scrape."""
        self._free_bytes.set_function(lambda: disk.free_bytes(directory))
        self._size_bytes.set_function(lambda: disk.size_bytes(directory))
        self._backup.set_function(lambda: backup_made(directory))

    def know_silos(self, names: Iterable[str]) -> None:
        """Start the counts of these silos at zero."""
        for name in names:
            self.overdue.labels(silo=name)
            self.second_agents.labels(silo=name)
            for stage in DROPOUT_STAGES:
                self.dropouts.labels(silo=name, stage=stage.value)

    def know_job(self, job_id: str) -> None:
        """Accuracy and loss are not a number until a sum has shown them."""
        self.show_figures(job_id, {})
        self.data_share.labels(federation_job=job_id)
        self.rounds_completed.labels(federation_job=job_id)

    def show_figures(self, job_id: str, figures: Mapping[str, float]) -> None:
        """Accuracy and loss of a phase's record; not a number where it has none."""
        for name, value, interval in (
            ("accuracy", self.accuracy, self.accuracy_interval),
            ("loss", self.loss, self.loss_interval),
        ):
            value.labels(federation_job=job_id).set(figures.get(name, math.nan))
            for of, end in product(INTERVALS, ENDS):
                found = figures.get(f"{name}_{of}_{end}", math.nan)
                interval.labels(federation_job=job_id, of=of, end=end).set(found)

    def count_jobs(self, counts: Mapping[JobStatus, int]) -> None:
        """counts: jobs of each status; one that is not there has none."""
        for status in JobStatus:
            self.jobs.labels(status=status.value).set(counts.get(status, 0))

    def forget_job(self, job_id: str) -> None:
        """It is over for so long that what it came to has been scraped."""
        for metric in (self.accuracy, self.loss, self.data_share, self.rounds_completed):
            with suppress(KeyError):  # it ended before it ran
                metric.remove(job_id)
        for metric, of, end in product((self.accuracy_interval, self.loss_interval), INTERVALS, ENDS):
            with suppress(KeyError):
                metric.remove(job_id, of, end)

    def drop_checkpoint(self, job_id: str) -> None:
        """The job is paused or over: its checkpoint may grow old."""
        with suppress(KeyError):  # none was awaited before either
            self.checkpoint.remove(job_id)
