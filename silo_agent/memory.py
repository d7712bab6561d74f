"""Memory of an agent's process: what a transfer frees stays with the process, for the next chunk.

glibc comes to that by itself once it has freed a few blocks of a model's size; until then it gives every
chunk back to the system and fetches it again, page by page: a fifth of the CPU time of an upload.
"""

from __future__ import annotations

import ctypes

# <malloc.h> of glibc
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGE_BYTES = 32 << 20  # where glibc's own growth of this threshold ends
KEPT_BYTES = 16 << 20  # the chunks of one transfer, made ahead and on their way


def keep_chunks() -> None:
    """Fix the thresholds. Where the allocator is another one, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
