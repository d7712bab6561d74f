"""Downloads and uploads over a real channel to a server that breaks off, lies or refuses."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from chorale.runtime.files import write_all
from chorale.transport.wire import CHUNK_BYTES, PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import Masker, SignedSeed
from silo_agent.connection.transfer import CHUNKS_AHEAD, Transfer
from silo_agent.metrics import SiloMetrics
from tests.support.agents import PATIENCE_SECONDS

MakeStub = Callable[..., Awaitable[Any]]

STATE = bytes(range(256)) * 10_000  # 2.4 chunks
DIGEST = hashlib.sha256(STATE).digest()
KEY = PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
LAYOUT = Layout(members=3, quantities=(Quantity(name="delta", shape=(600_000,), bound=1.0, ring_bits=32),))


def masked_vector() -> tuple[Masker, ring.Encoded, bytes]:
    """A vector of 2.3 chunks."""
    seeds = (SignedSeed(seed=b"b" * 32, sign=1),)
    masker = Masker(layout=LAYOUT, cohort_digest=b"c" * 32, seeds=seeds)
    encoded = Encoder({"delta": np.linspace(-1, 1, 600_000)}, layout=LAYOUT).encode()
    return masker, encoded, b"".join(masker.stream(encoded))


class Clockless:
    """Counts waits instead of waiting."""

    def __init__(self) -> None:
        self.waits = 0

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        await asyncio.sleep(0)


def transfer(stub: Any, clock: Clockless | None = None, **more: Any) -> Transfer:
    return Transfer(
        stub,
        metrics=SiloMetrics(),
        random=lambda: 0.0,
        sleep=(clock or Clockless()).sleep,
        **more,
    )


async def chunks_of(data: bytes, offset: int) -> Any:
    for start in range(offset, len(data), CHUNK_BYTES):
        yield pb.Chunk(offset=start, data=data[start : start + CHUNK_BYTES])


def serving(data: bytes = STATE, *, offsets: list[int] | None = None) -> Any:
    """A download that gives these bytes; `offsets` are those that it was asked for."""

    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        if offsets is not None:
            offsets.append(request.offset)
        async for chunk in chunks_of(data, request.offset):
            yield chunk

    return Download


def refusing(code: grpc.StatusCode, words: str, *, called: Callable[[], object] = lambda: None) -> Any:
    """A method that ends every call so."""

    async def refuse(self: Any, messages: Any, context: Any) -> Any:
        called()
        await context.abort(code, words)
        yield

    return refuse


async def download(carrier: Transfer, folder: Path, size_bytes: int = len(STATE)) -> Path:
    target = folder / "state.safetensors"
    await carrier.download(job_digest=b"j" * 32, digest=DIGEST, size_bytes=size_bytes, target=target)
    return target


# downloads


async def test_a_download_goes_on_where_the_line_broke(make_stub: MakeStub, tmp_path: Path) -> None:
    offsets: list[int] = []

    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        offsets.append(request.offset)
        async for chunk in chunks_of(STATE, request.offset):
            yield chunk
            if len(offsets) < 3:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    clock = Clockless()
    carrier = transfer(await make_stub(Download=Download), clock)
    path = await download(carrier, tmp_path)
    assert path.read_bytes() == STATE
    assert offsets == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert clock.waits == 2
    assert await download(carrier, tmp_path) == path
    assert len(offsets) == 3  # what is there is not fetched again


async def test_transfers_go_on_over_the_channel_that_the_control_stream_opens_next(
    make_stub: MakeStub, tmp_path: Path
) -> None:
    """gRPC ends their calls as cancelled, which must not pass for the end of the task that awaits them."""
    begun = asyncio.Event()
    offsets: list[int] = []

    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        offsets.append(request.offset)
        async for chunk in chunks_of(STATE, request.offset):
            yield chunk
            if len(offsets) == 1:
                begun.set()
                await asyncio.Event().wait()

    stub, is_open = await make_stub(Download=Download), asyncio.Event()
    carrier = Transfer(stub, metrics=SiloMetrics(), random=lambda: 0.0, sleep=lambda _: is_open.wait())
    downloading = asyncio.ensure_future(download(carrier, tmp_path))
    await begun.wait()
    while carrier.moved_bytes < CHUNK_BYTES:  # in the process, which nothing tells
        await asyncio.sleep(0)
    await stub.close()
    assert not is_open.is_set()
    stub.open()
    is_open.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await downloading).read_bytes() == STATE
    assert offsets == [0, CHUNK_BYTES]


async def test_a_download_is_written_and_hashed_beside_the_event_loop(
    make_stub: MakeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    real = hashlib.file_digest

    def noted(file: Any, data: bytes) -> None:
        threads.append(threading.current_thread())
        write_all(file, data)

    def digest(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*arguments)

    monkeypatch.setattr("silo_agent.connection.transfer.write_all", noted)
    monkeypatch.setattr(hashlib, "file_digest", digest)
    path = await download(transfer(await make_stub(Download=serving())), tmp_path)
    assert path.read_bytes() == STATE
    assert len(threads) == 1 + 3  # what was there before, and three chunks
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 5, len(STATE)])
async def test_a_download_goes_on_after_what_an_earlier_process_left(
    make_stub: MakeStub, tmp_path: Path, size: int
) -> None:
    offsets: list[int] = []
    carrier = transfer(await make_stub(Download=serving(offsets=offsets)))
    part = tmp_path / "state.part"
    part.write_bytes(STATE[:size])
    assert (await download(carrier, tmp_path)).read_bytes() == STATE
    assert offsets == [size]
    assert not part.exists()


async def test_a_part_longer_than_announced_is_thrown_away(make_stub: MakeStub, tmp_path: Path) -> None:
    carrier = transfer(await make_stub(Download=serving()))
    (tmp_path / "state.part").write_bytes(STATE + b"!")
    assert (await download(carrier, tmp_path)).read_bytes() == STATE


@pytest.mark.parametrize(
    ("served", "announced", "words"),
    [
        (STATE, len(STATE) - 1, "do not fit"),
        (STATE[:-1], len(STATE), "bytes, got"),
        (STATE[:-1] + b"!", len(STATE), "the digest is not the announced one"),
    ],
)
async def test_bytes_other_than_announced_are_refused(
    make_stub: MakeStub, tmp_path: Path, served: bytes, announced: int, words: str
) -> None:
    carrier = transfer(await make_stub(Download=serving(served)))
    with pytest.raises(RemoteProtocolError, match=words):
        await download(carrier, tmp_path, announced)
    assert not list(tmp_path.glob("*.safetensors"))


async def test_chunks_out_of_order_are_refused(make_stub: MakeStub, tmp_path: Path) -> None:
    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        yield pb.Chunk(offset=1, data=b"x")

    carrier = transfer(await make_stub(Download=Download))
    with pytest.raises(RemoteProtocolError, match="do not fit"):
        await download(carrier, tmp_path)


async def test_a_refused_download_that_never_ends_is_ended_here(make_stub: MakeStub, tmp_path: Path) -> None:
    """gRPC keeps what comes on a call that is no longer read."""
    ended = asyncio.Event()

    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        try:
            while True:
                yield pb.Chunk(offset=5, data=bytes(1000))
        finally:
            ended.set()

    carrier = transfer(await make_stub(Download=Download))
    with pytest.raises(RemoteProtocolError, match="do not fit"):
        await download(carrier, tmp_path)
    await asyncio.wait_for(ended.wait(), 20)


async def test_downloads_of_one_file_wait_for_each_other(make_stub: MakeStub, tmp_path: Path) -> None:
    """Two tasks may name the state that is being fetched."""
    offsets: list[int] = []
    carrier = transfer(await make_stub(Download=serving(offsets=offsets)))
    paths = await asyncio.gather(*(download(carrier, tmp_path) for _ in range(3)))
    assert paths[0].read_bytes() == STATE
    assert offsets == [0]
    assert not carrier._locks  # nothing is kept of files that nobody waits for


async def test_a_refused_download_is_not_tried_again(make_stub: MakeStub, tmp_path: Path) -> None:
    clock = Clockless()
    refused = refusing(grpc.StatusCode.FAILED_PRECONDITION, "not a present state")
    carrier = transfer(await make_stub(Download=refused), clock)
    with pytest.raises(RemoteProtocolError, match="FAILED_PRECONDITION: not a present state"):
        await download(carrier, tmp_path)
    assert clock.waits == 0


async def test_a_transfer_that_is_denied_is_tried_again(make_stub: MakeStub, tmp_path: Path) -> None:
    """A round lost each silo whose new certificate the roster listed before this side had read it."""
    calls = 0

    async def Download(self: Any, request: pb.DownloadRequest, context: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 3:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the roster lists another certificate")
        async for chunk in chunks_of(STATE, request.offset):
            yield chunk

    clock = Clockless()
    carrier = transfer(await make_stub(Download=Download), clock)
    assert (await download(carrier, tmp_path)).read_bytes() == STATE
    assert clock.waits == 2


# uploads


class Spool:
    """What a coordinator keeps of one upload; breaks the line after `breaks` chunks, once each."""

    def __init__(self, *breaks: int) -> None:
        self.data = bytearray()
        self.sha256 = b""
        self.breaks = list(breaks)
        self.calls = 0

    def serving(self) -> Any:
        async def Upload(servicer: Any, messages: Any, context: Any) -> Any:
            async for receipt in self._upload(messages, context):
                yield receipt

        return Upload

    async def _upload(self, messages: Any, context: Any) -> Any:
        self.calls += 1
        first = await anext(aiter(messages))
        assert first.header.total_bytes == LAYOUT.total_bytes
        yield pb.UploadReceipt(received_bytes=len(self.data), complete=bool(self.sha256))
        taken = 0
        async for message in messages:
            if message.HasField("end"):
                self.sha256 = message.end.sha256
                yield pb.UploadReceipt(received_bytes=len(self.data), complete=True)
                return
            assert message.chunk.offset == len(self.data)
            self.data += message.chunk.data
            taken += 1
            if self.breaks and taken == self.breaks[0]:
                self.breaks.pop(0)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")


async def test_an_upload_goes_on_where_the_line_broke_with_the_digest_of_the_whole(
    make_stub: MakeStub, tmp_path: Path
) -> None:
    spool = Spool(1, 1)
    masker, encoded, expected = masked_vector()
    carrier = transfer(await make_stub(Upload=spool.serving()))
    await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)
    assert bytes(spool.data) == expected
    assert spool.sha256 == hashlib.sha256(expected).digest()
    assert spool.calls == 3
    await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)  # complete already
    assert bytes(spool.data) == expected


@pytest.mark.parametrize("turns", range(1, 5))
async def test_an_upload_goes_on_where_the_channel_closed_before_it_had_begun(
    make_stub: MakeStub, tmp_path: Path, turns: int
) -> None:
    """gRPC never ends the first write of such a call: a silo that had just come back was waited for in vain.

    turns: of the event loop until the channel closes.
    """
    spool = Spool()
    masker, encoded, expected = masked_vector()
    stub = await make_stub(Upload=spool.serving())
    carrier = transfer(stub)
    uploading = asyncio.ensure_future(carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes))
    for _ in range(turns):
        await asyncio.sleep(0)
    await stub.close()
    stub.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await uploading
    assert bytes(spool.data) == expected


async def test_an_upload_of_one_stream_needs_no_digest(make_stub: MakeStub, tmp_path: Path) -> None:
    ends: list[bytes] = []
    data = bytearray()

    async def Upload(self: Any, messages: Any, context: Any) -> Any:
        yield pb.UploadReceipt()
        async for message in messages:
            data.extend(message.chunk.data)
            if message.HasField("end"):
                ends.append(message.end.sha256)
                yield pb.UploadReceipt(received_bytes=len(data), complete=True)
                return

    masker, encoded, expected = masked_vector()
    carrier = transfer(await make_stub(Upload=Upload))
    await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)
    assert bytes(data) == expected
    assert ends == [b""]


@pytest.mark.parametrize("start", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 3, 2_399_999, 2_400_000])
async def test_an_upload_goes_on_at_any_offset(make_stub: MakeStub, tmp_path: Path, start: int) -> None:
    masker, encoded, expected = masked_vector()
    spool = Spool()
    spool.data += expected[:start]
    carrier = transfer(await make_stub(Upload=spool.serving()))
    await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)
    assert bytes(spool.data) == expected
    assert spool.sha256 == hashlib.sha256(expected).digest()


class WatchedMasker:
    """Gives chunks of nothing, and remembers how many, in which threads, and whether it was ended."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.made = 0
        self.threads: set[threading.Thread] = set()
        self.is_ended = False

    def stream(self, source: Any) -> Any:
        try:
            for _ in range(self.chunks):
                self.threads.add(threading.current_thread())
                self.made += 1
                yield bytes(CHUNK_BYTES)
        finally:
            self.is_ended = True


