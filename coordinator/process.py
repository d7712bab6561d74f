"""The process that the coordinator runs in: the times it reads, its descriptors and its memory."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# <malloc.h> of glibc
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 2 << 20  # above a chunk of a transfer and its message, below the vectors that count
KEPT_BYTES = 8 << 20  # free memory at the end of a heap: the chunks of one moment
ARENAS = 2

CGROUP_LIMITS = (  # of the container, versions 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Both times, so that tests can hand in their own. now: what the calendar says. monotonic: seconds
    that only ever grow, for deadlines."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic

    def unix_seconds(self) -> float:
        return self.now().timestamp()


def allow_descriptors() -> None:
    """As many as the system lets this process have: each connection takes one, of peers without a
    certificate, too. Many systems give a process 1,024 of them and allow it many more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # a system may allow no number as large as it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def memory_limit_bytes() -> int:
    """What the container may take, or the machine has where it sets no limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or the word "max"
            limits.append(int(path.read_text()))
    return min(limits)


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
