"""An event loop whose clock jumps to the next timer once nothing else is to be done: no test waits.

Work in threads takes no time of this clock: while some is under way, the clock stands still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """skip: called in place of a wait. is_busy: whether a thread is at work, which wakes the loop."""

    skip: Callable[[float | None], None]
    is_busy: Callable[[], bool]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(None if self.is_busy() and timeout != 0 else 0)
        if not events and timeout != 0:
            self.skip(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """now: seconds since it was made."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.skip, selector.is_busy = self._skip, lambda: self._working > 0
        self.now, self._working = 0.0, 0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        self._working += 1
        future = super().run_in_executor(executor, function, *arguments)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: object) -> None:
        self._working -= 1

    def _skip(self, timeout: float | None) -> None:
        assert timeout is not None, "everything waits, and for nothing"
        self.now += timeout


def run(work: Coroutine[Any, Any, Result]) -> Result:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()  # which ends its threads, too
