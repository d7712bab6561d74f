"""The first two messages of a control stream: hello, and the coordinator's welcome.

Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc

from chorale.runtime.software import Software
from chorale.transport.wire import PROTOCOL_VERSION
from chorale.v1 import federation_pb2 as pb
from crypto.errors import RemoteProtocolError
from silo_agent.connection.status import FirstStatus

WELCOME_SECONDS = 30.0


async def greet(
    call: Any, *, target: str, software: Software, roster_version: int, agent: bytes = b""
) -> pb.Welcome | str | None:
    """The welcome; why there is none; None where no connection came about.

    call: of Attend, not used before. target: how the coordinator is called in a sentence. roster_version: the
    newest that this silo accepted. agent: of the process that will attend. Raises RemoteProtocolError where
    the two sides can never work together.
    """
    hello = pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        software_version=software.version,
        roster_version=roster_version,
        software_digest=bytes.fromhex(software.sha256),
        agent=agent,
    )
    status = FirstStatus(call)
    try:
        async with asyncio.timeout(WELCOME_SECONDS):
            await call.write(pb.SiloMessage(hello=hello))
            message = await call.read()
    except TimeoutError:
        return f"coordinator did not answer at {target} within {WELCOME_SECONDS:g} seconds"
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        message = grpc.aio.EOF
    if message is grpc.aio.EOF:
        code, details = await status.get()
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            raise RemoteProtocolError(f"coordinator refused: {details}")
        return None if code is grpc.StatusCode.UNAVAILABLE else explain(code, details)
    if message is None or message.WhichOneof("kind") != "welcome":
        return "coordinator did not begin with a welcome"
    welcome: pb.Welcome = message.welcome
    if not math.isfinite(welcome.heartbeat_seconds):
        return f"coordinator: heartbeat_seconds: expected a number, got {welcome.heartbeat_seconds}"
    if welcome.protocol_version != PROTOCOL_VERSION:
        expected = f"expected protocol version {PROTOCOL_VERSION}, got {welcome.protocol_version}"
        raise RemoteProtocolError(f"coordinator: {expected}")
    return welcome


def explain(code: grpc.StatusCode, details: str | None) -> str:
    """One sentence on why the coordinator ended a call, in an operator's words."""
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return f"coordinator refused this silo: {details}"
    return f"coordinator ended the stream: {code.name.lower()} {details or ''}".rstrip()
