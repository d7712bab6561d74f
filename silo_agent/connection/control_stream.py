"""The control stream: dial, say hello, pass messages both ways, dial again.

Nothing listens at a silo; whatever ends the stream, the agent waits and dials again. Only a
fault that waiting does not repair ends it. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol

import grpc

from chorale.observability.logs import get_logger
from chorale.runtime.software import Software
from chorale.transport import channel_options
from chorale.transport.line_probe import LineFailed
from chorale.transport.wire import AGENT_BYTES, PhaseKey, key_to_wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from crypto.identity.certificates import Anchors
from silo_agent.connection.backoff import Backoff
from silo_agent.connection.channel import FederationStub
from silo_agent.connection.greeting import explain, greet
from silo_agent.connection.own_certificates import Renewal
from silo_agent.connection.status import FirstStatus
from silo_agent.metrics import SiloMetrics

SILENCE_SECONDS = 60.0  # beyond four heartbeats: a cohort of 200 silos, 640 kB, passes a line of 10 kB/s
# before an agent that was turned away for another one dials again; up to twice as much is drawn
SECOND_AGENT_SECONDS = 180.0
MAX_QUEUED_MESSAGES = 256  # kept while the line is down; the coordinator asks again for the rest
WARNED_SKEW_SECONDS = 60.0
MAX_SKEW_SECONDS = 300.0  # beyond it rosters, jobs and certificates are dated wrongly

log = get_logger("silo_agent.connection.control_stream")


class ConnectionFailed(ChoraleError):
    """The agent cannot work with this coordinator until an operator repairs something."""


class Served(Protocol):
    """What the stream serves: silo_agent.rounds.message_handler."""

    @property
    def preparing(self) -> tuple[PhaseKey, ...]: ...
    @property
    def roster_version(self) -> int: ...

    def receive(self, message: pb.CoordinatorMessage) -> None: ...

    def poll(self) -> None: ...


class Outbox:
    """Messages on their way out. Full only while the line is down, and then the oldest go."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.SiloMessage] = asyncio.Queue(MAX_QUEUED_MESSAGES)

    def send(self, message: pb.SiloMessage) -> None:
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(message)

    async def next(self) -> pb.SiloMessage:
        return await self._queue.get()


