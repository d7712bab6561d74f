"""One in-process gRPC server and the lines to it, in the clear: which frames of HTTP/2 pass on them.

A line can go on acknowledging TCP and forward nothing, as a middlebox that hangs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import grpc

from chorale.transport.channel_options import Options
from tests.support.relay import HERE
from tests.support.tap import FRAME_HEADER_BYTES, PREFACE

SETTINGS, PING, GOAWAY = 0x4, 0x6, 0x7  # RFC 9113 6
ACKNOWLEDGED, WINDOW_SETTING = 0x1, 0x4
CHUNK = bytes(1 << 20)
SERVICE = "chorale.test.Line"


class Line:
    """ended: by side, set once it has closed the line. frames: how many of (sender, type) passed, without
    acknowledgements. windows: the initial window that each side announced, in bytes."""

    def __init__(self) -> None:
        self.ended = {"client": asyncio.Event(), "server": asyncio.Event()}
        self.frames: Counter[tuple[str, int]] = Counter()
        self.windows: dict[str, int] = {}
        self.accepted = 0
        self.is_silent = False
        self._moved = asyncio.Event()
        self._relayed: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    async def accept(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to its end, which is carried on to that port."""
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._relayed[task] = writer
        there = await asyncio.open_connection(HERE, port)
        await asyncio.gather(
            self._carry(reader, there[1], "client"),
            self._carry(there[0], writer, "server"),
        )
        await asyncio.gather(writer.wait_closed(), there[1].wait_closed(), return_exceptions=True)

    async def close(self) -> None:
        for writer in self._relayed.values():
            writer.transport.abort()
        await asyncio.gather(*self._relayed)

    async def until(self, sender: str, kind: int, count: int) -> None:
        while self.frames[sender, kind] < count:
            self._moved.clear()
            await self._moved.wait()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str) -> None:
        unread = b""
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_silent:
                    continue
                unread = self._count(sender, unread + data)
                writer.write(data)
                await writer.drain()
        self.ended[sender].set()
        writer.close()

    def _count(self, sender: str, data: bytes) -> bytes:
        """Count whole frames; give what is left."""
        data = data.removeprefix(PREFACE)
        while len(data) >= FRAME_HEADER_BYTES:
            size, kind, flags = int.from_bytes(data[:3]), data[3], data[4]
            frame, rest = data[: FRAME_HEADER_BYTES + size], data[FRAME_HEADER_BYTES + size :]
            if len(frame) < FRAME_HEADER_BYTES + size:
                break
            if kind not in (SETTINGS, PING) or not flags & ACKNOWLEDGED:
                self.frames[sender, kind] += 1
            if kind == SETTINGS:
                body = frame[FRAME_HEADER_BYTES:]
                pairs = {
                    int.from_bytes(body[i : i + 2]): int.from_bytes(body[i + 2 : i + 6])
                    for i in range(0, len(body), 6)
                }
                self.windows[sender] = pairs.get(WINDOW_SETTING, self.windows.get(sender, 0))
            data = rest
        self._moved.set()
        return data


async def _up(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers the first message at once, and the last."""
    yield b"first"
    async for _ in messages:
        pass
    yield b"last"


async def _down(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for _ in range(int(request)):
        yield CHUNK


class Lines:
    """A server with these options, and lines to it."""

    def __init__(self, stack: AsyncExitStack, port: int) -> None:
        self._stack, self._port = stack, port

    async def dial(self, options: Options, *, channels: int = 1) -> tuple[Line, Sequence[grpc.aio.Channel]]:
        """Another line, and channels over it."""
        line = Line()

        relay = await asyncio.start_server(partial(line.accept, self._port), HERE, 0)
        self._stack.push_async_callback(line.close)
        self._stack.callback(relay.close)
        target = f"{HERE}:{relay.sockets[0].getsockname()[1]}"
        made = [grpc.aio.insecure_channel(target, options=options) for _ in range(channels)]
        for channel in made:
            self._stack.push_async_callback(channel.close)
        return line, made


@asynccontextmanager
async def serving(options: Options) -> AsyncIterator[Lines]:
    server = grpc.aio.server(options=options)
    handlers = {
        "Up": grpc.stream_stream_rpc_method_handler(_up),
        "Down": grpc.unary_stream_rpc_method_handler(_down),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"{HERE}:0")
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, None)
        yield Lines(stack, port)


async def begin(channel: grpc.aio.Channel) -> Any:
    """A call under way on the channel, which lasts."""
    call = channel.stream_stream(f"/{SERVICE}/Up")()
    await call.write(b"")
    assert await call.read() == b"first"
    return call


async def send(channel: grpc.aio.Channel, *, chunks: int) -> None:
    call = await begin(channel)
    for _ in range(chunks):
        await call.write(CHUNK)
    await call.done_writing()
    assert await call.read() == b"last"


async def fetch(channel: grpc.aio.Channel, *, chunks: int) -> None:
    call = channel.unary_stream(f"/{SERVICE}/Down")(str(chunks).encode())
    assert len([chunk async for chunk in call]) == chunks
