"""Connections to the gRPC port on which nobody has shown a certificate: so many, and one line in the log.

gRPC keeps one for the time of a handshake and then counts it as a member's: it has no limit of these alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from urllib.parse import unquote

from chorale.observability.logs import get_logger
from chorale.runtime.machine import max_descriptors
from coordinator.metrics import CoordinatorMetrics
from crypto.identity.roster import MAX_MEMBERS

LOOK_SECONDS = 1.0
CONNECTIONS_A_MEMBER = 4

log = get_logger("coordinator.service.connections")


def max_connections() -> int:
    """To the gRPC port: half of the descriptors is left for probes, files and what a job opens."""
    return min(CONNECTIONS_A_MEMBER * MAX_MEMBERS, max_descriptors() // 2)


class Strangers:
    """Those who have connected and have not called with a certificate."""

    def __init__(self, metrics: CoordinatorMetrics, *, most: int) -> None:
        """most: of them, at once; those that came first give way."""
        self._metrics, self._most = metrics, most
        self._known: set[str] = set()
        self._waiting: dict[str, int] = {}  # and their descriptors, in the order in which they came
        self._is_told = False

    def know(self, peer: str) -> None:
        """peer: as gRPC names it, of a call with a certificate."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        self._known.add(_peer(host.strip("[]"), port))

    async def watch(self, port: int) -> None:
        """Until cancelled. port: of this machine, that they connect to."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(port)

    def look(self, port: int) -> None:
        """Cut what is beyond the limit: each then ends as if its peer had gone."""
        there = _accepted(port)
        self._known &= there.keys()
        came = {peer: there[peer] for peer in self._waiting if peer in there}
        self._waiting = {peer: place for peer, place in (came | there).items() if peer not in self._known}
        excess = list(self._waiting)[: max(0, len(self._waiting) - self._most)]
        for peer in excess:
            _cut(peer, self._waiting.pop(peer))
        self._metrics.connections_without_certificate.set(len(self._waiting))
        self._metrics.connections_cut.inc(len(excess))
        if excess and not self._is_told:
            log.warning(
                "connections without a certificate are cut", most=self._most, one_from=excess[-1].split()[0]
            )
        if excess or len(self._waiting) < self._most // 2:
            self._is_told = bool(excess)


def _accepted(port: int) -> dict[str, int]:
    """Peers connected to a port of this process, and their descriptors."""
    found: dict[str, int] = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError, ValueError):  # closed meanwhile, no socket of a network, or one that listens
            one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=int(name))
            try:
                (_, own, *_), (host, peer, *_) = one.getsockname(), one.getpeername()
            finally:
                one.detach()
            if own == port:
                found[_peer(host, peer)] = int(name)
    return found


def _cut(peer: str, descriptor: int) -> None:
    """A descriptor that has meanwhile become another connection's is left alone."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        host, port, *_ = one.getpeername()
        if _peer(host, port) == peer:
            one.shutdown(socket.SHUT_RDWR)


def _peer(host: str, port: object) -> str:
    """One name for an address of IPv4, whichever kind of socket it came to."""
    return f"{host.removeprefix('::ffff:').partition('%')[0]} {port}"
