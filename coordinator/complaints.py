"""Who sits out after complaints of envelopes that did not open.

The accused sits out the next attempt of the round or, if there is none, the whole next round. A silo is
heeded once a job: with each further complaint, of the same silo or another, it sits out itself, so that no
silo can keep others away for long. Source: docs/protocol.md 5.8.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledComplaint:
    """phase, attempt: in which it was filed; phase is the sequence number of its row."""

    phase: int
    attempt: int
    sender: str
    accused: str


def excluded_silos(
    history: Sequence[FiledComplaint], *, after: Collection[tuple[int, int]]
) -> frozenset[str]:
    """Silos left out because of what was filed in these attempts.

    history: all complaints of the job, in order. after: phase and number of the attempt before, and of the
    last one of the phase before, which left no silo to sit out but the phase that follows.
    """
    excluded, heard = set(), set()
    for complaint in history:
        is_heeded = complaint.sender not in heard
        heard.add(complaint.sender)
        if (complaint.phase, complaint.attempt) in after:
            excluded.add(complaint.accused if is_heeded else complaint.sender)
    return frozenset(excluded)
