"""Connections to the gRPC port: how many may have shown no certificate, and how many a member may have.

gRPC counts one that ended its handshake like any other, and knows no limit but that of all together.
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
from crypto.identity.certificates import MemberId
from crypto.identity.roster import MAX_MEMBERS

SWEEP_SECONDS = 1.0
CONNECTIONS_A_MEMBER = 4

log = get_logger("coordinator.service.connections")


def max_connections() -> int:
    """To the gRPC port: half of the descriptors is left for probes, files and what a job opens."""
    return min(CONNECTIONS_A_MEMBER * MAX_MEMBERS, max_descriptors() // 2)


class Connections:
    """By the name of their peers, in the order in which they came."""

    def __init__(self, metrics: CoordinatorMetrics, *, most: int) -> None:
        """most: of all. A quarter may be without a certificate, an eighth a single member's."""
        self._metrics = metrics
        self._most_unknown, self._most_of_member = most // 4, most // 8
        self._members: dict[str, MemberId] = {}
        self._open: dict[str, int] = {}  # and their descriptors
        self._is_logged = False

    def admit(self, peer: str, member: MemberId) -> None:
        """peer: as gRPC names it, of a call that the roster allows."""
        self._members[_peer_of_call(peer)] = member

    def dismiss(self, peer: str) -> None:
        """Of a call that is refused: a member no longer on the roster is like any stranger."""
        self._members.pop(_peer_of_call(peer), None)

    async def watch(self, port: int) -> None:
        """Until cancelled. port: of this machine, that they connect to."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            known = set(self._members)  # a peer that is admitted meanwhile may not be listed
            try:
                accepted = await asyncio.to_thread(_accepted, port)
                for peer in known - accepted.keys():
                    self._members.pop(peer, None)
                self._sweep(accepted)
            except OSError as error:  # no descriptor is left to list the others with
                log.warning("connections not counted", reason=str(error))

    def _sweep(self, accepted: dict[str, int]) -> None:
        """Cut what is beyond a limit: each then ends as if its peer had gone."""
        former = {peer: accepted[peer] for peer in self._open if peer in accepted}
        self._open = former | accepted
        unknown = [peer for peer in self._open if peer not in self._members]
        cut = unknown[: max(0, len(unknown) - self._most_unknown)]
        of_member: dict[MemberId, int] = {}
        for peer in self._open:
            if (member := self._members.get(peer)) is not None:
                of_member[member] = of_member.get(member, 0) + 1
                if of_member[member] > self._most_of_member:
                    cut.append(peer)
        for peer in cut:
            _cut(peer, self._open.pop(peer))
        self._metrics.connections_without_certificate.set(min(len(unknown), self._most_unknown))
        self._metrics.connections_cut.inc(len(cut))
        if cut and not self._is_logged:
            log.warning(
                "connections beyond a limit are cut",
                most_without_certificate=self._most_unknown,
                most_of_a_member=self._most_of_member,
                one_from=cut[-1].split()[0],
            )
        if cut or len(unknown) < self._most_unknown // 2:
            self._is_logged = bool(cut)


def _accepted(port: int) -> dict[str, int]:
    """Peers connected to a port of this process, and their descriptors. Raises OSError."""
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
    """A descriptor that has meanwhile become another connection's, or a file's, is left alone."""
    with suppress(OSError, ValueError):
        copy = os.dup(descriptor)
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=copy) as one:
            host, port, *_ = one.getpeername()
            if _peer(host, port) == peer:
                one.shutdown(socket.SHUT_RDWR)


def _peer_of_call(peer: str) -> str:
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _peer(host.strip("[]"), port)


def _peer(host: str, port: object) -> str:
    """One name for an address of IPv4, whichever kind of socket it came to."""
    return f"{host.removeprefix('::ffff:').partition('%')[0]} {port}"
