"""How long a stage waits for each silo. Pure: every method is told what time it is.

A stage waits `deadline` seconds for a silo that shows no sign of progress and never longer
than `hard_cap`. Progress moves the deadline: an upload that keeps the minimum rate, or a
heartbeat that lists the phase as being prepared. A silo whose connection is gone is waited for
`grace` seconds. Times are seconds of one monotonic clock. Source: docs/protocol.md 7.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """deadline, hard_cap, grace: seconds. min_rate: bytes per second that count as progress.
    chunk_bytes: how much of an upload arrives at once, so how long silence may look like progress."""

    deadline: float
    hard_cap: float
    grace: float
    min_rate: float = 1.0
    chunk_bytes: int = 0


@dataclass(slots=True)
class _Wait:
    since: float  # last moment at which the silo kept up
    seen_bytes: int = 0
    is_uploading: bool = False


class StageDeadlines:
    """The waiting times of one stage. away_since: the connectivity of the job's silos, kept up to date by
    its runner: since when each that is not connected has been away."""

    def __init__(self, limits: StageLimits, *, started: float, away_since: Mapping[str, float]) -> None:
        self.limits = limits
        self.hard_cap_at = started + limits.hard_cap
        self._away_since = away_since
        self._waits = defaultdict[str, _Wait](lambda: _Wait(since=started))

    def on_alive(self, name: str, *, now: float) -> None:
        """The silo says that it is at work on its answer."""
        wait = self._waits[name]
        wait.since = max(wait.since, now)

    def on_upload(self, name: str, *, received_bytes: int, now: float) -> None:
        """So many bytes of the silo's vector are here."""
        wait = self._waits[name]
        wait.is_uploading = True
        if received_bytes - wait.seen_bytes >= self.limits.min_rate * (now - wait.since):
            wait.since, wait.seen_bytes = now, received_bytes

    def is_present(self, name: str, *, now: float) -> bool:
        """Connected, or gone for no longer than the grace."""
        return now < self._away_since.get(name, math.inf) + self.limits.grace

    def expires_at(self, name: str) -> float:
        """When the stage stops waiting for this silo, as things stand."""
        wait = self._waits[name]
        patience = self.limits.deadline
        if wait.is_uploading:
            patience = max(patience, self.limits.chunk_bytes / self.limits.min_rate)
        grace_ends = self._away_since.get(name, math.inf) + self.limits.grace
        return min(wait.since + patience, self.hard_cap_at, grace_ends)

    def awaited(self, names: Iterable[str], *, now: float) -> dict[str, float]:
        """Those of the names that are still worth waiting for, each with when it is not any more."""
        expiries = {name: self.expires_at(name) for name in names}
        return {name: expires for name, expires in expiries.items() if now < expires}
