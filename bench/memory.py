"""How much more memory a step holds at its worst than before it began."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


class Peak:
    """Filled when the step is over; arrays and bytes count, mapped files and the interpreter do not."""

    bytes: int = 0


@contextmanager
def peak_of_step() -> Iterator[Peak]:
    """Measure one step. Slows it down: take its times elsewhere."""
    peak = Peak()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
