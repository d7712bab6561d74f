"""Waiting longer after each failure, at random, so that silos do not all return at once."""

from __future__ import annotations

from collections.abc import Callable

FIRST_SECONDS = 0.5
MAX_SECONDS = 30.0  # a coordinator that restarts finds its silos back within half a minute


class Backoff:
    """Exponential with full jitter. random: uniform in [0, 1)."""

    def __init__(
        self,
        *,
        random: Callable[[], float],
        first_seconds: float = FIRST_SECONDS,
        max_seconds: float = MAX_SECONDS,
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
