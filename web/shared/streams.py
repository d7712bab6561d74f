"""Server-sent events: fragments of pages for as long as a browser, its login and this process stay."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing

from starlette.responses import StreamingResponse

BEAT_SECONDS = 15.0  # a live page hears at least so often, and its login is checked
MOST = 100  # live pages at once
MOST_OF_ONE = 20  # of one login, whose other pages then do not move by themselves


class Streams:
    """All live pages of a process. stopping: set when it ends."""

    def __init__(self, *, stopping: asyncio.Event, beat_seconds: float = BEAT_SECONDS) -> None:
        self._stopping = stopping
        self._beat_seconds = beat_seconds
        self._open: Counter[Hashable] = Counter()

    def is_full(self, who: Hashable) -> bool:
        """Whether there is room for another live page of this login."""
        return self._open[who] >= MOST_OF_ONE or self._open.total() >= MOST

    def answer(
        self,
        event: str,
        fragments: Callable[[], AsyncGenerator[str, None]],
        *,
        who: Hashable,
        is_allowed: Callable[[], bool],
    ) -> StreamingResponse:
        """is_allowed: asked before each fragment; the stream ends where it says no."""

        async def events() -> AsyncGenerator[str, None]:
            self._open[who] += 1
            try:
                async with aclosing(fragments()) as source, aclosing(self._with_beats(source)) as texts:
                    async for text in texts:
                        if not is_allowed():
                            return
                        lines = "".join(f"data: {line}\n" for line in text.splitlines())
                        yield f"event: {event}\n{lines}\n" if text else ": still there\n\n"
            finally:
                self._open[who] -= 1
                if not self._open[who]:
                    del self._open[who]

        return StreamingResponse(
            events(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _with_beats(self, source: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """The source's items, and an empty text where none came for a while."""
        ended = asyncio.ensure_future(self._stopping.wait())
        coming: asyncio.Task[str] | None = None
        try:
            while not self._stopping.is_set():
                coming = coming or asyncio.ensure_future(_next(source))
                await asyncio.wait(
                    {coming, ended}, timeout=self._beat_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if not coming.done():
                    yield ""
                    continue
                text, coming = coming.result(), None
                yield text
        finally:
            ended.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})


async def _next(source: AsyncGenerator[str, None]) -> str:
    return await anext(source)
