"""What processes use while they run, looked at every few milliseconds: a figure for any moment since.

Log records say when a stage began; afterwards no process can be asked what it had used by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from types import TracebackType

import numpy as np

from bench.parties.processes import Process, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """cpu, written, handed: of the coordinator; bytes towards storage, and bytes given to write calls."""

    wall_seconds: float
    cpu_seconds: float
    written_bytes: float
    handed_bytes: float
    silos_cpu_seconds: float

    def __sub__(self, earlier: Used) -> Used:
        return _used(mine - other for mine, other in zip(astuple(self), astuple(earlier), strict=True))

    def __truediv__(self, times: int) -> Used:
        return _used(mine / times for mine in astuple(self))

    @classmethod
    def sum(cls, parts: Iterable[Used]) -> Used:
        return _used(map(sum, zip(*map(astuple, parts), strict=True)))


class Meter(Watch):
    """Follows the coordinator and the silos' processes; asked for figures afterwards."""

    def __init__(self, hub: Process, silos: Sequence[Process]) -> None:
        super().__init__()
        self._hub = hub
        self._silos = silos
        self._seen: list[tuple[float, ...]] = []
        self._memory: list[int] = []

    def at(self, unix_seconds: float) -> Used:
        """What had been used by then; between two looks as if it grew evenly."""
        moments, *_ = self._columns
        return _used(float(np.interp(unix_seconds, moments, column)) for column in self._columns)

    def most_bytes(self, since: float, until: float) -> int:
        """Of the coordinator's memory that is of no file, with the looks just before and after."""
        first, last = np.searchsorted(self._columns[0], (since, until))
        return max(self._memory[max(0, int(first) - 1) : int(last) + 1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self.look()
            self._columns = np.array(self._seen).T

    def look(self) -> None:
        written, cpu_seconds = self._hub.written(), self._hub.cpu_seconds()
        silos_cpu_seconds = sum(silo.cpu_seconds() for silo in self._silos)
        self._seen.append(
            (time.time(), cpu_seconds, written["write_bytes"], written["wchar"], silos_cpu_seconds)
        )
        self._memory.append(self._hub.memory())


def _used(values: Iterable[float]) -> Used:
    """In the order of the fields."""
    wall, cpu, written, handed, silos_cpu = values
    return Used(
        wall_seconds=wall,
        cpu_seconds=cpu,
        written_bytes=written,
        handed_bytes=handed,
        silos_cpu_seconds=silos_cpu,
    )
