"""Loopback TCP relays: one slows the upload as a thin hospital line would, one cuts idle lines as a NAT, one
is as far away as another continent, and one breaks handshakes as a coordinator does that restarts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum

from tests.support.relay import Relay, Stream

SLICE_SECONDS = 0.02

NoteBytes = Callable[[], None]


class ThrottlingProxy(Relay):
    """Relays to a target; what clients send passes at most at `upload_bytes_per_second`, what they are sent
    at `download_bytes_per_second`.

    The rates may be changed while connections are open; None lets everything through.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        upload_bytes_per_second: float | None = None,
        download_bytes_per_second: float | None = None,
    ) -> None:
        super().__init__(target_host, target_port)
        self.upload_bytes_per_second = upload_bytes_per_second
        self.download_bytes_per_second = download_bytes_per_second
        self.uploaded_bytes = 0
        self.downloaded_bytes = 0

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        async with self._watched(accepted[1], dialed[1]) as note_bytes:
            await asyncio.gather(
                self._copy(accepted[0], dialed[1], note_bytes, is_upload=True),
                self._copy(dialed[0], accepted[1], note_bytes, is_upload=False),
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
                rate = self.upload_bytes_per_second if is_upload else self.download_bytes_per_second
                data = await reader.read(1 << 16 if rate is None else max(1, int(rate * SLICE_SECONDS)))
                if not data:
                    break
                note_bytes()
                writer.write(data)
                await writer.drain()
                if is_upload:
                    self.uploaded_bytes += len(data)
                else:
                    self.downloaded_bytes += len(data)
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
        writer.close()


class IdleCuttingProxy(ThrottlingProxy):
    """Relays at full speed, and resets a connection on which no byte moved for `idle_seconds`."""

    def __init__(self, target_host: str, target_port: int, *, idle_seconds: float) -> None:
        super().__init__(target_host, target_port)
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


class DistantProxy(Relay):
    """Relays what was sent `round_trip_seconds` / 2 ago at the rate of the line, handshakes included: also
    that of TCP, as the first bytes of either side come as late as if it had taken a round trip.

    stall_seconds: how long the line stands still as the coordinator answers for the first time.
    accepted: how many connections it took.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        round_trip_seconds: float,
        bytes_per_second: float | None = None,
        stall_seconds: float = 0.0,
    ) -> None:
        super().__init__(target_host, target_port)
        self.round_trip_seconds = round_trip_seconds
        self.bytes_per_second = bytes_per_second
        self.stall_seconds = stall_seconds
        self.accepted = 0

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        self.accepted += 1
        await asyncio.gather(
            self._carry(accepted[0], dialed[1], late_seconds=self.round_trip_seconds),
            self._carry(dialed[0], accepted[1], late_seconds=self.stall_seconds),
        )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late_seconds: float
    ) -> None:
        """One direction to its end, which comes as late as its bytes. late_seconds: of the first of them."""
        loop = asyncio.get_running_loop()
        free = 0.0  # when the line has taken up what was sent before
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 14):
                free, late_seconds = max(free, loop.time()) + late_seconds, 0.0
                if self.bytes_per_second is not None:
                    free += len(data) / self.bytes_per_second
                loop.call_at(free + self.round_trip_seconds / 2, writer.write, data)
                await asyncio.sleep(free - loop.time())
        loop.call_at(max(free, loop.time()) + self.round_trip_seconds / 2, writer.close)


class Break(StrEnum):
    """How a connection ends."""

    CLOSED = "closed"
    RESET = "reset"
    SILENT = "silent"


class BreakingProxy(Relay):
    """Breaks one connection after the other once the coordinator's first bytes have passed, as many as each
    break says, and relays what comes after them.

    breaks: those that are left.
    """

    def __init__(self, target_host: str, target_port: int, *, breaks: Sequence[tuple[int, Break]]) -> None:
        super().__init__(target_host, target_port)
        self.breaks = list(breaks)

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        left, how = self.breaks.pop(0) if self.breaks else (None, Break.CLOSED)
        try:
            await asyncio.gather(
                self._carry(accepted[0], dialed[1], None, how),
                self._carry(dialed[0], accepted[1], left, how),
            )
        finally:
            dialed[1].transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None, how: Break
    ) -> None:
        with contextlib.suppress(OSError):
            while left != 0 and (data := await reader.read(1 << 16 if left is None else left)):
                writer.write(data)
                await writer.drain()
                left = None if left is None else left - len(data)
            while left == 0 and how is Break.SILENT and await reader.read(1 << 16):
                pass
            if left == 0 and how is Break.RESET:
                linger = struct.pack("ii", 1, 0)  # on, for no time: close sends RST
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
        writer.close()
