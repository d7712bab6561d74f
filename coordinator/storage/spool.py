"""Masked vectors on their way in: one a silo and session, resumable by offset, in memory while there is room.

The length is known from the layout before the first byte arrives, so nothing larger is ever held. What
finds no room in memory goes to a file. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from chorale.runtime.background_io import BackgroundWriter
from chorale.runtime.files import Part, write_all
from crypto.errors import Refusal, RemoteProtocolError

CHUNKS_BEHIND = 2  # waiting while as many are written: enough to keep thread and line busy at once


class SpoolMemory:
    """How much memory uploads take, those of all sessions together: each gets room for a whole vector."""

    def __init__(self, budget_bytes: int) -> None:
        self._free_bytes = budget_bytes

    def take(self, size_bytes: int) -> bool:
        """Whether there is room; it is taken then, until it is given back."""
        if size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes


class _Place(Protocol):
    """Where a vector is kept while it arrives."""

    async def room(self) -> None: ...

    def put(self, offset: int, data: Part) -> None: ...

    async def settle(self) -> None: ...

    def data(self) -> memoryview: ...

    def close(self) -> None: ...


class _InMemory:
    """Each chunk is copied as it comes: that takes less than to hand it to a thread."""

    def __init__(self, memory: SpoolMemory, total_bytes: int) -> None:
        self._memory = memory
        self._total_bytes = total_bytes
        self._held: memoryview | None = np.empty(total_bytes, np.uint8).data

    async def room(self) -> None:
        return

    def put(self, offset: int, data: Part) -> None:
        self.data()[offset : offset + len(data)] = data

    async def settle(self) -> None:
        return

    def data(self) -> memoryview:
        assert self._held is not None  # nobody asks for a vector that was discarded
        return self._held

    def close(self) -> None:
        if self._held is not None:
            self._held = None
            self._memory.give_back(self._total_bytes)


class _OnDisk:
    """Chunks are written in a thread; what a write raises is raised at the next `room` or `settle`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = path.open("w+b", buffering=0)
        self._writing = BackgroundWriter(max_waiting=CHUNKS_BEHIND)

    async def room(self) -> None:
        await self._writing.room()

    def put(self, offset: int, data: Part) -> None:
        self._writing.put(partial(self._write, offset, data))

    async def settle(self) -> None:
        await self._writing.drain()

    def data(self) -> memoryview:
        return np.memmap(self._path, np.uint8, "r").data

    def close(self) -> None:
        """What is still waiting to be written is dropped, and the file with it."""
        self._path.unlink(missing_ok=True)
        self._writing.stop(self._file.close)

    def _write(self, offset: int, data: Part) -> None:
        self._file.seek(offset)
        write_all(self._file, data)


class Spool:
    """One silo's vector while it arrives.

    What one stream brought is whole, because TLS is; what came in several is checked against its digest.
    """

    def __init__(self, place: _Place, *, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.received_bytes = 0  # accepted: what an upload resumes after
        self.is_complete = False
        self._place = place
        self._is_resumed = False
        self._digest = b""
        self._is_closed = False

    def begin_stream(self) -> None:
        """A stream resumes after what is here."""
        self._is_resumed = self.received_bytes > 0

    async def append(self, offset: int, data: Part) -> None:
        """Raises RemoteProtocolError where the chunk does not continue what is here, and OSError where
        an earlier one could not be written."""
        with self._restarting():
            await self._place.room()
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
        self._place.put(offset, data)
        self.received_bytes += len(data)

    async def settle(self, sha256: bytes) -> None:
        """All that was accepted is where it is kept and, where a digest was sent, hashed. Raises OSError."""
        with self._restarting():
            await self._place.settle()
        if sha256 and self.received_bytes == self.total_bytes:
            if self._is_closed:
                raise RemoteProtocolError("upload: the stage has closed", code=Refusal.STAGE)
            self._digest = await asyncio.to_thread(_sha256, self._place.data())

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

    def data(self) -> memoryview:
        """The whole vector."""
        return self._place.data()

    def restart(self) -> None:
        """Throws away what arrived; the silo begins again at offset 0."""
        self.received_bytes = 0
        self._is_resumed = False

    def close(self) -> None:
        """The vector is added or no longer wanted: its room is free for another."""
        self._is_closed = True
        self._place.close()

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
    """The spools of one session, gone with it. directory: of those that find no room in memory."""

    def __init__(self, directory: Path, *, total_bytes: int, memory: SpoolMemory) -> None:
        self._directory = directory
        self._total_bytes = total_bytes
        self._memory = memory
        self._spools: dict[str, Spool] = {}

    def open(self, silo: str) -> Spool:
        """The silo's spool, with whatever it holds from an earlier stream."""
        if silo not in self._spools:
            self._spools[silo] = Spool(self._place(silo), total_bytes=self._total_bytes)
        return self._spools[silo]

    def _place(self, silo: str) -> _Place:
        if self._memory.take(self._total_bytes):
            return _InMemory(self._memory, self._total_bytes)
        return _OnDisk(self._directory / f"{silo}.part")

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


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
