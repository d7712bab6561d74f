"""What every process of Chorale shows of itself: build, memory, descriptors, how late its event loop is."""

from __future__ import annotations

import asyncio
import platform
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

TICK_SECONDS = 0.5
KEPT_TICKS = 120  # a minute


def add_process_metrics(registry: CollectorRegistry, prefix: str, *, version: str) -> None:
    """`process_*`, as Prometheus' own clients name them (resident memory, open descriptors, start time), and
    `<prefix>_build_info`."""
    ProcessCollector(registry=registry)
    build = Gauge(
        f"{prefix}_build_info", "1, with the versions that run.", ["version", "python"], registry=registry
    )
    build.labels(version=version, python=platform.python_version()).set(1)


class LoopLag:
    """How late an event loop wakes its timers: what holds it up holds up every connection.

    A scrape reads it from another thread, also while the loop is held up.
    """

    TEXT: Final = "How late timers of the event loop were, at most, in the last minute."

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._late = deque[float](maxlen=KEPT_TICKS)
        self._due: float | None = None

    def longest_seconds(self) -> float:
        """The longest wait of the last minute, the one that goes on included."""
        due = self._due
        now_late = 0.0 if due is None else max(0.0, self._monotonic() - due)
        return max((now_late, *tuple(self._late)))

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self._due = self._monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._late.append(max(0.0, self._monotonic() - self._due))