class ControlStream:
    """Attends for as long as the agent runs."""

    def __init__(
        self,
        stub: FederationStub,
        *,
        target: str,
        probe: Callable[[], Awaitable[LineFailed]],
        software: Software,
        served: Served,
        moved_bytes: Callable[[], int],
        outbox: Outbox,
        metrics: SiloMetrics,
        renewal: Renewal,
        clock: Callable[[], datetime],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stub = stub
        self._target = target
        self._probe = probe  # why a connection failed
        self._software = software
        self._served = served
        self._moved_bytes = moved_bytes  # of all transfers so far
        self._outbox = outbox
        self._metrics = metrics
        self._renewal = renewal
        self._clock = clock
        self._sleep = sleep
        self._backoff = Backoff(random=random)
        self._random = random
        self._agent = os.urandom(AGENT_BYTES)
        self._is_second = False  # as the last stream ended
        self._trusted: Anchors  # under which the present line was dialed
        self._heard = 0  # messages, over all streams
        self.is_connected = False

    async def run(self) -> None:
        """Until cancelled. Raises ConfigError for a certificate of one's own that no longer holds,
        RemoteProtocolError for another protocol version, ConnectionFailed for a wrong clock."""
        while True:
            self._trusted = self._renewal.authority()
            self._stub.open()
            try:
                reason = await self._attend()
            finally:
                await self._stub.close()
            self._metrics.reconnects.inc()
            wait_seconds = self._backoff.next_seconds()
            if self._is_second:
                wait_seconds = SECOND_AGENT_SECONDS * (1.0 + self._random())
            waiting = asyncio.ensure_future(self._sleep(wait_seconds))
            try:
                reason = reason or await self._probed()
                log.warning("not connected", reason=reason, retry_seconds=round(wait_seconds, 1))
                await waiting
            finally:
                waiting.cancel()

    async def _probed(self) -> str:
        """Why there was no connection."""
        try:
            failed = await self._probe()
        except ConfigError as error:  # of files that change: those that were read before are in use
            return str(error)
        self._metrics.connection_failures.labels(reason=failed.trouble.value).inc()
        return str(failed)

    async def _attend(self) -> str | None:
        """One stream from its beginning to its end; why it ended, and None where no connection came about."""
        self._is_second = False
        call = self._stub.Attend()
        try:
            welcome = await greet(
                call,
                target=self._target,
                software=self._software,
                roster_version=self._served.roster_version,
                agent=self._agent,
            )
            if welcome is None or isinstance(welcome, str):
                return welcome
            self._check_clock(welcome.unix_seconds)
            self._served.receive(pb.CoordinatorMessage(roster=pb.RosterUpdate(roster=welcome.roster)))
            self._renewal.accepted()
            self.is_connected = True
            self._metrics.connected.set(1)
            self._backoff.reset()
            version = welcome.software_version[:64]
            log.info("connected", coordinator=self._target, coordinator_version=version)
            return await self._exchange(call, heartbeat_seconds=welcome.heartbeat_seconds)
        except PolicyRefusal as error:
            return str(error)
        except ChoraleError:
            raise
        except (
            Exception
        ):  # a bug or a full disk: a silo that stayed would count as connected and answer nothing
            log.exception("control stream failed")
            return "this silo had an internal error, see its log"
        finally:
            self.is_connected = False
            self._metrics.connected.set(0)
            call.cancel()

    async def _exchange(self, call: Any, *, heartbeat_seconds: float) -> str:
        every = min(
            max(heartbeat_seconds, channel_options.MIN_HEARTBEAT_SECONDS),
            channel_options.MAX_HEARTBEAT_SECONDS,
        )
        status = FirstStatus(call)
        reading = asyncio.ensure_future(self._read(call))
        listening = asyncio.ensure_future(self._listen(4 * every + SILENCE_SECONDS))
        writing = asyncio.ensure_future(self._write(call))
        tasks = {reading, listening, writing, asyncio.ensure_future(self._beat(every))}
        running: set[asyncio.Future[Any]] = set(tasks)
        try:
            while not (reading.done() or listening.done()):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # what one of them raises ends the stream
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        reason = listening.result() if reading.cancelled() else reading.result()
        if reason is not None:
            return reason  # the call is still open, and the coordinator need never end it
        code, details = await status.get()
        if code is grpc.StatusCode.UNAVAILABLE:
            return f"the line to the coordinator at {self._target} was cut, or the coordinator is restarting"
        if code is grpc.StatusCode.ALREADY_EXISTS:
            self._is_second = True
            self._note_two_agents()
        return explain(code, details)

    def _note_two_agents(self) -> None:
        self._metrics.two_agents.set(self._clock().timestamp())
        log.error("two agents use this silo's certificate: stop one of them, or renew the certificate")

    async def _read(self, call: Any) -> str | None:
        """Until the stream ends. Returns why, where it is this side that ends it."""
        try:
            while True:
                message = await call.read()
                self._heard += 1
                if message is grpc.aio.EOF:
                    return None
                if message is None:  # all that gRPC makes of bytes that do not parse
                    return "coordinator sent bytes that are not a message"
                log.debug("message received", kind=message.WhichOneof("kind"))
                if message.HasField("heartbeat"):
                    self._check_clock(message.heartbeat.unix_seconds)
                    if message.heartbeat.two_agents:
                        self._note_two_agents()
                else:
                    self._served.receive(message)
        except grpc.aio.AioRpcError:
            return None  # the status says it

    async def _listen(self, silence_seconds: float) -> str:
        """Until nothing came for so long, and at most for as long again: the line may be well, and its pings
        be answered, while something else hangs. A transfer that moves may fill the line by itself."""
        while True:
            before = self._heard, self._moved_bytes()
            await asyncio.sleep(silence_seconds)
            if before == (self._heard, self._moved_bytes()):
                return f"coordinator sent nothing for {silence_seconds:g} seconds"

    async def _write(self, call: Any) -> None:
        try:
            while True:
                message = await self._outbox.next()
                await call.write(message)
                log.debug("message sent", kind=message.WhichOneof("kind"))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees the end too, and the coordinator asks again

    async def _beat(self, every_seconds: float) -> None:
        while True:
            if not self._renewal.authority().holds_all_of(self._trusted):
                # Security: the coordinator's certificate may be one of the removed key, which may be stolen
                raise PolicyRefusal("a certificate of the authority was removed: this silo dials again")
            self._served.poll()
            preparing = [key_to_wire(key) for key in self._served.preparing]
            beat = pb.Heartbeat(unix_seconds=self._clock().timestamp(), preparing=preparing)
            self._outbox.send(pb.SiloMessage(heartbeat=beat))
            await self._sleep(every_seconds)

    def _check_clock(self, coordinator_unix_seconds: float) -> None:
        skew_seconds = self._clock().timestamp() - coordinator_unix_seconds
        self._metrics.clock_skew.set(skew_seconds)
        if not abs(skew_seconds) <= MAX_SKEW_SECONDS:  # nor is "not a number"
            raise ConnectionFailed(
                f"clock: this one differs from the coordinator's by {skew_seconds:+.0f} seconds, "
                f"at most {MAX_SKEW_SECONDS:g} are allowed"
            )
        if abs(skew_seconds) > WARNED_SKEW_SECONDS:
            log.warning("clock differs from the coordinator's", skew_seconds=round(skew_seconds))
