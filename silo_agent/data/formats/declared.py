"""What a file declares, compared with what a job can use and this process can hold, before it is read.

Compressed files give a thousand times their size. A file that is one record is compared with the job's
input_shape alone, so in a private job nothing else decides whether it is left out; a file that holds all
records is compared with this process's memory. In a private job nothing that the job chooses enters there: an
operator who could move the limit would learn the number of records.
"""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from pathlib import Path

from crypto.errors import ConfigError

MOST_VALUES = 1 << 28  # of an image before it is resized, 1 GiB as float32: a CT of 1,000 slices
REDUCED = 64  # an image is resized to no less than this part, where the job's own is large
SHARE = 2  # data that take half of the memory leave no room to train on them
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_values(declared: int, shape: tuple[int, ...], *, source: object) -> None:
    """Raises ConfigError for an image of more values than can be resized to the shape."""
    most = max(MOST_VALUES, REDUCED * math.prod(shape))
    if declared > most:
        raise ConfigError(f"{source}: declares an image of {declared} values, expected at most {most}")


def check_bytes(declared: int, *, source: object) -> None:
    """Raises ConfigError for data that take more than half of this process's memory."""
    most = _memory_bytes() // SHARE
    if declared > most:
        raise ConfigError(
            f"{source}: declares data that take {declared >> 20} MiB of memory, expected at most "
            f"{most >> 20} MiB, half of what this process may take"
        )


def machine_bytes() -> int:
    """What a container, `ulimit -v` or the machine allows this process, whatever it has taken."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # not in a container; "max"
        limits.append(int(CGROUP_LIMIT.read_text()))
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(limits if allowed == resource.RLIM_INFINITY else [*limits, allowed])


def _memory_bytes() -> int:
    """What `ulimit -v` leaves of it, where it is set."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed == resource.RLIM_INFINITY:
        return machine_bytes()
    taken_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, min(machine_bytes(), allowed - os.sysconf("SC_PAGE_SIZE") * taken_pages))
