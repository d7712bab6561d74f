"""The channel to the coordinator: how it is dialed, and the calls on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from chorale.transport import chunks, tls
from chorale.transport.channel_options import client_options
from chorale.v1 import federation_pb2 as pb
from chorale.v1.federation_pb2_grpc import FederationStub as Generated
from crypto.identity.certificates import Anchors, Identity
from silo_agent.settings import SiloSettings

_SERVICE = "/chorale.v1.Federation"


def dial(settings: SiloSettings, identity: Identity, authority: Anchors) -> grpc.aio.Channel:
    """A channel under mutual TLS 1.3, connected when it is first used. The proxy's login is read again.

    Raises ConfigError.
    """
    route = settings.route()
    credentials = tls.channel_credentials(identity, authority)
    options = client_options(route, keepalive_seconds=settings.keepalive_seconds)
    return grpc.aio.secure_channel(route.coordinator, credentials, options=options)


class FederationStub:
    """A silo's end of chorale.v1.Federation: as generated, but that chunks are framed by
    chorale.transport.chunks. Download gives chunks.Chunk; Upload takes them as well as messages. Untyped, as
    grpc.aio's calls are.

    A channel is open while the control stream is. gRPC would dial again by itself, all silos in step, and
    fail every call until it had succeeded; so each try to connect has a channel of its own, and the agent's
    backoff says when.
    """

    def __init__(self, dial: Callable[[], grpc.aio.Channel]) -> None:
        self._dial = dial
        self._channel: grpc.aio.Channel | None = None

    async def close(self) -> None:
        """Ends the calls as CANCELLED; further ones raise grpc.aio.UsageError."""
        if self._channel is not None:
            await self._channel.close()

    def open(self) -> None:
        """A channel that connects at its first call. Raises ConfigError."""
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
