"""Writers of one file that act at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from crypto.errors import PolicyRefusal

T = TypeVar("T")


def at_once(act: Callable[[T, threading.Barrier], str], values: Sequence[T]) -> list[str]:
    """What became of each, sorted; an act waits at the barrier right before what it does."""
    barrier = threading.Barrier(len(values))
    with ThreadPoolExecutor(len(values)) as threads:
        return sorted(threads.map(lambda value: act(value, barrier), values))


def outcome_of(act: Callable[[], object]) -> str:
    try:
        act()
    except PolicyRefusal:
        return "refused"
    return "done"
