"""Tells any number of watchers that something changed, without a queue for any of them."""

from __future__ import annotations

import asyncio


class Bulletin:
    """A watcher takes `next_change()` first, reads what it watches, then awaits the change."""

    def __init__(self) -> None:
        self._change = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        return self._change

    def notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
