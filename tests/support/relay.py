"""A loopback TCP relay in a thread of its own: what passes through a connection is left to its kinds."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

HERE = "127.0.0.1"
TURNS = 10  # of the loop, until what was accepted has a task of its own

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay(ABC):
    """Dials a target for every connection that it accepts, until its context is left.

    as_server, as_client: where it opens the TLS of both sides.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        as_server: ssl.SSLContext | None = None,
        as_client: ssl.SSLContext | None = None,
    ) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self._as_server, self._as_client = as_server, as_client
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

    @abstractmethod
    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        """Both directions of one connection to their ends."""

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, HERE, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        # a server that is closed leaves the socket open that it is accepting: first it accepts no more
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)
            for writer in self._writers:
                writer.transport.abort()  # ends both directions, each by itself
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        server.close()
        # a socket is closed some turns of the loop after its transport was told to
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        dialing = writer.transport
        try:
            if self._as_server is not None:  # here, so that an end in the middle of a handshake closes it too
                await writer.start_tls(self._as_server)
            dialed = await asyncio.open_connection(*self.target, ssl=self._as_client)
        except (OSError, AttributeError) as error:
            dialing.abort()
            if (
                writer.transport is None
            ):  # one that left in its handshake: asyncio's writer has no transport then
                self._writers.remove(writer)
            elif isinstance(error, AttributeError):
                raise
            return
        self._writers.add(dialed[1])
        if self._stop.is_set():  # while this one was dialed
            writer.transport.abort()
            dialed[1].transport.abort()
        await self._relay((reader, writer), dialed)
