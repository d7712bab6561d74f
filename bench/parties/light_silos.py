"""Many silos in one process: `python -m bench.parties.light_silos SETTINGS...`, started by `bench.scale`.

Each is the agent that `chorale silo run` runs, with an identity, a ledger, a folder and a channel of its own.
They share the process: its interpreter's lock, its event loop and the few threads of that loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from chorale.observability import logs
from chorale.runtime.background_io import keep_chunks
from chorale.runtime.machine import allow_descriptors
from chorale.transport import tls
from silo_agent.agent import run_agent
from silo_agent.settings import SiloSettings, load_silo_settings


def main(paths: Sequence[Path]) -> None:
    """Serve until SIGTERM; logs go to stderr as JSON lines."""
    tls.restrict_to_tls13()
    logs.configure()
    keep_chunks()
    allow_descriptors()
    asyncio.run(serve([load_silo_settings(path) for path in paths]))


async def serve(members: Sequence[SiloSettings]) -> None:
    """Until one of them ends. A signal reaches the one that asked for it last, and it ends all."""
    agents = [asyncio.ensure_future(run_agent(settings)) for settings in members]
    ended, rest = await asyncio.wait(agents, return_when=asyncio.FIRST_COMPLETED)
    for agent in rest:
        agent.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for agent in ended:
        agent.result()


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
