"""The sum of masked vectors: added as they come, stored before it is unmasked, and unmasked block by block.

Memory is one sum while vectors are added, whatever their number, and a few blocks afterwards. Everything
here blocks and runs in a worker thread. Source: docs/protocol.md 5.4, 5.6 and 10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chorale.runtime.files import Part, write_together
from coordinator.storage.sum_files import SumFiles
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from crypto.masking.masks import UnmaskPlan, vectors_from_stream

if TYPE_CHECKING:
    from hashlib import _Hash as HASH


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealedFile:
    """The tagged part of a revealed sum on disk. digest: SHA-256 of the file."""

    digest: bytes
    path: Path


class MaskedSum:
    """Vectors of a session added modulo 2^w."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sums = ring.zeros(layout)

    def add(self, upload: memoryview) -> None:
        """Add one silo's complete upload: a stream of little-endian words in ascending word size."""
        ring.add_into(self._sums, vectors_from_stream(self._layout, upload))

    def parts(self) -> Iterator[Part]:
        """The sum as such a stream."""
        for ring_bits in self._layout.ring_sizes:
            little_endian = ring.WORD_TYPES[ring_bits].newbyteorder("<")
            yield self._sums[ring_bits].astype(little_endian, copy=False).view(np.uint8).data


def unmask_stored(files: SumFiles, plan: UnmaskPlan) -> RevealedFile | None:
    """Take the masks off the stored sum and store what silos fetch of it and the rest, each once.

    Every file is whole or absent. Gives what silos fetch; None where no quantity is tagged.
    """
    masked = vectors_from_stream(plan.layout, np.memmap(files.masked, np.uint8, "r").data)
    hashed = hashlib.sha256()
    revealed: dict[Path, Iterable[Part]] = {}
    if plan.layout.tagged is not None:
        revealed[files.tagged] = _hashed(plan.stream(masked, tagged=True), hashed)
    if plan.layout.untagged is not None:
        revealed[files.untagged] = plan.stream(masked, tagged=False)
    write_together(revealed)
    if plan.layout.tagged is None:
        return None
    return RevealedFile(digest=hashed.digest(), path=files.tagged)


def revealed_file(files: SumFiles, layout: Layout) -> RevealedFile | None:
    """What `unmask_stored` gave, after a restart."""
    if layout.tagged is None:
        return None
    with files.tagged.open("rb") as file:
        return RevealedFile(digest=hashlib.file_digest(file, "sha256").digest(), path=files.tagged)


def _hashed(parts: Iterable[memoryview], hashed: HASH) -> Iterator[memoryview]:
    for part in parts:
        hashed.update(part)
        yield part
