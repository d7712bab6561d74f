"""The connection to the coordinator: pings while it is idle, and the proxy that it goes through.

Networks between two institutions cut idle connections and may let out nothing but HTTP. TLS stays end to
end, because the proxy is asked for a tunnel (CONNECT). Source: docs/protocol.md 8.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from chorale.transport.route import Route
from chorale.transport.wire import MAX_MESSAGE_BYTES

Options = tuple[tuple[str, str | int], ...]

MIN_KEEPALIVE_SECONDS, MAX_KEEPALIVE_SECONDS = 1.0, 3600.0
KEEPALIVE_SECONDS = 30.0  # below the 60 s after which the tightest NATs forget
# TCP, TLS, HTTP/2 and a proxy's tunnel take five round trips at most: 8 s at 800 ms each way, and 3 s for a
# stall. With a wait of 10 s before the next attempt, one that meets a dead address is over before 30 s.
CONNECT_SECONDS = 15.0

CLIENT_ANSWER_SECONDS, SERVER_ANSWER_SECONDS = 10.0, 20.0  # no answer for so long: the connection is dead
# a relay with full buffers takes nothing for more than 10 s where its line carries 12 kB/s
UNACKNOWLEDGED_SECONDS = 30.0
# What a peer may have under way before it is read, without measuring (bdp_probe): gRPC would widen it to
# 16 MB, and a ping that waits behind them on a slow line is taken for one without an answer. 1 MiB still
# carries 84 Mbit/s at 100 ms there and back.
WINDOW: Options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 20))

MIN_HEARTBEAT_SECONDS, MAX_HEARTBEAT_SECONDS = 0.1, 300.0  # between two messages of either side

_PAST_PROXY = "no_grpc_proxy"

KeepaliveSeconds = Annotated[float, Field(ge=MIN_KEEPALIVE_SECONDS, le=MAX_KEEPALIVE_SECONDS)]
HeartbeatSeconds = Annotated[float, Field(ge=MIN_HEARTBEAT_SECONDS, le=MAX_HEARTBEAT_SECONDS)]


def server_keepalive(every_seconds: float) -> Options:
    """gRPC's options for who is dialed: it accepts the shortest interval that a client may have set."""
    # half the shortest: a ping that was held up comes close before the next, and the third such one
    # would end the connection
    min_interval = ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * MIN_KEEPALIVE_SECONDS / 2))
    return (*_keepalive(every_seconds, SERVER_ANSWER_SECONDS), min_interval)


def client_options(route: Route, *, keepalive_seconds: float) -> Options:
    """gRPC's options for a silo or an operator, whose channel lasts as long as its connection."""
    if route.proxy is None:
        proxy: Options = (("grpc.enable_http_proxy", 0),)
    else:
        # else gRPC reads no_proxy from the environment and dials past the proxy
        os.environ[_PAST_PROXY] = ""
        proxy = (("grpc.http_proxy", route.proxy.uri),)
    name = route.coordinator_name
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # despite its name how long an attempt may take
        ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
        # with the attempts of the channel before it, which failed, a new one would wait
        ("grpc.use_local_subchannel_pool", 1),
        *WINDOW,
        *proxy,
        *(() if name is None else (("grpc.ssl_target_name_override", name),)),
        *_keepalive(keepalive_seconds, CLIENT_ANSWER_SECONDS),
    )


def _keepalive(every_seconds: float, answer_seconds: float) -> Options:
    return (
        ("grpc.keepalive_time_ms", round(1000 * every_seconds)),
        ("grpc.http2.ping_timeout_ms", round(1000 * answer_seconds)),  # of a peer that acknowledges TCP alone
        # TCP_USER_TIMEOUT: of one that does not, or takes no more bytes
        ("grpc.keepalive_timeout_ms", round(1000 * UNACKNOWLEDGED_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # else two, and then silence
    )
