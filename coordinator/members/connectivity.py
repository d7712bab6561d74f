"""Since when each silo has been away, over all connections of a job's lifetime. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Connectivity:
    """A silo never seen counts as lost at the moment the job started here."""

    def __init__(self, silos: Iterable[str], *, connected: Iterable[str], now: float) -> None:
        here = frozenset(connected)
        self._lost_at: dict[str, float | None] = {silo: None if silo in here else now for silo in silos}

    def on_connected(self, silo: str) -> None:
        self._lost_at[silo] = None

    def on_lost(self, silo: str, *, now: float) -> None:
        self._lost_at[silo] = now

    def lost_at(self, silo: str) -> float | None:
        """None while it is connected."""
        return self._lost_at[silo]

    def is_connected(self, silo: str) -> bool:
        return self._lost_at[silo] is None
