"""What a round is compared with: the model down to every silo, a vector up, summed in the clear.

A bare grpc.aio program with mutual TLS 1.3, the chunks that Chorale moves, and nothing else: no masks,
no checks, no file, no log. `python -m bench.parties.plain_round serve|silo ...`, started by `bench.round`.

With `--exchanges` it is the floor of a secure round instead: the same vectors as Chorale frames and keeps
them, neither joined nor summed, and the small messages that a secure sum cannot do without, their bytes
made of nothing.

P = parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.parties.files import HOST, Party
from chorale.runtime.background_io import keep_chunks
from chorale.transport import tls
from chorale.transport.chunks import Chunk, chunk_from_wire, chunk_to_wire
from chorale.transport.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES
from chorale.v1 import federation_pb2 as pb
from crypto.identity.certificates import Anchors, Identity

SERVICE = "bench.Plain"
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How a chunk is made, written and read."""

    make: Callable[[int, memoryview], Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


PROTOBUF: Final = Framing(
    make=lambda offset, data: pb.Chunk(offset=offset, data=bytes(data)),
    write=pb.Chunk.SerializeToString,
    read=pb.Chunk.FromString,
)
BY_HAND: Final = Framing(make=Chunk, write=chunk_to_wire, read=chunk_from_wire)


class Server:
    """Round by round: every party downloads, every party uploads, the mean is added to the model.

    is_floor: vectors are moved and left at that.
    """

    def __init__(self, *, silos: int, length: int, is_floor: bool = False) -> None:
        self._silos = silos
        self._is_floor = is_floor
        self._framing = BY_HAND if is_floor else PROTOBUF
        self._model_P = np.zeros(length, np.float32)
        self._sum_P = np.zeros_like(self._model_P)
        self._arrived = self._round = 0
        self._all_silos = asyncio.Barrier(silos)

    async def download(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        """The model of the round that begins when all silos ask for it."""
        await self._all_silos.wait()
        for chunk in _chunks(self._model_P, self._framing):
            yield chunk

    async def exchange(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """An answer as long as the message, when every silo has sent its own."""
        async for message in messages:
            await self._all_silos.wait()
            yield message

    async def upload(self, chunks: AsyncIterator[Any], context: Any) -> bytes:
        async for chunk in chunks:
            if not self._is_floor:
                part_B = np.frombuffer(chunk.data, np.float32)
                block_B = self._sum_P[chunk.offset // 4 :][: part_B.size]
                np.add(block_B, part_B, out=block_B)
        self._arrived += 1
        if self._arrived == self._silos:
            if not self._is_floor:
                self._step()
            self._arrived = 0
            _tell("ended", self._round)
            self._round += 1
        return b""

    def _step(self) -> None:
        self._sum_P /= self._silos
        self._model_P += self._sum_P
        self._sum_P[:] = 0

    async def serve(self, party: Party, endpoint: Path) -> None:
        server = grpc.aio.server(options=OPTIONS)
        handlers: dict[str, Any] = {
            "Download": grpc.unary_stream_rpc_method_handler(
                self.download, response_serializer=self._framing.write
            ),
            "Exchange": grpc.stream_stream_rpc_method_handler(self.exchange),
            "Upload": grpc.stream_unary_rpc_method_handler(
                self.upload, request_deserializer=self._framing.read
            ),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        own = _own(party)
        credentials = tls.server_credentials(lambda: own)
        port = server.add_secure_port(f"{HOST}:0", credentials)
        await server.start()
        endpoint.write_text(json.dumps({"grpc": f"{HOST}:{port}"}))
        _tell("listening", 0)
        await server.wait_for_termination()


def _own(party: Party) -> tuple[Identity, Anchors]:
    files = tls.IdentityFiles(certificate=party.certificate, key=party.key)
    return tls.load_identity(files), tls.load_authority(party.authority)


async def take_part(party: Party, address: str, *, rounds: int, exchanges: int, message_bytes: int) -> None:
    """A silo: round by round the model comes, messages go to and fro, and a vector of its size goes."""
    framing = BY_HAND if exchanges else PROTOBUF
    sent_P = np.zeros(0, np.float32)
    credentials = tls.channel_credentials(*_own(party))
    async with grpc.aio.secure_channel(address, credentials, options=list(OPTIONS)) as channel:
        download: Any = channel.unary_stream(f"/{SERVICE}/Download", response_deserializer=framing.read)
        upload: Any = channel.stream_unary(f"/{SERVICE}/Upload", request_serializer=framing.write)
        line: Any = channel.stream_stream(f"/{SERVICE}/Exchange")()
        for _ in range(rounds):
            if exchanges:
                came = [len(chunk.data) async for chunk in download(b"")]
                sent_P = sent_P if sent_P.size else np.full(sum(came) // 4, 1 / 1024, np.float32)
            else:
                parts = [chunk.data async for chunk in download(b"")]
                sent_P = np.full_like(np.frombuffer(b"".join(parts), np.float32), 1 / 1024)
            for _ in range(exchanges):
                await line.write(bytes(message_bytes))
                await line.read()
            await upload(_chunks(sent_P, framing))


def _chunks(values_P: NDArray[np.float32], framing: Framing = PROTOBUF) -> Iterator[Any]:
    data = values_P.view(np.uint8).data
    for offset in range(0, len(data), CHUNK_BYTES):
        yield framing.make(offset, data[offset : offset + CHUNK_BYTES])


def _tell(event: str, round: int) -> None:
    print(json.dumps({"event": event, "round": round, "time": time.time()}), flush=True)


def main() -> None:
    """Serve, or take part as one silo; `bench.round` gives the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["serve", "silo"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--silos", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--exchanges", type=int, default=0)
    parser.add_argument("--message-bytes", type=int, default=0)
    parser.add_argument("--address", default="")
    given = parser.parse_args()
    if given.exchanges:
        keep_chunks()
    party = Party(
        certificate=given.folder / f"{given.name}.crt",
        key=given.folder / f"{given.name}.key",
        authority=given.folder / "authority.crt",
    )
    if given.part == "serve":
        server = Server(silos=given.silos, length=given.length, is_floor=given.exchanges > 0)
        asyncio.run(server.serve(party, given.folder / "plain.json"))
    else:
        silo = take_part(
            party,
            given.address,
            rounds=given.rounds,
            exchanges=given.exchanges,
            message_bytes=given.message_bytes,
        )
        asyncio.run(silo)


if __name__ == "__main__":
    main()
