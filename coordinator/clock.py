"""The two times that the coordinator reads, so that tests can hand in their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """now: what the calendar says. monotonic: seconds that only ever grow, for deadlines."""

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic

    def unix_seconds(self) -> float:
        return self.now().timestamp()
