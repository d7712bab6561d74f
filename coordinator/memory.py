"""Memory of a long-lived process: vectors go back to the system as soon as they are freed.

glibc raises its threshold for separate mappings with every large block that is freed, and from
then on keeps vectors on heaps of several threads: with ten silos and a model of a million parameters
the process then peaked at 235 MB instead of 170 MB. Chunks of transfers stay on a heap: mapping
each of them anew took a quarter of the CPU time of a round.
"""

from __future__ import annotations

import ctypes

# <malloc.h> of glibc
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 2 << 20  # above a chunk of a transfer and its message, below the vectors that count
KEPT_BYTES = 8 << 20  # free memory at the end of a heap: the chunks of one moment
ARENAS = 2


def return_large_blocks() -> None:
    """Fix the thresholds, which ends their growth. Where the allocator is another one, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_ARENA_MAX, ARENAS)
