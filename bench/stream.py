"""What Chorale adds to one stream under mutual TLS: its uploads and downloads, and a bare gRPC stream's.

Servers and client are processes of their own on loopback. The bare stream moves the same bytes in the same
messages and throws them away; Chorale's upload masks, hashes, checks and spools them, its download reads a
stored state and leaves a checked file at the silo. All are measured in turn; a ratio is one of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bench.federation import AUTHORITY_FILE, make_federation
from bench.parties.stream_hosts import (
    BARE,
    COORDINATOR,
    DOWN,
    JOB_DIGEST,
    STATE_FILE,
    UP,
    chunks_of,
    endpoint_file,
)
from bench.rows import Row, table
from chorale.runtime.background_io import keep_chunks
from chorale.spec.state import state_to_bytes
from chorale.transport import tls
from chorale.transport.channel_options import KEEPALIVE_SECONDS, client_options
from chorale.transport.route import Route
from chorale.transport.tls import IdentityFiles
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import LocalProtocolError
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import Masker, SignedSeed

TARGET = 0.7  # of what the bare stream reaches
SILO = "silo-000"
SILOS = 3
VALUES_PER_MEGABYTE = 250_000  # of four bytes
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Medians over the repetitions; bytes per second of what is moved, without framing."""

    megabytes: int
    repetitions: int
    masks: int
    bare_upload_bytes_per_second: float
    upload_bytes_per_second: float
    bare_download_bytes_per_second: float
    download_bytes_per_second: float

    @property
    def upload_to_bare(self) -> float:
        return self.upload_bytes_per_second / self.bare_upload_bytes_per_second

    @property
    def download_to_bare(self) -> float:
        return self.download_bytes_per_second / self.bare_download_bytes_per_second

    @property
    def rows(self) -> list[Row]:
        return [
            Row(name="upload / bare stream", target=TARGET, value=self.upload_to_bare, is_at_most=False),
            Row(name="download / bare stream", target=TARGET, value=self.download_to_bare, is_at_most=False),
        ]

    def to_json(self) -> dict[str, Any]:
        ratios = {"upload_to_bare": self.upload_to_bare, "download_to_bare": self.download_to_bare}
        return {**asdict(self), **ratios, "rows": [row.to_json() for row in self.rows]}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    tls.restrict_to_tls13()
    keep_chunks()  # as an agent's process does
    report = measure(megabytes=options.megabytes, repetitions=options.repetitions, masks=options.masks)
    print(json.dumps(report.to_json()) if options.json else table(report.rows))
    return 0


def measure(*, megabytes: int, repetitions: int, masks: int) -> Report:
    """Each of the four streams once without counting, then `repetitions` times in turn."""
    with tempfile.TemporaryDirectory(prefix="chorale-stream-") as name, ExitStack() as servers:
        folder = Path(name)
        make_federation(SILOS, now=datetime.now(UTC)).write_files(folder)
        (folder / STATE_FILE).write_bytes(state_to_bytes({"model/weights": _values(megabytes)}))
        for kind in (BARE, COORDINATOR):
            servers.enter_context(_server(kind, folder))
        rates = asyncio.run(_rates(folder, megabytes=megabytes, repetitions=repetitions, masks=masks))
    medians = {f"{stream}_bytes_per_second": statistics.median(taken) for stream, taken in rates.items()}
    return Report(megabytes=megabytes, repetitions=repetitions, masks=masks, **medians)


async def _rates(folder: Path, *, megabytes: int, repetitions: int, masks: int) -> dict[str, list[float]]:
    """Bytes per second of every repetition, by stream."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    async with _client(folder, _Payload(megabytes=megabytes, masks=masks)) as client:
        streams = (client.bare_upload, client.upload, client.bare_download, client.download)
        for repetition in range(repetitions + 1):
            for stream in streams:
                client.forget()
                started = time.perf_counter()
                moved = await stream()
                if repetition > 0:
                    rates[stream.__name__].append(moved / (time.perf_counter() - started))
    return rates


class _Payload:
    """One silo's vector: its masks and its input, and the chunks that leave in the end."""

    def __init__(self, *, megabytes: int, masks: int) -> None:
        quantity = Quantity(name="delta", shape=(megabytes * VALUES_PER_MEGABYTE,), bound=1.0, ring_bits=32)
        layout = Layout(members=SILOS, quantities=(quantity,))
        seeds = tuple(SignedSeed(seed=bytes([place]) * 32, sign=1) for place in range(masks))
        self.total_bytes = layout.total_bytes
        self.masker = Masker(layout=layout, cohort_digest=bytes(32), seeds=seeds)
        self.encoded = Encoder({"delta": _values(megabytes)}, layout=layout).encode()
        self.bytes = b"".join(self.masker.stream(self.encoded))


