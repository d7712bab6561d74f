"""What a round is held against: the model down to every silo, a vector up, summed in the clear.

A bare grpc.aio program with mutual TLS 1.3, the chunks that Chorale moves, and nothing else: no masks,
no checks, no file, no log. With `--exchanges` also the small messages that a secure sum cannot do without,
their bytes made of nothing. `python -m bench.plain_round serve|silo ...`, started by `bench.round`.

P = parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.round_files import HOST, Party
from chorale import tls
from chorale.files import read_limited
from chorale.v1 import federation_pb2 as pb
from chorale.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES

SERVICE = "bench.Plain"
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class Server:
    """Round by round: everybody downloads, everybody uploads, the mean is added to the model."""

    def __init__(self, *, silos: int, length: int) -> None:
        self._silos = silos
        self._model_P = np.zeros(length, np.float32)
        self._sum_P = np.zeros_like(self._model_P)
        self._arrived = self._round = 0
        self._all_silos = asyncio.Barrier(silos)

    async def download(self, request: bytes, context: Any) -> AsyncIterator[pb.Chunk]:
        """The model of the round that begins when all silos ask for it."""
        await self._all_silos.wait()
        for chunk in _chunks(self._model_P):
            yield chunk

    async def exchange(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """An answer as long as the message, when every silo has sent its own."""
        async for message in messages:
            await self._all_silos.wait()
            yield message

    async def upload(self, chunks: AsyncIterator[pb.Chunk], context: Any) -> bytes:
        async for chunk in chunks:
            part_B = np.frombuffer(chunk.data, np.float32)
            block_B = self._sum_P[chunk.offset // 4 :][: part_B.size]
            np.add(block_B, part_B, out=block_B)
        self._arrived += 1
        if self._arrived == self._silos:
            self._sum_P /= self._silos
            self._model_P += self._sum_P
            self._sum_P[:] = 0
            self._arrived = 0
            _tell("ended", self._round)
            self._round += 1
        return b""

    async def serve(self, party: Party, endpoint: Path) -> None:
        server = grpc.aio.server(options=OPTIONS)
        handlers: dict[str, Any] = {
            "Download": grpc.unary_stream_rpc_method_handler(
                self.download, response_serializer=pb.Chunk.SerializeToString
            ),
            "Exchange": grpc.stream_stream_rpc_method_handler(self.exchange),
            "Upload": grpc.stream_unary_rpc_method_handler(
                self.upload, request_deserializer=pb.Chunk.FromString
            ),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        credentials = tls.server_credentials(party, read_limited(party.authority, tls.MAX_PEM_BYTES))
        port = server.add_secure_port(f"{HOST}:0", credentials)
        await server.start()
        endpoint.write_text(json.dumps({"grpc": f"{HOST}:{port}"}))
        _tell("listening", 0)
        await server.wait_for_termination()


async def take_part(party: Party, address: str, *, rounds: int, exchanges: int, message_bytes: int) -> None:
    """A silo: round by round the model comes, messages go to and fro, and a vector of its size goes."""
    credentials = tls.channel_credentials(party, read_limited(party.authority, tls.MAX_PEM_BYTES))
    async with grpc.aio.secure_channel(address, credentials, options=list(OPTIONS)) as channel:
        download: Any = channel.unary_stream(
            f"/{SERVICE}/Download", response_deserializer=pb.Chunk.FromString
        )
        upload: Any = channel.stream_unary(
            f"/{SERVICE}/Upload", request_serializer=pb.Chunk.SerializeToString
        )
        line: Any = channel.stream_stream(f"/{SERVICE}/Exchange")()
        for _ in range(rounds):
            parts = [chunk.data async for chunk in download(b"")]
            model_P = np.frombuffer(b"".join(parts), np.float32)
            for _ in range(exchanges):
                await line.write(bytes(message_bytes))
                await line.read()
            await upload(_chunks(np.full_like(model_P, 1 / 1024)))


def _chunks(values_P: NDArray[np.float32]) -> Iterator[pb.Chunk]:
    data = values_P.view(np.uint8).data
    for offset in range(0, len(data), CHUNK_BYTES):
        yield pb.Chunk(offset=offset, data=bytes(data[offset : offset + CHUNK_BYTES]))


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
    party = Party(
        certificate=given.folder / f"{given.name}.crt",
        key=given.folder / f"{given.name}.key",
        authority=given.folder / "authority.crt",
    )
    if given.part == "serve":
        server = Server(silos=given.silos, length=given.length)
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
