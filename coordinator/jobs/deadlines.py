"""How long a stage waits for each silo. Pure: every method is told what time it is.

A stage waits `deadline` seconds for a silo that shows no sign of progress, and `hard_cap` seconds for one
that shows it. Progress moves the deadline: bytes of a transfer at the minimum rate or above, or a heartbeat
that lists the phase as being prepared. The seconds of such a transfer do not count towards the hard cap, up
to what it takes at the minimum rate: so every transfer at this rate fits, whatever its length. A silo whose
connection is gone is waited for `grace` seconds. Times are seconds of one monotonic clock.
Source: docs/protocol.md 7.2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from chorale.transport.wire import CHUNK_BYTES
from coordinator.members.line_rates import BUFFERED_BYTES
from coordinator.settings import CoordinatorSettings

# What a stage adds to the settings. All silos and the coordinator together take 0.4 ms of CPU for a pair of
# silos in SHARE, the most of all stages, and encoding and masking 0.2 ns for a byte of the vector and a silo
# (docs/performance.md). Both here are five times as much: all of them on 2 cores with other work.
PAIR_SECONDS = 0.002
MASKED_BYTE_SECONDS = 1e-9
SILO_BYTES = 6 << 10  # of each silo in the messages of a stage, both ways: in SHARE an advert and an envelope
RATE_MARGIN = 0.5  # of a measured rate: lines vary, and others may use them


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """deadline, hard_cap, grace: seconds. min_rate: bytes per second that count as progress.
    unseen_bytes: how much of a transfer moves without being seen, so how long silence may be progress.
    transfer_bytes: what a silo uploads and downloads in chunks."""

    deadline: float
    hard_cap: float
    grace: float
    min_rate: float
    unseen_bytes: int = CHUNK_BYTES
    transfer_bytes: int = 0

    @property
    def unseen_seconds(self) -> float:
        return self.unseen_bytes / self.min_rate

    @property
    def transfer_seconds(self) -> float:
        """How long the stage's transfers take at the minimum rate."""
        return self.transfer_bytes / self.min_rate

    def log_fields(self) -> dict[str, float]:
        """What a log says of them: how long for a silo without progress, and for one with it."""
        longest = self.hard_cap + self.transfer_seconds
        return {
            "deadline_seconds": round(min(self.deadline, self.hard_cap), 1),
            "hard_cap_seconds": round(longest, 1),
        }

    @property
    def standstill_seconds(self) -> float:
        """How long nothing may come on a stream of the stage."""
        return self.deadline + self.unseen_seconds


def limits_of(settings: CoordinatorSettings) -> StageLimits:
    """What the settings say: the floor of every stage."""
    return StageLimits(
        deadline=settings.stage_deadline_seconds,
        hard_cap=settings.stage_hard_cap_seconds,
        grace=settings.reconnect_grace_seconds,
        min_rate=settings.min_upload_bytes_per_second,
    )


def following_work(
    floor: StageLimits, *, silos: int, slowest_rate: float, uploaded_bytes: int = 0, downloaded_bytes: int = 0
) -> StageLimits:
    """The limits of a stage of so many silos, each of which uploads and downloads so many bytes in chunks.

    slowest_rate: of their lines as measured, in bytes per second; 0 where one was not. Below the minimum rate
    it counts as that: a silo that makes its line look slow stretches nothing further.
    Source: docs/protocol.md 7.2.
    """
    work = PAIR_SECONDS * silos**2 + MASKED_BYTE_SECONDS * silos * uploaded_bytes
    message_bytes = SILO_BYTES * silos
    return replace(
        floor,
        deadline=floor.deadline + work + message_bytes / max(floor.min_rate, RATE_MARGIN * slowest_rate),
        hard_cap=floor.hard_cap + work + message_bytes / floor.min_rate,
        transfer_bytes=uploaded_bytes + downloaded_bytes,
        # of a download it is seen what is sent, not what has arrived
        unseen_bytes=BUFFERED_BYTES if downloaded_bytes else floor.unseen_bytes,
    )


@dataclass(slots=True)
class _Wait:
    since: float  # last moment at which the silo kept up
    moved_at: float | None = None  # of these, the last of a transfer
    fresh_bytes: int = 0  # moved since then
    transfer_seconds: float = 0.0


class StageDeadlines:
    """The waiting times of one stage. away_since: the connectivity of the job's silos, kept up to date by
    its runner: since when each that is not connected has been away."""

    def __init__(self, limits: StageLimits, *, started: float, away_since: Mapping[str, float]) -> None:
        self.limits = limits
        self.hard_cap_at = started + limits.hard_cap  # of a silo that transfers nothing
        self._away_since = away_since
        self._waits = defaultdict[str, _Wait](lambda: _Wait(since=started))

    def on_alive(self, name: str, *, now: float) -> None:
        """The silo says that it is at work on its answer."""
        wait = self._waits[name]
        wait.since = max(wait.since, now)

    def on_transfer(self, name: str, *, moved_bytes: int, now: float) -> None:
        """So many more bytes have passed between the silo and here. The first call begins the transfer."""
        wait = self._waits[name]
        if wait.moved_at is None:
            wait.moved_at = wait.since = now
            return
        wait.fresh_bytes += moved_bytes
        seconds = now - wait.moved_at
        if wait.fresh_bytes >= self.limits.min_rate * seconds:
            wait.transfer_seconds += seconds
            wait.moved_at = wait.since = now
            wait.fresh_bytes = 0

    def is_present(self, name: str, *, now: float) -> bool:
        """Connected, or gone for no longer than the grace."""
        return now < self._grace_ends(name)

    def expires_at(self, name: str) -> float:
        """When the stage stops waiting for this silo, as things stand."""
        wait, limits = self._waits[name], self.limits
        patience, hard_cap_at = limits.deadline, self.hard_cap_at
        if wait.moved_at is not None:
            patience = max(patience, limits.unseen_seconds)
            hard_cap_at += min(wait.transfer_seconds + limits.unseen_seconds, limits.transfer_seconds)
        return min(wait.since + patience, hard_cap_at, self._grace_ends(name))

    def awaited(self, names: Iterable[str], *, now: float) -> dict[str, float]:
        """Those of the names that are still worth waiting for, each with when it is not any more."""
        expiries = {name: self.expires_at(name) for name in names}
        return {name: expires for name, expires in expiries.items() if now < expires}

    def _grace_ends(self, name: str) -> float:
        """A silo that transfers is there, also while its control stream is not."""
        away_since = self._away_since.get(name, math.inf)
        if (moved_at := self._waits[name].moved_at) is not None:
            away_since = max(away_since, moved_at)
        return away_since + self.limits.grace
