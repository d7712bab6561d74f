"""How long the agent waits before it dials or transfers again."""

from __future__ import annotations

from collections.abc import Callable

FIRST_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 10.0  # and the time of an attempt: back within half a minute


class Backoff:
    """Exponential with full jitter, so that silos do not all return at once. random: uniform in [0, 1)."""

    def __init__(
        self,
        *,
        random: Callable[[], float],
        first_seconds: float = FIRST_WAIT_SECONDS,
        max_seconds: float = MAX_WAIT_SECONDS,
    ) -> None:
        self._random = random
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        """How long to wait now; at least a tenth of the step, so that no loop spins."""
        step = min(self._max_seconds, self._first_seconds * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return step * (0.1 + 0.9 * self._random())
