"""The roster file: read whenever it changes, never taken back to an older version.

The coordinator only relays what the authority signed. Source: docs/protocol.md 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chorale.credentials import Credentials
from chorale.observability.logs import get_logger
from chorale.runtime.files import file_stamp, read_limited
from coordinator.process import Clock
from coordinator.storage.store import Store
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors, SignedBody
from crypto.identity.roster import MAX_FILE_BYTES, Roster, open_roster, roster_from_file_bytes

log = get_logger("coordinator.roster")


class RosterBook:
    """The newest roster, and those that running rounds began with. `listeners` are told of each new one."""

    def __init__(
        self, path: Path, *, federation: str, credentials: Credentials, store: Store, clock: Clock
    ) -> None:
        self.listeners: list[Callable[[Roster], None]] = []
        self._path = path
        self._federation = federation
        self._credentials = credentials
        self._store = store
        self._clock = clock
        self._seen = self._now()
        try:
            self._current = self._read()
            store.add_roster(self._current.version, self._current.signed)
        except RemoteProtocolError as error:
            raise ConfigError(f"{path}: {error}") from None

    @property
    def current(self) -> Roster:
        """The newest roster. A file that changed for the worse is logged and left alone."""
        self.refresh()
        return self._current

    def refresh(self) -> None:
        """Look at the file; where it has changed, take it over if it is a later version."""
        now = self._now()
        if now == self._seen:
            return
        self._seen = now
        try:
            roster = self._read()
            if roster.version <= self._current.version:
                return
            self._store.add_roster(roster.version, roster.signed)
            self._current = roster
            log.info("roster taken over", version=roster.version, members=len(roster.members))
            for listener in self.listeners:
                listener(roster)
        except ChoraleError as error:
            log.warning("roster file not taken over", reason=str(error))

    def of_version(self, version: int) -> Roster:
        """A roster that was in use before, checked again. Raises RemoteProtocolError if it expired."""
        if version != self._current.version:
            return self._open(self._store.roster(version))
        self._current.check_current(self._clock.now())
        return self._current

    def _now(self) -> tuple[object, Anchors]:
        """What a reading depends on: a roster may be there before the certificate that it is signed under."""
        return file_stamp(self._path), self._credentials.authority

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
