"""Entry point of the coordinator's process: TLS first, then everything that loads grpc.

`coordinator.service.hosting` holds the server itself; it is imported here late, because grpc reads its
environment when it is first imported. Source: docs/protocol.md 1 and 8.
"""

from __future__ import annotations

import asyncio
import gc

from chorale.observability import logs, tracing
from chorale.runtime.service_manager import service_notifications
from chorale.transport import tls
from coordinator.process import return_large_blocks
from coordinator.settings import CoordinatorSettings


def run(settings: CoordinatorSettings) -> None:
    """Serve until SIGTERM or SIGINT; logs go to stderr as JSON lines.

    Raises ConfigError for unusable files, ChoraleError where the address is taken.
    """
    tls.restrict_to_tls13()
    logs.configure(level=settings.log_level)
    return_large_blocks()
    with tracing.exporting(
        settings.tracing_endpoint,
        service=tracing.Service.COORDINATOR,
        federation=settings.federation,
        instance="coordinator",
    ):
        asyncio.run(serve(settings))


async def serve(settings: CoordinatorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    from coordinator.service.hosting import Host, stop_signal

    stopping = stop_signal()
    logs.toggle_debug_on_signal(settings.log_level)
    async with Host(settings), service_notifications():
        gc.freeze()  # what was loaded stays: a full collection would look through all of it every few rounds
        await stopping.wait()
