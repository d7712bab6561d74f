"""A phase's record as a test reads it."""

from __future__ import annotations

from collections.abc import Iterable

from chorale.v1.records_pb2 import PhaseRecord


def train_of(records: Iterable[PhaseRecord]) -> PhaseRecord:
    """The first training."""
    return next(record for record in records if record.phase == "train")


def left_out(record: PhaseRecord) -> list[tuple[str, str, str]]:
    """Silo, stage and reason of each silo that is not in the sum."""
    return [(entry.silo, entry.stage, entry.reason) for entry in record.left_out]
