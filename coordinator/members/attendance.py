"""Which silos are connected, and a bounded way to each of them.

One connection per silo: a newer one replaces the older, because a silo that dials again has
lost the old one even where this side has not noticed yet. An agent that was displaced and comes back while
another is there is no silo that dials again: two agents use one certificate, and the one that is there stays.
Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

from chorale.observability.logs import get_logger
from chorale.runtime.software import Software
from chorale.v1 import federation_pb2 as pb
from coordinator.metrics import CoordinatorMetrics, Transfer
from coordinator.process import Clock

MAX_QUEUED_MESSAGES = 256  # a silo that lets so many wait is treated as gone and resumes later

MAX_DISPLACED = 8  # agents of a silo that are remembered
SECOND_AGENT_SECONDS = 900.0  # for so long operators read of it; the agent comes back every few minutes

log = get_logger("coordinator.members.attendance")


class Leaving(Enum):
    """Why a control stream ends at this side."""

    REPLACED = auto()
    SECOND_AGENT = auto()
    TOO_SLOW = auto()
    DRAINING = auto()
    REFUSED = auto()
    MALFORMED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    why: Leaving
    sentence: str


class Listener(Protocol):
    """A job runner, which is told when its silos connect and disconnect."""

    def on_connected(self, silo: str) -> None: ...

    def on_lost(self, silo: str) -> None: ...

    def on_message(self, silo: str, message: pb.SiloMessage) -> None: ...


class Connection:
    """The way to one silo. `ended` is of this side: a silo may never read what it is sent."""

    def __init__(
        self, silo: str, *, certificate_expires: datetime, software: Software, agent: bytes = b""
    ) -> None:
        """agent: of the silo's process; empty where it said none."""
        self.silo = silo
        self.agent = agent
        self.certificate_expires = certificate_expires
        self.software = software  # as the silo says
        self.farewell: Farewell | None = None
        self.ended = asyncio.Event()
        self._waiting: deque[pb.CoordinatorMessage] = deque()
        self._sending: pb.CoordinatorMessage | None = None
        self._news = asyncio.Event()  # a message waits, or the connection has ended

    def send(self, message: pb.CoordinatorMessage) -> None:
        """After the end nothing is sent, nor a message again that is still on its way: a slow line would fill
        with copies of what it has yet to carry once."""
        if self.ended.is_set() or message is self._sending or any(message is each for each in self._waiting):
            return
        if len(self._waiting) >= MAX_QUEUED_MESSAGES:
            self._waiting.clear()  # it does not read them
            self.end(Farewell(why=Leaving.TOO_SLOW, sentence="control stream: too many messages wait unread"))
            return
        self._waiting.append(message)
        self._news.set()

    def end(self, farewell: Farewell | None = None) -> None:
        """Without a farewell: the silo itself has gone."""
        if not self.ended.is_set():
            self.farewell = farewell
            self.ended.set()
            self._news.set()

    async def outgoing(self) -> AsyncGenerator[pb.CoordinatorMessage, None]:
        """Messages in order, those that were sent before the connection ended: a silo that is refused
        reads the roster that refuses it."""
        while True:
            await self._news.wait()
            if not self._waiting:
                return
            message = self._waiting.popleft()
            if not self._waiting and not self.ended.is_set():
                self._news.clear()
            self._sending = message
            yield message
            self._sending = None


class Attendance:
    """All connections, by silo, and the listeners to whom they matter."""

    def __init__(self, *, metrics: CoordinatorMetrics, clock: Clock | None = None) -> None:
        self.connections: dict[str, Connection] = {}
        self._clock = clock or Clock()
        self._displaced: dict[str, deque[bytes]] = {}  # agents of each silo
        self._second_agents: dict[str, float] = {}  # when the last one came, by silo; monotonic
        self.listeners: list[Listener] = []
        self._metrics = metrics
        self._received_bytes = metrics.received_bytes.labels(kind=Transfer.MESSAGE.value)
        self._sent_bytes = metrics.sent_bytes.labels(kind=Transfer.MESSAGE.value)

    def has_two_agents(self, silo: str) -> bool:
        """Whether a second agent came with the silo's certificate lately."""
        came = self._second_agents.get(silo, -math.inf)
        return self._clock.monotonic() - came < SECOND_AGENT_SECONDS

    def join(self, connection: Connection) -> None:
        """The silo's connection from now on; an older one is ended. A second agent is turned away."""
        older = self.connections.get(connection.silo)
        displaced = self._displaced.setdefault(connection.silo, deque(maxlen=MAX_DISPLACED))
        is_other = older is not None and b"" != older.agent != connection.agent
        if older is not None and is_other and connection.agent in displaced:
            return self._turn_away(connection, older)
        if older is not None and is_other and connection.agent:
            displaced.append(older.agent)
        self.connections[connection.silo] = connection
        if older is not None:
            older.end(
                Farewell(why=Leaving.REPLACED, sentence="control stream: replaced by a newer connection")
            )
        self._count()
        software = connection.software
        log.info(
            "silo connected",
            silo=connection.silo,
            software_version=software.version,
            software_sha256=software.sha256 or "none",
        )
        for listener in tuple(self.listeners):
            listener.on_connected(connection.silo)

    def _turn_away(self, second: Connection, first: Connection) -> None:
        sentence = f"two agents use the certificate of {second.silo}"
        log.error(sentence, silo=second.silo)
        self._metrics.second_agents.labels(silo=second.silo).inc()
        self._second_agents[second.silo] = self._clock.monotonic()
        second.end(Farewell(why=Leaving.SECOND_AGENT, sentence=f"{sentence}: the other one is connected"))
        beat = pb.Heartbeat(unix_seconds=self._clock.unix_seconds(), two_agents=True)
        first.send(pb.CoordinatorMessage(heartbeat=beat))

    def leave(self, connection: Connection) -> None:
        """The silo counts as lost, unless a newer connection has taken its place."""
        connection.end()
        if self.connections.get(connection.silo) is not connection:
            return
        del self.connections[connection.silo]
        self._count()
        reason = connection.farewell.sentence if connection.farewell is not None else ""
        log.info("silo disconnected", silo=connection.silo, reason=reason)
        for listener in tuple(self.listeners):
            try:
                listener.on_lost(connection.silo)
            except Exception:  # one job's bug must not leave the silo connected for the others
                log.exception("a job was not told that a silo is gone", silo=connection.silo)

    def _count(self) -> None:
        digests = {each.software.sha256 for each in self.connections.values()}
        self._metrics.connected_silos.set(len(self.connections))
        self._metrics.software_digests.set(len(digests - {""}))

    def deliver(self, silo: str, message: pb.SiloMessage) -> None:
        self._received_bytes.inc(message.ByteSize())
        for listener in tuple(self.listeners):
            listener.on_message(silo, message)

    def send(self, silo: str, message: pb.CoordinatorMessage) -> bool:
        """False where the silo is not connected; who needs the message sends it again later."""
        connection = self.connections.get(silo)
        if connection is None:
            return False
        connection.send(message)
        self._sent_bytes.inc(message.ByteSize())
        return True

    def send_all(self, silos: Iterable[str], message: pb.CoordinatorMessage) -> None:
        for silo in silos:
            self.send(silo, message)
