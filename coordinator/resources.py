"""What every part of a running coordinator works with, opened when it starts and closed when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chorale.credentials import CredentialFiles, Credentials
from chorale.observability.logs import get_logger
from chorale.observability.process_metrics import add_process_metrics
from chorale.runtime.audit import AuditInUse, AuditLog
from chorale.runtime.files import make_private
from chorale.runtime.software import Software, own_software
from coordinator.members.attendance import Attendance
from coordinator.members.line_rates import LineRates
from coordinator.members.roster_book import RosterBook
from coordinator.metrics import PREFIX, CoordinatorMetrics
from coordinator.process import Clock
from coordinator.settings import CoordinatorSettings
from coordinator.storage.backup import AUDIT, DATABASE
from coordinator.storage.checkpoints import Checkpoints
from coordinator.storage.spool import SpoolMemory, clear_spools
from coordinator.storage.store import Store
from crypto.errors import ConfigError
from crypto.identity.certificates import Anchors, Role
from crypto.identity.roster import Roster

log = get_logger("coordinator.resources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The coordinator's files, members and counts: one of each, shared by its services and all its jobs.

    software: what runs here. Who the coordinator is and whom it trusts: files, credentials. Storage: store,
    checkpoints, audit; spool_memory: the room for uploads that need none. Members: the roster_book that says
    who may take part, the attendance that says who is connected and carries every message to them, and the
    line_rates at which bytes moved.
    """

    settings: CoordinatorSettings
    software: Software
    files: CredentialFiles
    credentials: Credentials
    store: Store
    checkpoints: Checkpoints
    spool_memory: SpoolMemory
    roster_book: RosterBook
    attendance: Attendance
    line_rates: LineRates
    metrics: CoordinatorMetrics
    audit: AuditLog
    clock: Clock

    @property
    def authority(self) -> Anchors:
        """As its file holds it now."""
        return self.credentials.authority

    def refresh(self) -> None:
        """Look at the files that may change while the coordinator runs."""
        self.files.refresh(self.credentials, self.metrics.credentials_refused)
        self.roster_book.refresh()

    def note_roster(self, roster: Roster) -> None:
        """A roster that came into use: in the metrics and in the audit log."""
        self.metrics.know_silos(roster.silo_names)
        self.metrics.roster_version.set(roster.version)
        self.metrics.roster_expiry.set(roster.expires.timestamp())
        self.metrics.roster_signed.set(roster.issued.timestamp())
        self.audit.append("roster", version=roster.version, digest=roster.digest.hex())


def close_audit_file(directory: Path) -> Path:
    """Close the audit log's file while no coordinator runs. Raises ConfigError, AuditInUse, OSError."""
    path = directory / AUDIT
    with closing(AuditLog(path)) as audit, closing(Store(directory / DATABASE)) as store:
        store.audit_head().check(path, audit)
        closed = audit.rotate()
        store.audit_head().keep(audit)
    return closed


@contextmanager
def open_resources(settings: CoordinatorSettings, clock: Clock) -> Iterator[Resources]:
    """Raises ConfigError for unusable files and AuditInUse where another coordinator has the directory."""
    software = own_software()
    log.info("software", version=software.version, sha256=software.sha256 or "none", why=software.why_none)
    make_private(settings.directory, known_by=AUDIT)
    metrics = CoordinatorMetrics()
    metrics.watch_directory(settings.directory)
    add_process_metrics(metrics.registry, PREFIX, version=software.version)
    files = CredentialFiles(
        settings.identity,
        settings.authority,
        role=Role.COORDINATOR,
        federation=settings.federation,
        clock=clock.now,
    )
    credentials = Credentials(*files.read())
    metrics.certificate_expiry.set_function(lambda: credentials.certificate_expires)
    with ExitStack() as stack:
        # the audit log first: it is locked, so two coordinators never share a directory
        try:
            audit = AuditLog(settings.directory / AUDIT)
        except AuditInUse:
            where = settings.directory
            raise AuditInUse(f"{where}: another coordinator runs there; each has its own directory") from None
        stack.callback(audit.close)
        path = settings.directory / DATABASE
        if audit.head.entry > 0 and not path.exists():
            raise ConfigError(
                f"{path}: missing beside the audit log of a coordinator that had it: a restore broke off, "
                "or a disk lost it; bring a backup back with `chorale coordinator restore --set-aside`"
            )
        store = Store(path)
        stack.callback(store.close)
        store.audit_head().check(settings.directory / AUDIT, audit, metrics.audit_entries_lost)
        stack.callback(lambda: store.audit_head().keep(audit))
        clear_spools(settings.spool_directory)
        roster_book = RosterBook(
            settings.roster,
            federation=settings.federation,
            credentials=credentials,
            store=store,
            clock=clock,
            audit=audit,
            metrics=metrics,
        )
        resources = Resources(
            settings=settings,
            software=software,
            files=files,
            credentials=credentials,
            store=store,
            checkpoints=Checkpoints(settings.directory / "checkpoints"),
            spool_memory=SpoolMemory(settings.spool_memory_bytes),
            roster_book=roster_book,
            attendance=Attendance(metrics=metrics, clock=clock),
            line_rates=LineRates(),
            metrics=metrics,
            audit=audit,
            clock=clock,
        )
        roster_book.listeners.append(resources.note_roster)
        audit.append("started", federation=settings.federation)
        resources.note_roster(roster_book.current)
        yield resources
