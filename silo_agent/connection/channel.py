"""The channel to the coordinator: how it is dialed, and the calls on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from chorale.transport import channel_options, chunks, tls, wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1.federation_pb2_grpc import FederationStub as Generated
from crypto.identity.certificates import Anchors, Identity
from silo_agent.settings import SiloSettings

# TCP, TLS and HTTP/2 take three round trips, and a proxy's tunnel one more: lines of 800 ms connect in 3 s
CONNECT_SECONDS = 10.0

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    # The agent's own backoff says when to call again. After a failed attempt gRPC connects again by itself,
    # and until it has, calls fail at once: so it waits no more than about a second.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # despite its name how long an attempt may take, and no lower bound of the wait between two
    ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
    ("grpc.dns_enable_srv_queries", 0),
)

_SERVICE = "/chorale.v1.Federation"


def dial(settings: SiloSettings, identity: Identity, authority: Anchors) -> grpc.aio.Channel:
    """A channel under mutual TLS 1.3, connected when it is first used."""
    credentials = tls.channel_credentials(identity, authority)
    options: list[tuple[str, Any]] = [
        *CHANNEL_OPTIONS,
        *channel_options.client_keepalive(settings.keepalive_seconds),
        *channel_options.through_proxy(settings.proxy),
    ]
    if settings.coordinator_name is not None:
        options.append(("grpc.ssl_target_name_override", settings.coordinator_name))
    return grpc.aio.secure_channel(settings.coordinator, credentials, options=options)


class FederationStub:
    """A silo's end of chorale.v1.Federation: as generated, but that chunks are framed by
    chorale.transport.chunks. Download gives chunks.Chunk; Upload takes them as well as messages. Untyped, as
    grpc.aio's calls are.

    Each try to connect takes another channel: a channel shows the certificate that it was made with.
    """

    def __init__(self, dial: Callable[[], grpc.aio.Channel]) -> None:
        self._dial = dial
        self._open()

    async def redial(self) -> None:
        """Leave the channel, which ends the calls on it as CANCELLED, for a new one. Raises ConfigError."""
        await self.close()
        self._open()

    async def close(self) -> None:
        await self._channel.close()

    def _open(self) -> None:
        self._channel = channel = self._dial()
        self.Attend: Any = Generated(channel).Attend
        self.Download: Any = channel.unary_stream(
            f"{_SERVICE}/Download",
            request_serializer=pb.DownloadRequest.SerializeToString,
            response_deserializer=chunks.chunk_from_wire,
        )
        self.Upload: Any = channel.stream_stream(
            f"{_SERVICE}/Upload",
            request_serializer=chunks.upload_to_wire,
            response_deserializer=pb.UploadReceipt.FromString,
        )
