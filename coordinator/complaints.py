"""Who sits out after complaints of envelopes that did not open.

The accused sits out the next attempt of the round or, if there is none, the whole next round.
A silo whose complaint was heeded once and that then complains of another sits out itself, so
that no silo can keep others away for long. Source: docs/protocol.md 5.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledComplaint:
    """attempt: number of the attempt in which it was filed."""

    attempt: int
    sender: str
    accused: str


def sitting_out(
    *, attempt: int, here: Sequence[FiledComplaint], before: Sequence[FiledComplaint]
) -> frozenset[str]:
    """Silos kept out of this attempt.

    here: complaints of this phase so far. before: those of the phase before it, whose last
    attempt left no silo to sit out but this phase.
    """
    last_attempt = max((complaint.attempt for complaint in before), default=0)
    owed = [complaint for complaint in before if complaint.attempt == last_attempt]
    recent = [complaint for complaint in here if complaint.attempt == attempt - 1]
    history = [*before, *here]
    kept_out = set()
    for complaint in [*owed, *recent]:
        earlier = history[: history.index(complaint)]
        accused_before = {past.accused for past in earlier if past.sender == complaint.sender}
        is_heeded = accused_before <= {complaint.accused}
        kept_out.add(complaint.accused if is_heeded else complaint.sender)
    return frozenset(kept_out)
