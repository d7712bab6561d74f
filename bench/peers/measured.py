"""What both sides of a comparison report, in the same units for the same work."""

# n = silos, L = values of each

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """CPU seconds and bytes of one session, means over the silos that stayed but for the coordinator's.

    silo_setup: keys, shares, envelopes, answers. silo_mask: float32 values to masked bytes.
    coordinator_unmask: from shares to a sum without masks, as words. coordinator_decode: from words to
    float64. coordinator_other: everything before.
    sent_bytes: keys, shares, envelopes and signatures, without the vector.
    max_abs_error: of the sum, in units of the values.
    """

    silo_setup_cpu_seconds: float
    silo_mask_cpu_seconds: float
    coordinator_unmask_cpu_seconds: float
    coordinator_decode_cpu_seconds: float
    coordinator_other_cpu_seconds: float
    vector_bytes: int
    sent_bytes: int
    max_abs_error: float

    @property
    def silo_cpu_seconds(self) -> float:
        return self.silo_setup_cpu_seconds + self.silo_mask_cpu_seconds

    @property
    def coordinator_cpu_seconds(self) -> float:
        unmask = self.coordinator_unmask_cpu_seconds + self.coordinator_decode_cpu_seconds
        return unmask + self.coordinator_other_cpu_seconds


def middle(turns: Iterable[Measured]) -> Measured:
    """Medians of every figure, but the largest error."""
    all_turns = list(turns)
    medians = {one.name: median(getattr(turn, one.name) for turn in all_turns) for one in fields(Measured)}
    medians["max_abs_error"] = max(turn.max_abs_error for turn in all_turns)
    return Measured(**medians)
