"""What a process tells of itself."""

from __future__ import annotations

import asyncio
import os
import platform
import time

from prometheus_client import CollectorRegistry

from chorale.observability.process_metrics import LoopLag, add_process_metrics


def test_descriptors_memory_start_and_versions_are_there() -> None:
    registry = CollectorRegistry()
    add_process_metrics(registry, "chorale_silo", version="1.2")
    value = registry.get_sample_value
    before = value("process_open_fds")
    held = os.open("/dev/null", os.O_RDONLY)
    try:
        assert value("process_open_fds") == before + 1
    finally:
        os.close(held)
    assert value("process_max_fds") > before
    assert value("process_resident_memory_bytes") > 1 << 20
    assert time.time() - 86_400 * 365 < value("process_start_time_seconds") < time.time()
    assert value("chorale_silo_build_info", {"version": "1.2", "python": platform.python_version()}) == 1


def test_a_loop_that_is_held_up_shows_while_it_is_and_afterwards() -> None:
    now = [100.0]
    lag = LoopLag(monotonic=lambda: now[0])

    async def hold() -> tuple[float, float]:
        watching = asyncio.create_task(lag.watch())
        await asyncio.sleep(0)  # it waits
        now[0] += 7.5
        during = lag.longest_seconds()  # as another thread would ask
        await asyncio.sleep(0.6)
        watching.cancel()
        return during, lag.longest_seconds()

    assert lag.longest_seconds() == 0.0
    assert asyncio.run(hold()) == (7.0, 7.0)
