"""The connection to the coordinator: pings while it is idle, and the proxy that it goes through.

Networks between two institutions cut idle connections and may let out nothing but HTTP. TLS stays end to
end, because the proxy is asked for a tunnel (CONNECT). Source: docs/protocol.md 8.
"""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import Field

MIN_KEEPALIVE_SECONDS, MAX_KEEPALIVE_SECONDS = 1.0, 3600.0
KEEPALIVE_SECONDS = 30.0  # below the 60 s after which the tightest NATs forget
CLIENT_ANSWER_SECONDS, SERVER_ANSWER_SECONDS = 10.0, 20.0  # no answer for so long: the connection is dead

MIN_HEARTBEAT_SECONDS, MAX_HEARTBEAT_SECONDS = 0.1, 300.0  # between two messages of either side

_PAST_PROXY = "no_grpc_proxy"
_PROXY_STATUS = re.compile(r"HTTP proxy returned response code (\d+)")  # gRPC's words

KeepaliveSeconds = Annotated[float, Field(ge=MIN_KEEPALIVE_SECONDS, le=MAX_KEEPALIVE_SECONDS)]
HeartbeatSeconds = Annotated[float, Field(ge=MIN_HEARTBEAT_SECONDS, le=MAX_HEARTBEAT_SECONDS)]
Options = tuple[tuple[str, str | int], ...]


def client_keepalive(every_seconds: float) -> Options:
    """gRPC's options for who dials."""
    return _keepalive(every_seconds, CLIENT_ANSWER_SECONDS)


def server_keepalive(every_seconds: float) -> Options:
    """gRPC's options for who is dialed: it accepts the shortest interval that a client may have set."""
    # half the shortest: a ping that was held up comes close before the next, and the third such one
    # would end the connection
    min_interval = ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * MIN_KEEPALIVE_SECONDS / 2))
    return (*_keepalive(every_seconds, SERVER_ANSWER_SECONDS), min_interval)


def through_proxy(proxy: str | None) -> Options:
    """The settings alone decide which proxy is used; http_proxy and its like in the environment do not."""
    if proxy is None:
        return (("grpc.enable_http_proxy", 0),)
    os.environ[_PAST_PROXY] = ""  # else gRPC reads no_proxy from the environment and dials past the proxy
    return (("grpc.http_proxy", f"http://{proxy}"),)


def explain_proxy(details: str, *, proxy: str | None, target: str) -> str:
    """One sentence on what gRPC's details of an unavailable peer say of the proxy; empty without a proxy."""
    if proxy is None:
        return ""
    status = _PROXY_STATUS.search(details)
    if status is None:
        return f"proxy {proxy} is unreachable, and so is the coordinator at {target}"
    if status[1] == "407":
        return f"proxy {proxy} asks for a login (HTTP status 407), and there is none to give"
    if status[1].startswith("4"):
        return f"proxy {proxy} does not allow a tunnel to {target} (HTTP status {status[1]})"
    return f"proxy {proxy} finds no way to the coordinator at {target} (HTTP status {status[1]})"


def _keepalive(every_seconds: float, answer_seconds: float) -> Options:
    return (
        ("grpc.keepalive_time_ms", round(1000 * every_seconds)),
        ("grpc.keepalive_timeout_ms", round(1000 * answer_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # else two, and then silence
    )
