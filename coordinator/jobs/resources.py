"""What every driver works with: stores, silos, settings and clocks, made once by the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from chorale.runtime.audit import AuditLog
from coordinator.clock import Clock
from coordinator.members.attendance import Attendance
from coordinator.members.roster_book import RosterBook
from coordinator.metrics import CoordinatorMetrics
from coordinator.settings import CoordinatorSettings
from coordinator.storage.checkpoints import Checkpoints
from coordinator.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What every part of a running coordinator works with, made once at its start."""

    settings: CoordinatorSettings
    authority: x509.Certificate
    store: Store
    checkpoints: Checkpoints
    roster_book: RosterBook
    attendance: Attendance
    metrics: CoordinatorMetrics
    audit: AuditLog
    clock: Clock

    def spool_path(self, sequence: int, attempt: int) -> Path:
        """Folder of the uploads of one attempt at the phase with that sequence number."""
        return self.settings.spool_directory / f"{sequence}-{attempt}"

    def masked_sum_path(self, sequence: int, attempt: int) -> Path:
        return self.settings.sum_directory / f"{sequence}-{attempt}.masked"

    def revealed_sum_path(self, sequence: int, attempt: int) -> Path:
        return self.settings.sum_directory / f"{sequence}-{attempt}.revealed"
