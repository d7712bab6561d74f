"""Masked vectors on their way in: one file per silo and session, resumable by offset.

The length is known from the layout before the first byte arrives, so nothing larger is ever
written. Everything runs on the event loop but hashing and writing. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from chorale.files import write_all
from chorale.pipeline import Behind
from crypto.errors import Refusal, RemoteProtocolError

CHUNKS_BEHIND = 1  # waiting while as many are written: enough to keep thread and line busy at once


class Spool:
    """One silo's vector while it arrives. Chunks are checked at once, hashed and written in a thread."""

    def __init__(self, path: Path, *, total_bytes: int) -> None:
        self.path = path
        self.total_bytes = total_bytes
        self.received_bytes = 0  # accepted: what an upload goes on after
        self.is_complete = False
        self._hash = hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = path.open("wb", buffering=0)
        self._writing = Behind(self._write, most=CHUNKS_BEHIND)
        self._is_closed = False

    async def append(self, offset: int, data: bytes) -> None:
        """Raises RemoteProtocolError where the chunk does not continue what is here, and OSError where
        an earlier one could not be written."""
        with self._restarting():
            await self._writing.room()
        self._check(offset, data)  # after the wait: another stream of the silo may have gone on meanwhile
        self._writing.put(data)
        self.received_bytes += len(data)

    async def settle(self) -> None:
        """All that was accepted is written and hashed. Raises OSError."""
        with self._restarting():
            await self._writing.drain()

    def finish(self, sha256: bytes) -> None:
        """The vector is whole; await `settle` before. Raises RemoteProtocolError if it is short or not
        what was sent."""
        if self.received_bytes != self.total_bytes:
            raise RemoteProtocolError(
                f"upload: ended after {self.received_bytes} bytes, expected {self.total_bytes}"
            )
        if self._hash.digest() != sha256:
            self.restart()
            raise RemoteProtocolError("upload: digest of the vector does not match what arrived")
        self.is_complete = True
        self._file.close()

    def restart(self) -> None:
        """Throws away what arrived; the silo begins again at offset 0."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.received_bytes = 0

    def close(self) -> None:
        """What is still waiting to be written is dropped, and the file with it."""
        self._is_closed = True
        self.path.unlink(missing_ok=True)
        self._writing.stop(self._file.close)

    def _check(self, offset: int, data: bytes) -> None:
        if self.is_complete:
            raise RemoteProtocolError("upload: the vector is already complete")
        if self._is_closed:  # chunks that were on the way when the session ended
            raise RemoteProtocolError("upload: the stage has closed", code=Refusal.STAGE)
        if offset != self.received_bytes:
            raise RemoteProtocolError(f"upload: chunk at offset {offset}, expected {self.received_bytes}")
        if not data:
            raise RemoteProtocolError("upload: a chunk is empty")
        if offset + len(data) > self.total_bytes:
            raise RemoteProtocolError(
                f"upload: {offset + len(data)} bytes, expected {self.total_bytes} for this layout"
            )

    def _write(self, data: bytes) -> None:
        write_all(self._file, data)
        self._hash.update(data)

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        """A write that failed leaves a gap behind what was accepted."""
        try:
            yield
        except OSError:
            if not self._is_closed:
                self.restart()
            raise


class SessionSpool:
    """The spools of one session, in a folder of their own that goes with the session."""

    def __init__(self, directory: Path, *, total_bytes: int) -> None:
        self._directory = directory
        self._total_bytes = total_bytes
        self._spools: dict[str, Spool] = {}

    def open(self, silo: str) -> Spool:
        """The silo's spool, with whatever it holds from an earlier stream."""
        if silo not in self._spools:
            self._spools[silo] = Spool(self._directory / f"{silo}.part", total_bytes=self._total_bytes)
        return self._spools[silo]

    def discard(self, silo: str) -> None:
        """The vector is added or no longer wanted."""
        if silo in self._spools:
            self._spools[silo].close()

    def __enter__(self) -> SessionSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for spool in self._spools.values():
            spool.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def clear_spools(directory: Path) -> None:
    """At start-up: no upload outlives the process that received it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
