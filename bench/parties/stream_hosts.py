"""The two servers that bench.stream measures, one a process: Chorale's coordinator and a bare gRPC stream.

The coordinator is the product's own, with its entry point's settings, its certificates and its access
rules; only its jobs are replaced by one that takes any vector and gives away any state.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from bench.federation import AUTHORITY_FILE, HUB, LOOPBACK, NAME, ROSTER_FILE
from chorale.observability import logs
from chorale.runtime.files import write_atomic
from chorale.runtime.machine import memory_limit_bytes
from chorale.spec.state import state_from_file
from chorale.transport import tls
from chorale.transport.tls import IdentityFiles
from chorale.transport.wire import CHUNK_BYTES
from chorale.v1 import federation_pb2 as pb
from coordinator.process import return_large_blocks
from coordinator.settings import CoordinatorSettings
from coordinator.storage.spool import SessionSpool, Spool, SpoolMemory

COORDINATOR, BARE = "coordinator", "bare"
UP, DOWN = "/bench.Bare/Up", "/bench.Bare/Down"
JOB_DIGEST = b"j" * 32
STATE_FILE = "state.safetensors"  # what both servers send


def run(kind: str, folder: Path) -> None:
    """Serve until SIGTERM."""
    tls.restrict_to_tls13()
    if kind == COORDINATOR:
        logs.configure()
        return_large_blocks()
        asyncio.run(_serve_coordinator(folder))
    else:
        asyncio.run(_serve_bare(folder))


def endpoint_file(kind: str, folder: Path) -> Path:
    """Where a server says that it listens, as a coordinator does."""
    return folder / kind / "endpoint.json"


def _settings(folder: Path) -> CoordinatorSettings:
    return CoordinatorSettings(
        federation=NAME,
        listen=f"{LOOPBACK}:0",
        metrics_listen=None,
        identity=IdentityFiles(certificate=folder / f"{HUB}.crt", key=folder / f"{HUB}.key"),
        authority=folder / AUTHORITY_FILE,
        roster=folder / ROSTER_FILE,
        directory=folder / COORDINATOR,
    )


async def _serve_coordinator(folder: Path) -> None:
    from coordinator.service.hosting import Host, stop_signal

    stopping = stop_signal()
    settings = _settings(folder)
    async with Host(settings) as host:
        checkpoints = host.resources.checkpoints
        digest = checkpoints.put(JOB_DIGEST, state_from_file(folder / STATE_FILE))
        any_job = _AnyJob(settings.spool_directory, state=checkpoints.path(JOB_DIGEST, digest))
        host.job_manager.runner = lambda digest: any_job  # type: ignore[assignment, method-assign, return-value]
        await stopping.wait()


class _AnyJob:
    """A job's runner and its attempt in one: a vector that is whole is thrown away, as if it were added."""

    standstill_seconds = 60.0

    def __init__(self, directory: Path, *, state: Path) -> None:
        self._directory = directory
        self._state = state
        self._spools: dict[Any, SessionSpool] = {}
        self._memory = SpoolMemory(memory_limit_bytes() // 4)  # as the settings have it
        self._key: Any = None

    def download(self, silo: str, digest: bytes) -> Path:
        return self._state

    def attempt_for(self, silo: str, key: Any) -> _AnyJob:
        self._key = key
        return self

    def open_upload(self, silo: str, total_bytes: int) -> Spool:
        if self._key not in self._spools:
            directory = self._directory / f"0-{self._key.attempt}"
            self._spools[self._key] = SessionSpool(directory, total_bytes=total_bytes, memory=self._memory)
        return self._spools[self._key].open(silo)

    def on_upload_progress(self, silo: str, *, chunk_bytes: int) -> None:
        pass

    def on_download(self, silo: str, *, sent_bytes: int) -> None:
        pass

    def finish_upload(self, silo: str, spool: Spool, sha256: bytes) -> None:
        spool.finish(sha256)
        spool.close()


async def _serve_bare(folder: Path) -> None:
    import grpc

    from coordinator.service.hosting import OPTIONS, stop_signal

    state = (folder / STATE_FILE).read_bytes()

    async def up(messages: AsyncIterator[pb.Chunk], context: Any) -> bytes:
        size = 0
        async for chunk in messages:
            size += len(chunk.data)
        return str(size).encode()

    async def down(request: bytes, context: Any) -> AsyncIterator[pb.Chunk]:
        for chunk in chunks_of(state):
            yield chunk

    handlers: dict[str, Any] = {
        "Up": grpc.stream_unary_rpc_method_handler(up, request_deserializer=pb.Chunk.FromString),
        "Down": grpc.unary_stream_rpc_method_handler(down, response_serializer=pb.Chunk.SerializeToString),
    }
    stopping = stop_signal()
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", handlers),))
    settings = _settings(folder)
    own = tls.load_identity(settings.identity), tls.load_authority(folder / AUTHORITY_FILE)
    port = server.add_secure_port(settings.listen, tls.server_credentials(lambda: own))
    await server.start()
    endpoint_file(BARE, folder).parent.mkdir()
    write_atomic(endpoint_file(BARE, folder), json.dumps({"grpc": f"{LOOPBACK}:{port}"}).encode())
    await stopping.wait()
    await server.stop(None)


def chunks_of(data: bytes) -> Iterator[pb.Chunk]:
    for offset in range(0, len(data), CHUNK_BYTES):
        yield pb.Chunk(offset=offset, data=data[offset : offset + CHUNK_BYTES])


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
