"""Blocking work outside the event loop: what a stream needs next and what it left behind, both bounded.

`Prefetcher` makes items in a thread before they are asked for, `BackgroundWriter` takes steps in a thread
after they were handed in. Neither holds a thread while it has nothing to do, so any number of streams shares
the loop's few threads; each keeps its own order. `keep_chunks` keeps their memory with the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from io import FileIO
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

READ_CACHED = getattr(os, "RWF_NOWAIT", 0)  # Linux
# <malloc.h> of glibc
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGE_BYTES = 32 << 20  # where glibc's own growth of this threshold ends
KEPT_BYTES = 16 << 20  # the chunks of one transfer, made ahead and on their way

Item = TypeVar("Item")
Step: TypeAlias = Callable[[], object]


class Pieces:
    """A file's pieces of up to so many bytes, each read into the memory of the one before."""

    def __init__(self, file: FileIO, *, size: int) -> None:
        self._file = file
        self._piece = memoryview(bytearray(size))

    async def at(self, offset: int) -> memoryview:
        """The piece from there on, empty at the end of the file.

        What the kernel holds in memory is taken at once; a thread waits for the disk, and only for that.
        """
        read = 0
        if READ_CACHED:
            with suppress(OSError):  # not there, or a file system that cannot tell
                read = self._read(offset, READ_CACHED)
        return self._piece[: read or await asyncio.to_thread(self._read, offset)]

    def _read(self, offset: int, flags: int = 0) -> int:
        return os.preadv(self._file.fileno(), [self._piece], offset, flags)


class Prefetcher(Generic[Item]):
    """Items of a generator that blocks; at most `max_ready` of them are made and not taken yet.

    What the generator raises is raised where its next item was awaited. Leaving the context ends it:
    no thread works on it, and what it holds is released.
    """

    def __init__(self, items: Generator[Item, None, None], *, max_ready: int) -> None:
        self._items = items
        self._max_ready = max_ready
        self._ready: deque[Item] = deque()
        self._news = asyncio.Event()
        self._making: asyncio.Future[bool] | None = None
        self._error: BaseException | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._make_more()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._making is not None:
            await asyncio.wait({self._making})
        if inspect.getgeneratorstate(self._items) != inspect.GEN_CLOSED:
            await asyncio.to_thread(self._items.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            self._make_more()
            await self._news.wait()
        item = self._ready.popleft()
        self._make_more()
        return item

    def _make_more(self) -> None:
        """Start a thread unless one is at work, all is made or half of what may lie ready does."""
        if self._making is None and not self._is_over and 2 * len(self._ready) <= self._max_ready:
            loop = asyncio.get_running_loop()
            self._making = loop.run_in_executor(None, self._make, loop)
            self._making.add_done_callback(self._on_made)

    def _make(self, loop: asyncio.AbstractEventLoop) -> bool:
        """In a thread, until enough is ready. Whether all is made."""
        while len(self._ready) < self._max_ready and not self._is_over:
            try:
                self._ready.append(next(self._items))
            except StopIteration:
                return True
            loop.call_soon_threadsafe(self._news.set)
        return False

    def _on_made(self, making: asyncio.Future[bool]) -> None:
        self._making = None
        self._error = making.exception()
        self._is_over = self._is_over or self._error is not None or making.result()
        self._news.set()


class BackgroundWriter:
    """Steps that block, taken in a thread, in order, `max_waiting` at a time while as many more may wait.

    Handing over wakes a thread and then the loop, so it is not done for every step. What a step raises is
    raised at the next `room` or `drain`, once; steps that waited are dropped.
    """

    def __init__(self, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: list[Step] = []
        self._working: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_stopped = False

    async def room(self) -> None:
        """Until one more step may be put."""
        while self._working is not None and len(self._waiting) >= self._max_waiting:
            await asyncio.wait({self._working})
        self._raise()

    def put(self, step: Step) -> None:
        """Hand in a step; await `room` before."""
        self._waiting.append(step)
        if len(self._waiting) >= self._max_waiting:
            self._work_on()

    async def drain(self) -> None:
        """Until every step that was put is done."""
        self._work_on()
        while self._working is not None:
            await asyncio.wait({self._working})
            self._work_on()
        self._raise()

    async def end(self) -> None:
        """Until every step that was put is done or dropped, also if one raises: a transfer that broke off
        keeps what came before. No thread is at work then, even if the caller was cancelled meanwhile."""
        try:
            with suppress(Exception):
                await self.drain()
        finally:
            self._is_stopped = True
            if self._working is not None:
                await _finished(self._working)

    def stop(self, then: Callable[[], None]) -> None:
        """Begin no further step; `then` runs as soon as no thread is at work."""
        self._is_stopped = True
        self._waiting.clear()
        if self._working is None:
            then()
        else:
            self._working.add_done_callback(lambda _: then())

    def _work_on(self) -> None:
        if self._working is None and self._waiting and not self._is_stopped:
            steps, self._waiting = self._waiting, []
            self._working = asyncio.get_running_loop().run_in_executor(None, self._work, steps)
            self._working.add_done_callback(self._on_done)

    def _work(self, steps: list[Step]) -> None:
        for step in steps:
            if self._is_stopped:
                return
            step()

    def _on_done(self, working: asyncio.Future[None]) -> None:
        self._working = None
        self._error = working.exception()
        if self._error is not None:
            self._waiting.clear()
        if len(self._waiting) >= self._max_waiting:
            self._work_on()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


async def _finished(working: asyncio.Future[None]) -> None:
    """Until it is done; a cancellation meanwhile is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def keep_chunks() -> None:
    """Keep with the process what a transfer frees, for the next chunk. No effect without glibc.

    glibc comes to that by itself once it has freed a few blocks of a model's size; until then it gives every
    chunk back to the system and fetches it again, page by page: a fifth of the CPU time of an upload.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
