"""Loopback TCP relays: one slows the upload as a thin hospital line would, one cuts idle lines as a NAT."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

SLICE_SECONDS = 0.02

NoteBytes = Callable[[], None]


class ThrottlingProxy:
    """Relays to a target; what clients send passes at most at `upload_bytes_per_second`.

    The rate may be changed while connections are open; None lets everything through.
    """

    def __init__(self, target_host: str, target_port: int, *, upload_bytes_per_second: float | None) -> None:
        self.target = (target_host, target_port)
        self.upload_bytes_per_second = upload_bytes_per_second
        self.uploaded_bytes = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()  # ends both directions, each by itself
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(upstream_writer)
        async with self._watched(writer, upstream_writer) as note_bytes:
            await asyncio.gather(
                self._copy(reader, upstream_writer, note_bytes, is_upload=True),
                self._copy(upstream_reader, writer, note_bytes, is_upload=False),
            )

    @contextlib.asynccontextmanager
    async def _watched(self, *writers: asyncio.StreamWriter) -> AsyncIterator[NoteBytes]:
        """Around one connection; what it gives is called whenever bytes moved on it."""
        yield lambda: None

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note_bytes: NoteBytes,
        *,
        is_upload: bool,
    ) -> None:
        """One direction to its end, which ends the other side's stream too."""
        with contextlib.suppress(OSError):
            while True:
                rate = self.upload_bytes_per_second if is_upload else None
                data = await reader.read(1 << 16 if rate is None else max(1, int(rate * SLICE_SECONDS)))
                if not data:
                    break
                note_bytes()
                writer.write(data)
                await writer.drain()
                if is_upload:
                    self.uploaded_bytes += len(data)
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
        writer.close()


class IdleCuttingProxy(ThrottlingProxy):
    """Relays at full speed, and resets a connection on which no byte moved for `idle_seconds`."""

    def __init__(self, target_host: str, target_port: int, *, idle_seconds: float) -> None:
        super().__init__(target_host, target_port, upload_bytes_per_second=None)
        self.idle_seconds = idle_seconds
        self.cuts = 0

    @contextlib.asynccontextmanager
    async def _watched(self, *writers: asyncio.StreamWriter) -> AsyncIterator[NoteBytes]:
        loop = asyncio.get_running_loop()

        def cut() -> None:
            self.cuts += 1
            for writer in writers:
                writer.transport.abort()

        pending = loop.call_later(self.idle_seconds, cut)

        def note_bytes() -> None:
            nonlocal pending
            pending.cancel()
            pending = loop.call_later(self.idle_seconds, cut)

        try:
            yield note_bytes
        finally:
            pending.cancel()
