"""How fast each silo's line is, as its transfers show. Pure: every method is told what time it is.

A transfer shows it once the buffers on the way are full: before that a slow line takes bytes as fast as any.
Nothing is kept over a restart; a line that was not measured counts as the slowest there may be.
Source: docs/protocol.md 7.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BUFFERED_BYTES = 8 << 20  # twice what Linux lets wait in a socket by default


@dataclass(slots=True)
class LineRates:
    """Bytes per second of each silo's newest long transfer, by silo."""

    measured: dict[str, float] = field(default_factory=dict)

    def slowest(self, silos: Iterable[str]) -> float:
        """0 where one of them was not measured."""
        return min((self.measured.get(silo, 0.0) for silo in silos), default=0.0)

    def meter(self, silo: str) -> Meter:
        """For a transfer of the silo that begins, in either direction."""
        return Meter(silo, self)


@dataclass(slots=True)
class Meter:
    """Of one transfer: what moved, and its rate from when the buffers were full."""

    silo: str
    rates: LineRates
    _moved_bytes: int = 0
    _filled: tuple[int, float] | None = None  # when the buffers were full, and how much had moved then

    def note(self, moved_bytes: int, *, now: float) -> None:
        """So many more bytes have moved."""
        self._moved_bytes += moved_bytes
        if self._filled is None:
            if self._moved_bytes >= BUFFERED_BYTES:
                self._filled = self._moved_bytes, now
            return
        counted, seconds = self._moved_bytes - self._filled[0], now - self._filled[1]
        if counted >= BUFFERED_BYTES and seconds > 0:
            self.rates.measured[self.silo] = counted / seconds
