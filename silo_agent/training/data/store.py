"""Samples by place, of a data set that does not fit in memory: a fixed part is kept, the rest is read again.

Samples come in a new random order at every pass, or in the same order: the last used ones are then no
likelier to come next, in order even never before they are dropped. A fixed part is found as often as its
share of the data.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chorale_models import data
from silo_agent.training.data.base import Indices
from silo_agent.training.data.workers import Found, Unread, Workers, read_places

KEPT_BYTES = 512  # of Python's, beside the values of a kept sample


class Store:
    """A map-style data set.

    name: where a sample stands, for messages; None: `what` and its number. cache_bytes: of the part that
    is kept, as the data set gave it. workers: processes that read; 0: this one. ahead: batches that each of
    them reads before they are wanted.
    """

    def __init__(
        self,
        source: data.Samples,
        *,
        what: str,
        name: Callable[[int], str] | None,
        cache_bytes: int,
        workers: int,
        ahead: int,
    ) -> None:
        self._source, self._what, self._name = source, what, name
        self._cache_bytes, self._workers, self._ahead = cache_bytes, workers, ahead
        self._kept: dict[int, Found] = {}
        self._kept_bytes = 0
        self._reading: Workers | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept and who reads: a process of a simulation has its own."""
        return {**self.__dict__, "_kept": {}, "_kept_bytes": 0, "_reading": None}

    def where(self, place: int) -> str:
        return f"{self._what} {place}" if self._name is None else self._name(place)

    def read(self, plan: Sequence[Indices]) -> Iterator[list[Found]]:
        """The samples at each of the plan's places, or why one could not be read.

        A pass ends where another begins. Raises ConfigError where worker processes fail.
        """
        lacking = [[each for each in places.tolist() if each not in self._kept] for places in plan]
        read = self._read([places for places in lacking if places])
        for places, missing in zip(plan, lacking, strict=True):
            fresh = dict(zip(missing, next(read), strict=True)) if missing else {}
            self._keep(fresh)
            yield [fresh[each] if each in fresh else self._kept[each] for each in places.tolist()]

    def _read(self, wanted: Sequence[list[int]]) -> Iterator[list[Found]]:
        # a process of a simulation may start none
        if not self._workers or not wanted or multiprocessing.current_process().daemon:
            return (read_places(self._source, places) for places in wanted)
        if self._reading is None:
            self._reading = Workers(self._source, count=self._workers, ahead=self._ahead)
        return self._reading.read(wanted)

    def _keep(self, fresh: dict[int, Found]) -> None:
        for place, found in fresh.items():
            if isinstance(found, Unread):
                continue
            inputs, target = found
            size = inputs.nbytes + target.nbytes + KEPT_BYTES
            if self._kept_bytes + size > self._cache_bytes:
                return
            self._kept[place] = inputs.copy(), target.copy()  # not the memory that they are a view of
            self._kept_bytes += size
