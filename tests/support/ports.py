"""Ports of loopback for servers that have to know them before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# below the ports that systems give to outgoing connections (Linux: from 32768), so that none of those
# takes one of them between here and the server's start
RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Different ports that are free now."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(RANGE, len(RANGE)):
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"no {count} free ports")
