"""The way to one silo leaves nothing behind when it ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

from chorale.v1 import federation_pb2 as pb
from coordinator.attendance import Connection


async def test_no_task_is_left_waiting_when_the_stream_is_broken_off() -> None:
    before = asyncio.all_tasks()
    connection = Connection("a", certificate_expires=datetime(2100, 1, 1, tzinfo=UTC))
    reading = asyncio.create_task(_read(connection))
    connection.send(pb.CoordinatorMessage())
    while not reading.done() and connection._queue.qsize():
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    left = asyncio.all_tasks() - before
    await asyncio.gather(*left, return_exceptions=True)
    assert reading.cancelled()
    assert all(task.cancelled() for task in left)


async def _read(connection: Connection) -> None:
    async with aclosing(connection.outgoing()) as messages:
        async for _ in messages:
            pass