async def test_masking_runs_in_a_thread_and_never_far_ahead_of_a_slow_reader(
    make_stub: MakeStub, tmp_path: Path
) -> None:
    masker: Any = WatchedMasker(chunks=40)
    ahead: list[int] = []

    async def Upload(self: Any, messages: Any, context: Any) -> Any:
        yield pb.UploadReceipt()
        taken = 0
        async for message in messages:
            if message.HasField("end"):
                yield pb.UploadReceipt(complete=True)
                return
            if message.HasField("chunk"):
                taken += 1
                for _ in range(20):  # every task that may run does
                    await asyncio.to_thread(lambda: None)
                ahead.append(masker.made - taken)

    carrier = transfer(await make_stub(Upload=Upload))
    await carrier.upload(KEY, masker, None, total_bytes=40 * CHUNK_BYTES)  # type: ignore[arg-type]
    assert masker.made == len(ahead) == 40
    on_the_line = 8  # what gRPC and the kernel take in on both ends, in chunks
    assert max(ahead) <= CHUNKS_AHEAD + on_the_line
    assert masker.is_ended
    assert threading.main_thread() not in masker.threads


async def test_a_cancelled_upload_ends_the_masking(make_stub: MakeStub, tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def Upload(self: Any, messages: Any, context: Any) -> Any:
        yield pb.UploadReceipt()
        async for message in messages:
            if message.HasField("chunk"):
                arrived.set()
                await asyncio.Event().wait()

    masker: Any = WatchedMasker(chunks=400)
    carrier = transfer(await make_stub(Upload=Upload))
    sending = carrier.upload(KEY, masker, None, total_bytes=400 * CHUNK_BYTES)  # type: ignore[arg-type]
    uploading = asyncio.ensure_future(sending)
    await arrived.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert masker.is_ended
    assert masker.made < 400


async def test_an_upload_that_is_refused_ends_with_the_coordinators_word(
    make_stub: MakeStub, tmp_path: Path
) -> None:
    masker, encoded, _ = masked_vector()
    refused = refusing(grpc.StatusCode.FAILED_PRECONDITION, "the stage has closed")
    carrier = transfer(await make_stub(Upload=refused))
    with pytest.raises(RemoteProtocolError, match="FAILED_PRECONDITION: the stage has closed"):
        await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)


async def test_a_coordinator_that_claims_more_bytes_than_there_are_is_refused(
    make_stub: MakeStub, tmp_path: Path
) -> None:
    async def Upload(self: Any, messages: Any, context: Any) -> Any:
        yield pb.UploadReceipt(received_bytes=LAYOUT.total_bytes + 1)
        async for _ in messages:
            pass

    masker, encoded, _ = masked_vector()
    carrier = transfer(await make_stub(Upload=Upload))
    with pytest.raises(RemoteProtocolError, match="more bytes than were sent"):
        await carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes)


async def test_a_cancelled_upload_stops_while_the_line_is_down(make_stub: MakeStub, tmp_path: Path) -> None:
    tried = asyncio.Event()
    masker, encoded, _ = masked_vector()
    down = refusing(grpc.StatusCode.UNAVAILABLE, "restarting", called=tried.set)
    carrier = transfer(await make_stub(Upload=down))
    uploading = asyncio.ensure_future(carrier.upload(KEY, masker, encoded, total_bytes=LAYOUT.total_bytes))
    await tried.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
