"""Global models down, masked vectors up: in chunks, resumable by offset, retried while wanted.

Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from chorale.logs import get_logger
from chorale.state import digest_of_file
from chorale.v1 import federation_pb2 as pb
from chorale.v1.federation_pb2_grpc import FederationStub
from chorale.wire import PhaseKey, chunk_from_wire, key_to_wire
from crypto.errors import Refusal, RemoteProtocolError
from crypto.masking import Masker
from crypto.ring import Encoded
from silo_agent.backoff import Backoff
from silo_agent.metrics import Direction, SiloMetrics

# The line broke or the coordinator restarts; every other code is an answer.
RETRIED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)

log = get_logger("silo_agent.transfer")


class Transfer:
    """Both directions over one channel. Cancelling the awaiting task stops a transfer at once."""

    def __init__(
        self,
        stub: FederationStub,
        *,
        cache: Path,
        metrics: SiloMetrics,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stub: Any = stub  # the generated stub knows the synchronous calls only
        self._cache = cache
        self._metrics = metrics
        self._random = random
        self._sleep = sleep
        self._locks: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def download(self, *, job_digest: bytes, state_digest: bytes, size_bytes: int) -> Path:
        """The file of that digest, from the cache where it is there already.

        Raises RemoteProtocolError(code=STATE) for other or more bytes than announced.
        """
        target = self._cache / f"{state_digest.hex()}.safetensors"
        async with self._locks[state_digest]:
            if not target.exists():
                part = target.with_suffix(".part")
                request = pb.DownloadRequest(job_digest=job_digest, state_digest=state_digest)
                await self._retried("download", lambda: self._fetch(request, part, size_bytes))
                await asyncio.to_thread(_check_digest, part, state_digest)
                part.rename(target)
        return target

    def forget(self, *, keep: frozenset[bytes]) -> None:
        """Delete cached global states except those."""
        kept = {digest.hex() for digest in keep}
        for path in self._cache.iterdir():
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    async def upload(self, key: PhaseKey, masker: Masker, encoded: Encoded, *, total_bytes: int) -> None:
        """Send the masked stream, from where the coordinator has it. Raises RemoteProtocolError."""
        header = pb.UploadHeader(key=key_to_wire(key), total_bytes=total_bytes)
        await self._retried("upload", lambda: self._send(header, masker, encoded))

    async def _fetch(self, request: pb.DownloadRequest, part: Path, size_bytes: int) -> None:
        have = part.stat().st_size if part.exists() else 0
        if have > size_bytes:
            part.unlink()
            have = 0
        request.offset = have
        with part.open("ab") as file:
            async for chunk in self._stub.Download(request):
                if chunk is None:  # all that gRPC makes of bytes that do not parse
                    raise RemoteProtocolError("download: bytes that are no chunk")
                offset, data = chunk_from_wire(chunk)
                if offset != have or have + len(data) > size_bytes:
                    raise _odd_state("chunks do not fit the announced size")
                file.write(data)
                have += len(data)
                self._metrics.transferred.labels(direction=Direction.DOWN.value).inc(len(data))
        if have != size_bytes:
            raise _odd_state(f"expected {size_bytes} bytes, got {have}")

    async def _send(self, header: pb.UploadHeader, masker: Masker, encoded: Encoded) -> None:
        call = self._stub.Upload()
        try:
            await call.write(pb.UploadMessage(header=header))
            receipt = await _receipt(call)
            if not receipt.complete:
                sha256 = await self._send_chunks(call, masker.stream(encoded), start=receipt.received_bytes)
                await call.write(pb.UploadMessage(end=pb.UploadEnd(sha256=sha256)))
                await call.done_writing()
            while not receipt.complete:
                receipt = await _receipt(call)
        except asyncio.InvalidStateError:
            # the stream ended between two writes; its status says why
            raise await _broken(call) from None
        finally:
            call.cancel()

    async def _send_chunks(self, call: Any, stream: Iterator[bytes], *, start: int) -> bytes:
        """Repeats the masking from the beginning, because the digest covers all of the stream."""
        hashed, offset = hashlib.sha256(), 0
        while chunk := await asyncio.to_thread(next, stream, b""):
            hashed.update(chunk)
            unsent = chunk[max(0, start - offset) :]
            if unsent:
                place = offset + len(chunk) - len(unsent)
                await call.write(pb.UploadMessage(chunk=pb.Chunk(offset=place, data=unsent)))
                self._metrics.transferred.labels(direction=Direction.UP.value).inc(len(unsent))
            offset += len(chunk)
        if start > offset:
            raise RemoteProtocolError("upload: the coordinator has more bytes than there are")
        return hashed.digest()

    async def _retried(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(random=self._random)
        while True:
            try:
                return await attempt()
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRIED:
                    raise _refused(what, error) from None
                wait_seconds = backoff.next_seconds()
                log.info(
                    f"{what} interrupted", reason=error.code().name, retry_seconds=round(wait_seconds, 1)
                )
            await self._sleep(wait_seconds)


async def _receipt(call: Any) -> pb.UploadReceipt:
    receipt = await call.read()
    if receipt is grpc.aio.EOF:
        raise await _broken(call)
    if not isinstance(receipt, pb.UploadReceipt):
        raise RemoteProtocolError("upload: bytes that are no receipt")
    return receipt


async def _broken(call: Any) -> grpc.aio.AioRpcError:
    """The end of a stream as an error; an end without a last receipt is a broken line."""
    code = await call.code()
    status = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code
    return grpc.aio.AioRpcError(
        status, grpc.aio.Metadata(), grpc.aio.Metadata(), details=await call.details()
    )


def _check_digest(part: Path, state_digest: bytes) -> None:
    if digest_of_file(part) != state_digest:
        part.unlink()
        raise _odd_state("the digest is another than announced")


def _odd_state(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"download: {message}", code=Refusal.STATE)


def _refused(what: str, error: grpc.aio.AioRpcError) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{what}: the coordinator refused, {error.code().name}: {error.details()}", code=Refusal.STAGE
    )
