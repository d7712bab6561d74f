"""Seconds that a device takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """CPU seconds of this process; on a GPU wall seconds until it has done all."""
    clock: Callable[[], float] = time.process_time
    if device.type == "cuda":
        clock = time.perf_counter
        torch.cuda.synchronize()
    started = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - started
