"""Every channel option that is set does what its line says, in the gRPC that is linked.

grpcio 1.85 ends no line by `grpc.keepalive_timeout_ms` alone: a middlebox that went on acknowledging held a
silo for 61 to 90 s where 10 were promised. Source: docs/protocol.md 8.5.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import grpc
import pytest

from chorale.transport import channel_options
from chorale.transport.channel_options import (
    UNACKNOWLEDGED_SECONDS,
    Options,
    client_options,
    server_keepalive,
)
from chorale.transport.route import Proxy, Route
from chorale.transport.tls import IdentityFiles
from coordinator.service import hosting
from tests.support.frames import CHUNK, GOAWAY, PING, begin, fetch, send, serving
from tests.support.relay import HERE

TESTS = Path(__file__).parents[1]
NOWHERE = Path("nowhere")
OFTEN, NEVER = 1.0, 3600.0  # the shortest keepalive, and the longest
HOSTING, PROXY = "unit/coordinator/test_hosting.py::test_", "deployment/test_proxy.py::test_"
SHOWN_ELSEWHERE = {
    "grpc.server_handshake_timeout_ms": f"{HOSTING}peer_that_never_shakes_hands_is_dropped",
    "grpc.max_allowed_incoming_connections": f"{HOSTING}connections_beyond_the_most_are_closed_at_once",
    "grpc.so_reuseport": f"{HOSTING}port_that_is_in_use_is_one_clear_line",
    "grpc.min_reconnect_backoff_ms": "integration/test_far_lines.py::test_an_address_that_drops_every_packet",
    "grpc.enable_http_proxy": f"{PROXY}a_job_runs_through_the_proxy_and_there_is_no_other_way",
    "grpc.http_proxy": f"{PROXY}a_job_runs_through_the_proxy_and_there_is_no_other_way",
    "grpc.ssl_target_name_override": f"{PROXY}a_job_runs_through_the_proxy_and_there_is_no_other_way",
}
SHOWN_HERE = {
    "grpc.max_receive_message_length",
    "grpc.max_send_message_length",
    "grpc.max_connection_idle_ms",
    "grpc.max_concurrent_streams",
    "grpc.http2.bdp_probe",
    "grpc.http2.lookahead_bytes",
    "grpc.keepalive_time_ms",
    "grpc.keepalive_permit_without_calls",
    "grpc.http2.max_pings_without_data",
    "grpc.http2.min_ping_interval_without_data_ms",
    "grpc.http2.ping_timeout_ms",
    "grpc.keepalive_timeout_ms",
    "grpc.use_local_subchannel_pool",
}


class Transfer(Protocol):
    """Of so many chunks, to its end."""

    def __call__(self, channel: grpc.aio.Channel, *, chunks: int) -> Awaitable[None]: ...


def dialing(
    *, keepalive_seconds: float = NEVER, proxy: Proxy | None = None, name: str | None = None
) -> Options:
    identity = IdentityFiles(certificate=NOWHERE, key=NOWHERE)
    route = Route(
        coordinator=f"{HERE}:1", identity=identity, authority=NOWHERE, proxy=proxy, coordinator_name=name
    )
    return client_options(route, keepalive_seconds=keepalive_seconds)


def changed(options: Options, **values: int) -> Options:
    """values: by the last part of an option's name."""
    full = {key.rpartition(".")[2]: key for key, _ in options}
    return tuple((dict(options) | {full[short]: value for short, value in values.items()}).items())


def without(options: Options, *short: str) -> Options:
    left = tuple(each for each in options if each[0].rpartition(".")[2] not in short)
    assert len(left) == len(options) - len(short)
    return left


def test_it_is_shown_of_every_option_that_it_is_obeyed() -> None:
    proxied = dialing(proxy=Proxy(address=f"{HERE}:2"), name="hub.example.org")
    every = {name for name, _ in (*hosting.OPTIONS, *server_keepalive(OFTEN), *dialing(), *proxied)}

    every.add(hosting.MOST_CONNECTIONS)
    assert every == SHOWN_ELSEWHERE.keys() | SHOWN_HERE
    for place in SHOWN_ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}" in (TESTS / file).read_text(), place


