"""Masked vectors on their way in: one file per silo and session, resumable by offset.

The length is known from the layout before the first byte arrives, so nothing larger is ever
written. Everything runs on the event loop but writing and hashing. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

from chorale.runtime.background_io import BackgroundWriter
from chorale.runtime.files import Part, write_all
from crypto.errors import Refusal, RemoteProtocolError

CHUNKS_BEHIND = 2  # waiting while as many are written: enough to keep thread and line busy at once


class Spool:
    """One silo's vector while it arrives: its chunks are checked at once and written in a thread.

    What one stream brought is whole, because TLS is; what came in several is checked against its digest.
    """

    def __init__(self, path: Path, *, total_bytes: int) -> None:
        self.path = path
        self.total_bytes = total_bytes
        self.received_bytes = 0  # accepted: what an upload resumes after
        self.is_complete = False
        self._is_resumed = False
        self._digest = b""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = path.open("w+b", buffering=0)
        self._writing = BackgroundWriter(max_waiting=CHUNKS_BEHIND)
        self._is_closed = False

    def begin_stream(self) -> None:
        """A stream resumes after what is here."""
        self._is_resumed = self.received_bytes > 0

    async def append(self, offset: int, data: Part) -> None:
        """Raises RemoteProtocolError where the chunk does not continue what is here, and OSError where
        an earlier one could not be written."""
        with self._restarting():
            await self._writing.room()
        # checked after the wait: another stream of the silo may have continued meanwhile
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
        self._writing.put(partial(write_all, self._file, data))
        self.received_bytes += len(data)

    async def settle(self, sha256: bytes) -> None:
        """All that was accepted is written and, where a digest was sent, hashed. Raises OSError."""
        with self._restarting():
            if sha256:
                await self._writing.room()
                self._writing.put(self._hash)
            await self._writing.drain()

    def finish(self, sha256: bytes) -> None:
        """The vector is whole; await `settle` before. Raises RemoteProtocolError if it is short or not
        what was sent."""
        if self.received_bytes != self.total_bytes:
            raise RemoteProtocolError(
                f"upload: ended after {self.received_bytes} bytes, expected {self.total_bytes}"
            )
        if self._is_resumed and not sha256:
            raise RemoteProtocolError("upload: a vector of several streams needs its digest")
        if sha256 and self._digest != sha256:
            self.restart()
            raise RemoteProtocolError("upload: digest of the vector does not match what arrived")
        self.is_complete = True
        self._file.close()

    def restart(self) -> None:
        """Throws away what arrived; the silo begins again at offset 0."""
        self._file.seek(0)
        self._file.truncate()
        self.received_bytes = 0
        self._is_resumed = False

    def close(self) -> None:
        """What is still waiting to be written is dropped, and the file with it."""
        self._is_closed = True
        self.path.unlink(missing_ok=True)
        self._writing.stop(self._file.close)

    def _hash(self) -> None:
        self._file.seek(0)
        self._digest = hashlib.file_digest(self._file, "sha256").digest()
        self._file.seek(0, os.SEEK_END)

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
