"""The roster file: read whenever it changes, never taken back to an older version, nor to a member that left.

The coordinator only relays what the authority signed. Source: docs/protocol.md 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorale.credentials import Credentials
from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from chorale.runtime.files import file_stamp, read_limited
from coordinator.metrics import CoordinatorMetrics
from coordinator.process import Clock
from coordinator.storage.store import Store
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors, SignedBody
from crypto.identity.roster import (
    MAX_FILE_BYTES,
    Roster,
    open_roster,
    roster_from_file_bytes,
    stored_roster,
)
from crypto.identity.roster_memory import RosterMemory

log = get_logger("coordinator.roster")


class RosterBook:
    """The newest roster, and those that running rounds began with. `listeners` are told of each new one."""

    def __init__(
        self,
        path: Path,
        *,
        federation: str,
        credentials: Credentials,
        store: Store,
        clock: Clock,
        audit: AuditLog,
        metrics: CoordinatorMetrics,
    ) -> None:
        """Where the file lists a member again who had left, the roster that was in use before stays in use.

        Raises ConfigError for a file that cannot be used.
        """
        self.listeners: list[Callable[[Roster], None]] = []
        self._path = path
        self._federation = federation
        self._credentials = credentials
        self._store = store
        self._clock = clock
        self._audit = audit
        self._metrics = metrics
        self._seen = self._now()
        try:
            self._memory = RosterMemory.of(map(stored_roster, store.rosters()))
            roster = self._read()
            try:
                self._memory.check(roster)
            except RemoteProtocolError as error:
                self._tell_refused(error, version=roster.version)
                roster = self._open(store.rosters()[-1])
            self._use(roster)
        except RemoteProtocolError as error:
            raise ConfigError(f"{path}: {error}") from None

    @property
    def current(self) -> Roster:
        """The newest roster, whether or not it still holds. A file that changed for the worse is logged and
        left alone."""
        self.refresh()
        return self._current

    def refresh(self) -> None:
        """Look at the file; where it has changed, take it over if it is a later version."""
        now = self._now()
        if now == self._seen:
            return
        self._seen = now
        version = 0
        try:
            roster = self._read()
            version = roster.version
            if roster.digest == self._current.digest:
                return
            self._memory.check(roster)
            self._use(roster)
        except ChoraleError as error:
            self._tell_refused(error, version=version)
            return
        log.info("roster taken over", version=version, members=len(roster.members))
        for listener in self.listeners:
            listener(roster)

    def of_version(self, version: int) -> Roster:
        """A roster that was in use before, checked again. Raises RemoteProtocolError if it expired, or if no
        key that is trusted now signed it."""
        if version != self._current.version:
            return self._open(self._store.roster(version))
        now = self._clock.now()
        self._current.check_trusted(self._credentials.authority, now)
        self._current.check_current(now)
        return self._current

    def _now(self) -> tuple[object, Anchors]:
        """What a reading depends on: a roster may be there before the certificate that it is signed under."""
        return file_stamp(self._path), self._credentials.authority

    def _use(self, roster: Roster) -> None:
        self._store.add_roster(roster.version, roster.signed)
        self._memory = self._memory.after(roster)
        self._current = roster

    def _tell_refused(self, error: ChoraleError, *, version: int) -> None:
        """version: 0 where none can be read."""
        log.warning("roster file not taken over", version=version, reason=str(error))
        self._metrics.refused_rosters.inc()
        self._audit.append("roster refused", version=version, reason=str(error))

    def _read(self) -> Roster:
        """What the file holds. Raises ConfigError for a version older than one that was in use."""
        data = read_limited(self._path, MAX_FILE_BYTES)
        try:
            signed = roster_from_file_bytes(data)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from None
        roster, newest = self._open(signed), self._store.newest_roster_version()
        if roster.version < newest:
            raise ConfigError(
                f"roster: {self._path} is version {roster.version}, expected at least {newest}, "
                "which was in use before"
            )
        return roster

    def _open(self, signed: SignedBody) -> Roster:
        return open_roster(
            signed,
            authority=self._credentials.authority,
            federation=self._federation,
            now=self._clock.now(),
            max_age=None,
        )
