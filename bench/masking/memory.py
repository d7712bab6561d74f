"""How much more memory a side holds at its worst than its input: multiples of the vector.

What is held whatever the length - a chunk and its blocks in every thread - takes a few megabytes, so a
short vector is measured as a longer one.
"""

# L = words of one vector

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.masking import masks
from coordinator.jobs.aggregate import MaskedSum, unmask_stored
from coordinator.storage.sum_files import SumFiles
from crypto.fixed_point.encoder import Encoder

MIN_VALUES = 1 << 23


class Peak:
    """Filled when the step is over; arrays and bytes count, mapped files and the interpreter do not."""

    bytes: int = 0


@contextmanager
def peak_of_step() -> Iterator[Peak]:
    """Measure one step. Slows it down: take its times elsewhere."""
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1]  # of what came since the start
    finally:
        tracemalloc.stop()


def silo_peak_to_vector(length: int, *, word: int, silos: int) -> float:
    """In addition to its values, while a silo checks, encodes and masks them."""
    vector = masks.layout(max(length, MIN_VALUES), word=word, silos=silos)
    values_L = masks.values(max(length, MIN_VALUES), seed=0)
    masker = masks.masker(vector, silos=silos)
    masks.exhaust(masker, Encoder({masks.QUANTITY: values_L}, layout=vector))  # loads what is compiled
    with peak_of_step() as peak:
        masks.exhaust(masker, Encoder({masks.QUANTITY: values_L}, layout=vector))
    return peak.bytes / vector.total_bytes


def coordinator_peak_to_vector(length: int, *, word: int, silos: int, lost: int, folder: Path) -> float:
    """While the coordinator adds every survivor's upload, stores the sum, and unmasks what it stored."""
    vector = masks.layout(max(length, MIN_VALUES), word=word, silos=silos)
    files = SumFiles(folder, sequence=1, attempt=1)
    upload = memoryview(bytes(vector.total_bytes))
    plan = masks.unmask_plan(vector, survivors=silos - lost, lost=lost)
    with peak_of_step() as peak:
        total = MaskedSum(vector)
        for _ in range(silos - lost):
            total.add(upload)
        files.store(total.parts(), b"")
        del total
        unmask_stored(files, plan)
    return peak.bytes / vector.total_bytes
