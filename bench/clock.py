"""CPU and wall time of named steps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Times:
    cpu_seconds: float  # of all threads of this process
    wall_seconds: float


class Clock:
    """Takes the times of a process that does one step at a time, in as many threads as the step likes."""

    def __init__(self) -> None:
        self._taken: defaultdict[str, list[Times]] = defaultdict(list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self._taken[name].append(Times(time.process_time() - cpu, time.perf_counter() - wall))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._taken)

    def total(self, name: str) -> Times:
        taken = self._taken[name]
        return Times(sum(one.cpu_seconds for one in taken), sum(one.wall_seconds for one in taken))

    def median(self, name: str) -> Times:
        """Of CPU and wall apart: what another process took away in one turn does not count."""
        taken = self._taken[name]
        return Times(median(one.cpu_seconds for one in taken), median(one.wall_seconds for one in taken))
