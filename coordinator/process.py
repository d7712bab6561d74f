"""The process that the coordinator runs in: the times it reads, and its memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

# <malloc.h> of glibc
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 2 << 20  # above a chunk of a transfer and its message, below the vectors that count
KEPT_BYTES = 8 << 20  # free memory at the end of a heap: the chunks of one moment
ARENAS = 2

MIN_MEMORY_BYTES = 64 << 20  # 44 MiB without a job, in a cgroup of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Both times, so that tests can hand in their own. now: what the calendar says. monotonic: seconds
    that only ever grow, for deadlines."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic

    def unix_seconds(self) -> float:
        return self.now().timestamp()


def return_large_blocks() -> None:
    """Give vectors back to the system as soon as they are freed. Nothing happens where glibc is not used.

    glibc raises its threshold for separate mappings with every large block that is freed, and from
    then on keeps vectors on heaps of several threads: with ten silos and a model of a million parameters
    the process then peaked at 235 MB instead of 170 MB. To set the thresholds ends their growth. Chunks of
    transfers stay on a heap: a mapping for each of them took a quarter of the CPU time of a round.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_ARENA_MAX, ARENAS)
