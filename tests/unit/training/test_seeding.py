"""Threads of one process that ask for torch's generator take turns."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from silo_agent.training.machine.seeding import seeded

SECONDS = 0.2  # in which the second thread comes if nothing holds it


def test_one_thread_at_a_time_asks_for_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that did stood still for good: torch held its generator's lock while Python collected garbage in
    one, and the other held the GIL and waited for that lock."""
    inside, is_met, asked = threading.Semaphore(1), threading.Event(), torch.random.get_rng_state

    def slow() -> Any:
        if not inside.acquire(blocking=False):
            is_met.set()
            return asked()
        try:
            is_met.wait(SECONDS)
            return asked()
        finally:
            inside.release()

    monkeypatch.setattr(torch, "get_rng_state", slow)

    def draw() -> None:
        with seeded(1):
            torch.rand(1)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not is_met.is_set()
