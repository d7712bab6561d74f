"""How far a simulation is, on a terminal: one line of stderr that is written over again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from chorale.transport.wire import phase_kind
from simulation.engine import Step

CLEAR = "\r\x1b[K"
REDRAW_SECONDS = 0.2


class ProgressLine:
    """stream: None where nobody looks. rounds: of the whole simulation."""

    def __init__(
        self, stream: TextIO | None, *, rounds: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._rounds = rounds
        self._clock = clock
        self._drawn = -REDRAW_SECONDS
        self._ended: list[tuple[int, float]] = []  # rounds, and when each did

    def answered(self, step: Step, done: int, of: int) -> None:
        """So many silos of that phase."""
        now = self._clock()
        if self._stream is None or (done < of and now - self._drawn < REDRAW_SECONDS):
            return
        self._drawn = now
        round, phase = step
        where = f"round {round}/{self._rounds}" if round else "before the first round"
        self._stream.write(f"{CLEAR}{where}: {phase_kind(phase)}, {done} of {of} silos{self._left()}")
        self._stream.flush()

    def round_ended(self, round: int) -> None:
        self._ended = [*self._ended[:1], (round, self._clock())]  # the first one's end, and the last one's

    def clear(self) -> None:
        """Before another line is written."""
        if self._stream is not None:
            self._stream.write(CLEAR)
            self._stream.flush()

    def _left(self) -> str:
        """By the rounds that this process ran after its first, which loads what is needed."""
        if len(self._ended) < 2:
            return ""
        (first, began), (last, ended) = self._ended
        seconds = (ended - began) / (last - first) * (self._rounds - last) - (self._clock() - ended)
        return f", about {_duration(max(seconds, 0.0))} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
