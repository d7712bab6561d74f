"""The sum of masked vectors: added as they come, stored before it is unmasked, and what silos fetch of it.

Memory is one sum, whatever the number of silos: an upload is read from its spool block by block.
Everything here blocks and runs in a worker thread. Source: docs/protocol.md 5.4, 5.6 and 10.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chorale.runtime.files import write_atomic
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Words
from crypto.masking.masks import UnmaskPlan, vectors_from_stream
from crypto.masking.stored_sum import tagged_stream

BLOCK_BYTES = 1 << 20


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

    def add(self, spooled: Path) -> None:
        """Add one silo's complete upload: a stream of little-endian words in ascending word size."""
        with spooled.open("rb", buffering=0) as stream:
            for ring_bits in self._layout.ring_sizes:
                little_endian = ring.WORD_TYPES[ring_bits].newbyteorder("<")
                sum_L = self._sums[ring_bits]
                for start in range(0, sum_L.size, BLOCK_BYTES * 8 // ring_bits):
                    block_B = sum_L[start : start + BLOCK_BYTES * 8 // ring_bits]
                    part_B = np.fromfile(stream, dtype=little_endian, count=block_B.size)
                    np.add(block_B, part_B, out=block_B)

    def store(self, path: Path) -> None:
        store_vectors(path, self._sums, layout=self._layout)


def store_vectors(path: Path, vectors: dict[int, Words], *, layout: Layout) -> None:
    """Durable once it returns; the file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    little_endian = (
        vectors[ring_bits].astype(ring.WORD_TYPES[ring_bits].newbyteorder("<"), copy=False)
        for ring_bits in layout.ring_sizes
    )
    write_atomic(path, (vector_L.view(np.uint8).data for vector_L in little_endian))


def unmask_stored(source: Path, target: Path, *, plan: UnmaskPlan) -> None:
    """Take the masks off a stored sum and store what remains; both files are whole or absent."""
    data = bytearray(source.stat().st_size)
    with source.open("rb") as file:
        file.readinto(data)
    vectors = {
        ring_bits: vector_L.astype(ring.WORD_TYPES[ring_bits], copy=False)
        for ring_bits, vector_L in vectors_from_stream(plan.layout, data).items()
    }
    plan.unmask(vectors)
    store_vectors(target, vectors, layout=plan.layout)


def store_tagged(revealed: Path, target: Path, *, layout: Layout) -> RevealedFile:
    """Store the part of a revealed sum that silos fetch to check it."""
    write_atomic(target, tagged_stream(revealed, layout=layout))
    with target.open("rb") as file:
        return RevealedFile(digest=hashlib.file_digest(file, "sha256").digest(), path=target)