class _Client:
    """A silo's end of both servers. Every stream gives how many bytes it moved."""

    def __init__(self, payload: _Payload, *, state: bytes, bare: Any, transfer: Any, target: Path) -> None:
        self._payload = payload
        self._state_bytes, self._state_digest = len(state), hashlib.sha256(state).digest()
        self._bare = bare
        self._transfer = transfer
        self._target = target
        self._attempt = 0

    def forget(self) -> None:
        """So that the next download is one."""
        self._target.unlink(missing_ok=True)

    async def bare_upload(self) -> int:
        call = self._bare.stream_unary(UP, request_serializer=pb.Chunk.SerializeToString)()
        for chunk in chunks_of(self._payload.bytes):
            await call.write(chunk)
        await call.done_writing()
        return _checked(int(await call), self._payload.total_bytes)

    async def upload(self) -> int:
        self._attempt += 1
        key = PhaseKey(job_digest=JOB_DIGEST, round=1, phase="train", attempt=self._attempt)
        payload = self._payload
        await self._transfer.upload(key, payload.masker, payload.encoded, total_bytes=payload.total_bytes)
        return payload.total_bytes

    async def bare_download(self) -> int:
        moved = 0
        async for chunk in self._bare.unary_stream(DOWN, response_deserializer=pb.Chunk.FromString)(b""):
            moved += len(chunk.data)
        return _checked(moved, self._state_bytes)

    async def download(self) -> int:
        await self._transfer.download(
            job_digest=JOB_DIGEST,
            digest=self._state_digest,
            size_bytes=self._state_bytes,
            target=self._target,
        )
        return _checked(self._target.stat().st_size, self._state_bytes)


@asynccontextmanager
async def _client(folder: Path, payload: _Payload) -> AsyncIterator[_Client]:
    import grpc

    from silo_agent.connection.channel import FederationStub
    from silo_agent.connection.transfer import Transfer
    from silo_agent.metrics import SiloMetrics

    files = IdentityFiles(certificate=folder / f"{SILO}.crt", key=folder / f"{SILO}.key")
    credentials = tls.channel_credentials(
        tls.load_identity(files), tls.load_authority(folder / AUTHORITY_FILE)
    )
    route = Route(
        coordinator=_address(folder, COORDINATOR), identity=files, authority=folder / AUTHORITY_FILE
    )
    options = client_options(route, keepalive_seconds=KEEPALIVE_SECONDS)
    async with (
        grpc.aio.secure_channel(_address(folder, BARE), credentials, options=options) as bare,
        grpc.aio.secure_channel(route.coordinator, credentials, options=options) as hub,
    ):
        stub = FederationStub(lambda: hub)
        stub.open()
        transfer = Transfer(stub, metrics=SiloMetrics(), random=random.random)
        state, target = (folder / STATE_FILE).read_bytes(), folder / "downloaded.safetensors"
        yield _Client(payload, state=state, bare=bare, transfer=transfer, target=target)


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[None]:
    """A server of that kind as a process, listening."""
    command = [sys.executable, "-m", "bench.parties.stream_hosts", kind, str(folder)]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not endpoint_file(kind, folder).exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LocalProtocolError(f"stream: the {kind} server did not start")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()


def _address(folder: Path, kind: str) -> str:
    return str(json.loads(endpoint_file(kind, folder).read_text())["grpc"])


def _values(megabytes: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-1, 1, megabytes * VALUES_PER_MEGABYTE).astype(np.float32)


def _checked(moved: int, expected: int) -> int:
    if moved != expected:
        raise LocalProtocolError(f"stream: {moved} bytes were moved, expected {expected}")
    return moved


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"stream: error: {message}", file=sys.stderr)
        sys.exit(2)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m bench.stream", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=_whole(1, 2000), default=100, help="of each stream, 10^6 bytes")
    parser.add_argument("--repetitions", type=_whole(1, 100), default=15, help="medians of so many")
    parser.add_argument("--masks", type=_whole(1, 200), default=1, help="key streams added to the vector")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text}")
        return int(text)

    return parse


if __name__ == "__main__":
    sys.exit(main())
