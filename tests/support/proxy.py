"""Loopback TCP relays: one slows the upload as a thin hospital line would, one cuts idle lines as a NAT, and
one is as far away as another continent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

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
    """Relays at full speed what was sent `round_trip_seconds` / 2 ago, the handshake of TLS included.

    accepted: how many connections it took. That of TCP itself takes no time: the kernel answers.
    """

    def __init__(self, target_host: str, target_port: int, *, round_trip_seconds: float) -> None:
        super().__init__(target_host, target_port)
        self.round_trip_seconds = round_trip_seconds
        self.accepted = 0

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        self.accepted += 1
        await asyncio.gather(
            self._carry(accepted[0], dialed[1]),
            self._carry(dialed[0], accepted[1]),
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction to its end, which comes as late as its bytes."""
        later = partial(asyncio.get_running_loop().call_later, self.round_trip_seconds / 2)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                later(writer.write, data)
        later(writer.close)