@pytest.mark.parametrize("side", ["client", "server"])
async def test_line_that_acknowledges_and_forwards_nothing_ends_by_the_answer_of_a_ping(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has a second here, and gRPC's own time for one is a minute."""
    monkeypatch.setattr(channel_options, "CLIENT_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(channel_options, "SERVER_ANSWER_SECONDS", 1.0)
    is_client = side == "client"
    dial = dialing(keepalive_seconds=OFTEN if is_client else NEVER)
    async with serving(server_keepalive(NEVER if is_client else OFTEN)) as lines:
        line, (channel,) = await lines.dial(dial)
        call = await begin(channel)
        line.is_silent = True
        async with asyncio.timeout(50):
            await line.ended[side].wait()
        call.cancel()


async def test_bytes_that_nobody_takes_end_the_line() -> None:
    """By TCP_USER_TIMEOUT, which gRPC sets from `keepalive_timeout_ms` on both sides."""
    async with serving(server_keepalive(NEVER)) as lines:
        _, (channel,) = await lines.dial(dialing())
        call = await begin(channel)
        found = [timeout_of_socket(name) for name in os.listdir("/proc/self/fd")]
        assert found.count(round(1000 * UNACKNOWLEDGED_SECONDS)) == 3  # with the one that listens
        call.cancel()


def timeout_of_socket(descriptor: str) -> int:
    """TCP_USER_TIMEOUT in milliseconds, of what is a TCP socket; else 0."""
    with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as one:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return 0


async def test_idle_line_is_pinged_without_end_and_one_without_an_option_is_not() -> None:
    """Five pings on a line without a call. Of the others one sends none, one two, one is disconnected."""
    dial, serve = dialing(keepalive_seconds=OFTEN), server_keepalive(NEVER)
    strict = without(serve, "min_ping_interval_without_data_ms")
    async with serving(serve) as lines, serving(strict) as strictly:
        dialed = [
            await lines.dial(dial),
            await lines.dial(changed(dial, keepalive_permit_without_calls=0)),
            await lines.dial(changed(dial, max_pings_without_data=2)),
            await strictly.dial(dial),
        ]
        for _, (channel,) in dialed:
            await fetch(channel, chunks=0)
        line, silent, two, cut = (line for line, _ in dialed)
        await line.until("client", PING, 5)
        await cut.until("server", GOAWAY, 1)
        assert silent.frames["client", PING] == 0
        assert two.frames["client", PING] <= 3
        assert line.frames["server", GOAWAY] == 0


@pytest.mark.parametrize("transfer", [send, fetch])
async def test_transfer_sends_no_ping_that_would_wait_behind_it(transfer: Transfer) -> None:
    """A line of 60 kB/s takes longer for what gRPC lets wait than a ping has for its answer: it was cut."""
    dial, serve = dialing(), (*hosting.OPTIONS, *server_keepalive(NEVER))
    own = ("bdp_probe", "lookahead_bytes")
    async with serving(serve) as lines, serving(without(serve, *own)) as others:
        line, (channel,) = await lines.dial(dial)
        other, (other_channel,) = await others.dial(without(dial, *own))
        await transfer(channel, chunks=8)
        await transfer(other_channel, chunks=8)

    assert (line.frames["client", PING], line.frames["server", PING]) == (0, 0)
    assert other.frames["client", PING] + other.frames["server", PING] > 0
    assert line.windows == {"client": 1 << 20, "server": 1 << 20}


async def test_limits_of_a_connection_are_kept() -> None:
    """Of a message's size either way, of calls at once, of a time without a call, of who shares it."""
    serve = changed(
        (*hosting.OPTIONS, *server_keepalive(NEVER)), max_concurrent_streams=1, max_connection_idle_ms=200
    )
    async with serving(serve) as lines:
        _, (channel,) = await lines.dial(changed(dialing(), max_receive_message_length=1000))
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await fetch(channel, chunks=1)
        _, (channel,) = await lines.dial(changed(dialing(), max_send_message_length=1000))
        call = await begin(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.write(CHUNK)
        line, (channel, another) = await lines.dial(dialing(), channels=2)
        first = await begin(channel)
        second = asyncio.ensure_future(begin(channel))
        await begin(another)  # by a connection of its own
        assert (line.accepted, second.done()) == (2, False)
        first.cancel()
        (await second).cancel()
        await line.ended["server"].wait()
