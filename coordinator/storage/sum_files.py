"""The files of one attempt at a phase: the masked sum and its session, then the revealed sum.

The row of the phase says which of them count: masked sum and session from UNMASK on, the revealed sum once
it is known. Source: docs/protocol.md 10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from chorale.runtime.files import Part, write_together
from crypto.errors import LocalProtocolError, RemoteProtocolError


class SumFiles:
    """masked: the sum under its masks. session: what its unmasking resumes from. tagged: what silos fetch of
    the revealed sum. untagged: the rest of it."""

    def __init__(self, directory: Path, *, sequence: int, attempt: int) -> None:
        """Raises LocalProtocolError for what is no number: files are made, and removed, by these names."""
        if not (isinstance(sequence, int) and isinstance(attempt, int)):
            raise LocalProtocolError(
                "sum files: a phase's sequence and attempt are numbers, got another type"
            )
        self._directory, self._sequence = directory, sequence
        self.masked, self.session, self.tagged, self.untagged = (
            directory / f"{sequence}-{attempt}.{name}" for name in ("masked", "session", "tagged", "untagged")
        )

    def store(self, masked: Iterable[Part], session: bytes) -> bytes:
        """Durable once it returns: a share may be asked for. Gives the SHA-256 of the session."""
        self.masked.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_together({self.masked: masked, self.session: [session]})
        return hashlib.sha256(session).digest()

    def read_session(self, digest: bytes) -> bytes:
        """What was stored under this digest. Raises RemoteProtocolError for other bytes."""
        data = self.session.read_bytes()
        if hashlib.sha256(data).digest() != digest:
            raise RemoteProtocolError(f"{self.session.name}: damaged, it is not the session that was stored")
        return data

    def remove(self, *, keeps_tagged: bool) -> None:
        """Of this phase's attempts all files: one that a restart cut off may have stored its sum already.

        keeps_tagged: silos were asked to fetch it, and those that are slower do so after the phase.
        """
        kept = {self.tagged} if keeps_tagged else set()
        for path in set(self._directory.glob(f"{self._sequence}-*")) - kept:
            path.unlink(missing_ok=True)
