"""Global models down, masked vectors up: in chunks, resumable by offset, retried while wanted.

Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from chorale.observability.logs import get_logger
from chorale.runtime.background_io import BackgroundWriter, Prefetcher
from chorale.runtime.files import Part, write_all
from chorale.transport.chunks import Chunk, check_chunk
from chorale.transport.wire import PhaseKey, key_to_wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import Refusal, RemoteProtocolError
from crypto.masking.masks import Masker, Source
from silo_agent.connection.backoff import Backoff
from silo_agent.connection.channel import FederationStub
from silo_agent.metrics import Direction, SiloMetrics

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

# The line broke, the coordinator restarts, or its roster lists another certificate than this line shows,
# which may be read here in a moment; every other code is an answer.
RETRIED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)

CHUNKS_AHEAD = 2  # masked and hashed while one is sent
CHUNKS_BEHIND = 4  # received while as many are written and hashed: a turn of threads for each would cost more

log = get_logger("silo_agent.connection.transfer")


class Transfer:
    """Both directions over one channel. Cancelling the awaiting task stops a transfer at once.

    moved_bytes: what passed so far, of all transfers: a sign that the line and the coordinator live.
    """

    def __init__(
        self,
        stub: FederationStub,
        *,
        metrics: SiloMetrics,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.moved_bytes = 0
        self._stub = stub
        self._metrics = metrics
        self._random = random
        self._sleep = sleep
        self._locks: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def download(
        self, *, job_digest: bytes, digest: bytes, size_bytes: int, target: Path, is_kept: bool = True
    ) -> None:
        """Have the file of that digest at `target`; what is there already is not fetched again.

        is_kept: another process may read it, so it is whole on disk before it has its name.

        Raises RemoteProtocolError(code=STATE) for other or more bytes than announced.
        """
        async with self._locks[digest]:
            if not target.exists():
                part = target.with_suffix(".part")
                request = pb.DownloadRequest(job_digest=job_digest, digest=digest)
                await self._retried("download", lambda: self._fetch(request, part, size_bytes, is_kept))
                part.rename(target)
        if not self._locks[digest].locked():
            del self._locks[digest]

    async def upload(self, key: PhaseKey, masker: Masker, source: Source, *, total_bytes: int) -> None:
        """Send the masked stream, from where the coordinator has it. Raises RemoteProtocolError."""
        header = pb.UploadHeader(key=key_to_wire(key), total_bytes=total_bytes)
        await self._retried("upload", lambda: self._send(header, masker, source))

    async def _fetch(self, request: pb.DownloadRequest, path: Path, size_bytes: int, is_kept: bool) -> None:
        part = await asyncio.to_thread(_Part, path, size_bytes)
        writing = BackgroundWriter(max_waiting=CHUNKS_BEHIND)
        transferred = self._metrics.transferred.labels(direction=Direction.DOWN.value)
        request.offset = part.accepted_bytes
        call = self._stub.Download(request)
        try:
            async for chunk in call:
                if chunk is None:  # all that gRPC makes of bytes that do not parse
                    raise RemoteProtocolError("download: expected a chunk, got other bytes")
                await writing.room()
                data = part.accept(check_chunk(chunk))
                writing.put(partial(part.write, data))
                transferred.inc(len(data))
                self.moved_bytes += len(data)
            await writing.drain()
            part.check(request.digest)
            if is_kept:  # nothing looks at its bytes again, also after a crash
                await asyncio.to_thread(os.fsync, part.file.fileno())
        finally:
            call.cancel()  # before what waits: what was refused may come without end, and is kept until then
            try:
                await writing.end()
            finally:
                part.file.close()

    async def _send(self, header: pb.UploadHeader, masker: Masker, source: Source) -> None:
        transferred = self._metrics.transferred.labels(direction=Direction.UP.value)
        call = self._stub.Upload()
        try:
            await _begin(call, pb.UploadMessage(header=header))
            receipt = await _receipt(call)
            if receipt.received_bytes > header.total_bytes:
                raise RemoteProtocolError("upload: the coordinator reports more bytes than were sent")
            if not receipt.complete:
                start = receipt.received_bytes
                # a digest of the whole stream where the upload resumes; all of the masking is repeated for it
                hashed = hashlib.sha256() if start else None
                made = _chunks(masker, source, hashed, start=start)
                async with Prefetcher(made, max_ready=CHUNKS_AHEAD) as chunks:
                    async for chunk in chunks:
                        await call.write(chunk)
                        transferred.inc(len(chunk.data))
                        self.moved_bytes += len(chunk.data)
                end = pb.UploadEnd(sha256=b"" if hashed is None else hashed.digest())
                await call.write(pb.UploadMessage(end=end))
                await call.done_writing()
            while not receipt.complete:
                receipt = await _receipt(call)
        except asyncio.InvalidStateError:
            # the stream ended between two writes; its status says why
            raise await _broken(call) from None
        finally:
            call.cancel()

    async def _retried(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        backoff, before = Backoff(random=self._random), self.moved_bytes
        while True:
            try:
                await attempt()
                return log.debug("transferred", kind=what, moved_bytes=self.moved_bytes - before)
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                if error.code() not in RETRIED:
                    raise RemoteProtocolError(
                        f"{what}: the coordinator refused, {code}: {error.details()}", code=Refusal.STAGE
                    ) from None
            except (grpc.aio.UsageError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                code = "CLOSED"  # the channel, under this call or before it: the control stream has ended
            wait_seconds = backoff.next_seconds()
            log.info(f"{what} interrupted", reason=code, retry_seconds=round(wait_seconds, 1))
            await self._sleep(wait_seconds)


async def _begin(call: Any, first: pb.UploadMessage) -> None:
    """Write the first message, or raise how the call ended before that: gRPC's own `write` waits for ever
    where the channel is closed while the call has yet to begin, as when a try to connect fails."""
    writing, ended = asyncio.ensure_future(call.write(first)), asyncio.ensure_future(call.code())
    try:
        await asyncio.wait({writing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            raise await _broken(call)
        await writing
    finally:
        writing.cancel()
        ended.cancel()


async def _receipt(call: Any) -> pb.UploadReceipt:
    receipt = await call.read()
    if receipt is grpc.aio.EOF:
        raise await _broken(call)
    if not isinstance(receipt, pb.UploadReceipt):
        raise RemoteProtocolError("upload: expected a receipt, got other bytes")
    return receipt


async def _broken(call: Any) -> grpc.aio.AioRpcError:
    """The end of a stream as an error; an end without a last receipt is a broken line."""
    code = await call.code()
    status = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code
    return grpc.aio.AioRpcError(
        status, grpc.aio.Metadata(), grpc.aio.Metadata(), details=await call.details()
    )


class _Part:
    """What is here of a download, on disk and in its digest; `write` blocks and runs in a thread."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.file = path.open("a+b", buffering=0)
        if self.file.tell() > size_bytes:
            self.file.truncate(0)
        self.file.seek(0)
        self._hash = hashlib.file_digest(self.file, "sha256")
        self.accepted_bytes = self.file.tell()

    def accept(self, chunk: Chunk) -> Part:
        """The bytes, if they continue where the last ones ended. Raises RemoteProtocolError."""
        size_bytes = len(chunk.data)
        if chunk.offset != self.accepted_bytes or chunk.offset + size_bytes > self._size_bytes:
            raise RemoteProtocolError("download: chunks do not fit the announced size", code=Refusal.STATE)
        self.accepted_bytes += size_bytes
        return chunk.data

    def write(self, data: Part) -> None:
        write_all(self.file, data)
        self._hash.update(data)

    def check(self, state_digest: bytes) -> None:
        """Raises RemoteProtocolError; bytes of another digest are thrown away."""
        if self.accepted_bytes != self._size_bytes:
            expected = f"expected {self._size_bytes} bytes, got {self.accepted_bytes}"
            raise RemoteProtocolError(f"download: {expected}", code=Refusal.STATE)
        if self._hash.digest() != state_digest:
            self._path.unlink()
            raise RemoteProtocolError("download: the digest is not the announced one", code=Refusal.STATE)


def _chunks(
    masker: Masker, source: Source, hashed: HASH | None, *, start: int
) -> Generator[Chunk, None, None]:
    """What follows the first `start` bytes of the masked stream.

    All of the stream goes into `hashed`, where there is one. Blocks.
    """
    offset = 0
    for chunk in masker.stream(source):
        if hashed is not None:
            hashed.update(chunk)
        unsent = chunk[max(0, start - offset) :]
        offset += len(chunk)
        if unsent:
            yield Chunk(offset - len(unsent), unsent)
