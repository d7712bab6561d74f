"""What systemd learns of a service: that it serves, that its event loop turns, that it stops.

Elsewhere nothing is sent. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PINGS_A_WATCHDOG = 4  # one may be late


@asynccontextmanager
async def service_notifications() -> AsyncIterator[None]:
    """Ready when entered, stopping when left; between, the event loop itself says that it turns."""
    notify("READY=1")
    pinging = asyncio.create_task(_ping())
    try:
        yield
    finally:
        pinging.cancel()
        notify("STOPPING=1")


def notify(state: str) -> None:
    """One datagram to the service manager that started this process, where there is one that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
        sending.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


async def _ping() -> None:
    """Until it is cancelled; a loop that hangs sends none, and systemd restarts the service."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 / PINGS_A_WATCHDOG
    while seconds:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)
