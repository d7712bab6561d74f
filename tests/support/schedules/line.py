"""A silo's line to the coordinator, which a test can cut, delay and throttle while it is in use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tests.support.relay import HERE, Relay, Stream

SLICE_SECONDS = 0.02
PIECE_BYTES = 1 << 16
MAX_WAITING = 64  # pieces that are on their way in one direction


class Line(Relay):
    """Relays to a target as it is told to, both ways alike.

    delay_seconds: there and back. bytes_per_second: None lets everything through. passed_bytes: so far.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        super().__init__(host, int(port))
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.passed_bytes = 0
        self._is_cut = False

    @property
    def address(self) -> str:
        return f"{HERE}:{self.port}"

    def cut(self) -> None:
        """Reset what is open, and everything that is dialed until the line is restored."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort_all)

    def restore(self) -> None:
        self._is_cut = False

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        if self._is_cut:
            for _, writer in (accepted, dialed):
                writer.transport.abort()
        await asyncio.gather(
            self._carry(accepted[0], dialed[1]),
            self._carry(dialed[0], accepted[1]),
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction to its end; pieces stay in their order however the delay changes."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_WAITING)
        clock = asyncio.get_running_loop().time
        passing = asyncio.ensure_future(self._pass(pieces, writer, clock))
        with contextlib.suppress(OSError):
            while data := await reader.read(self._piece_bytes()):
                await pieces.put((clock() + self.delay_seconds / 2, data))
        await pieces.put((clock(), b""))
        await passing

    async def _pass(
        self,
        pieces: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        clock: Callable[[], float],
    ) -> None:
        is_broken = False
        while True:
            due, data = await pieces.get()
            if not data:
                break
            if is_broken:
                continue  # nobody reads it, and the reader must come to its end
            try:
                await asyncio.sleep(due - clock())
                writer.write(data)
                await writer.drain()
                self.passed_bytes += len(data)
                if self.bytes_per_second is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
            except OSError:
                is_broken = True
        writer.close()

    def _piece_bytes(self) -> int:
        rate = self.bytes_per_second
        return PIECE_BYTES if rate is None else max(1, min(PIECE_BYTES, int(rate * SLICE_SECONDS)))
