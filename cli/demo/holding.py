"""The coordinator of a demo with --drop: it holds each relay of envelopes for a second.

The demo kills silos between their last share and the relay, so that the others have to recover their masks.
No other coordinator needs that moment to last. `python -m cli.demo.holding coordinator run ...`
"""

from __future__ import annotations

import asyncio
import runpy

from coordinator.jobs.attempt_runner import AttemptRunner
from coordinator.storage.spool import SessionSpool

HOLD_SECONDS = 1.0

relayed = AttemptRunner.masked


async def held(self: AttemptRunner, spool: SessionSpool) -> None:
    await asyncio.sleep(HOLD_SECONDS)
    await relayed(self, spool)


if __name__ == "__main__":
    AttemptRunner.masked = held  # type: ignore[method-assign]
    runpy.run_module("cli.main", run_name="__main__", alter_sys=True)
