"""A loopback TCP relay whose upload direction can be slowed, as a thin hospital line would be."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

SLICE_SECONDS = 0.02


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
        await asyncio.gather(
            self._copy(reader, upstream_writer, is_upload=True),
            self._copy(upstream_reader, writer, is_upload=False),
        )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_upload: bool
    ) -> None:
        """One direction to its end, which ends the other side's stream too."""
        with contextlib.suppress(OSError):
            while True:
                rate = self.upload_bytes_per_second if is_upload else None
                data = await reader.read(1 << 16 if rate is None else max(1, int(rate * SLICE_SECONDS)))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
                if is_upload:
                    self.uploaded_bytes += len(data)
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
        writer.close()
