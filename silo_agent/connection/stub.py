"""A silo's end of chorale.v1.Federation: as generated, but that chunks are framed by
chorale.transport.chunks."""

from __future__ import annotations

from typing import Any

import grpc

from chorale.transport import chunks
from chorale.v1 import federation_pb2 as pb
from chorale.v1.federation_pb2_grpc import FederationStub as Generated

_SERVICE = "/chorale.v1.Federation"


class FederationStub:
    """Download gives chunks.Chunk; Upload takes them beside messages. Untyped, as grpc.aio's calls are."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
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
