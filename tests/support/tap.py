"""A relay that opens the TLS of one member's connections and keeps every octet that passes, as it was sent.

It stands between a silo or operator and the coordinator with both ends' certificates, which only a test has;
neither process is changed. What is kept is what TLS carried: HTTP/2 frames, with calls, metadata and endings.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections import defaultdict
from pathlib import Path

from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.relay import HERE, Relay, Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113 3.4: what a client sends first
FRAME_HEADER_BYTES = 9
DATA, PADDED = 0x0, 0x8  # RFC 9113 6.1


class Tap(Relay):
    """Relays one member's connections; writes `<member>-<n>.up` and `.down` into a folder."""

    def __init__(
        self, ceremony: Ceremony, role: Role, name: str, *, coordinator: str, target: str, folder: Path
    ) -> None:
        host, _, port = target.rpartition(":")
        super().__init__(
            host,
            int(port),
            as_server=_context(ceremony, Role.COORDINATOR, coordinator, ssl.PROTOCOL_TLS_SERVER),
            as_client=_context(ceremony, role, name, ssl.PROTOCOL_TLS_CLIENT),
        )
        self._folder, self._name = folder, name
        self._numbers = itertools.count()

    @property
    def address(self) -> str:
        return f"{HERE}:{self.port}"

    async def _relay(self, accepted: Stream, dialed: Stream) -> None:
        kept = self._folder / f"{self._name}-{next(self._numbers)}"
        await asyncio.gather(
            _copy(accepted[0], dialed[1], kept.with_suffix(".up")),
            _copy(dialed[0], accepted[1], kept.with_suffix(".down")),
        )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: Path) -> None:
    """One direction to its end; an octet is kept before it is passed on."""
    with contextlib.suppress(OSError), kept.open("wb", buffering=0) as file:
        while data := await reader.read(1 << 16):
            file.write(data)
            writer.write(data)
            await writer.drain()
    writer.close()


def bodies(octets: bytes) -> list[bytes]:
    """The data of each HTTP/2 stream of one direction, without the frames' headers in between."""
    streams: dict[int, bytearray] = defaultdict(bytearray)
    place = len(PREFACE) if octets.startswith(PREFACE) else 0
    while place + FRAME_HEADER_BYTES <= len(octets):
        header = octets[place : place + FRAME_HEADER_BYTES]
        size, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        payload = octets[place + FRAME_HEADER_BYTES :][:size]
        if kind == DATA:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            streams[int.from_bytes(header[5:], "big")] += payload
        place += FRAME_HEADER_BYTES + size
    return [bytes(stream) for stream in streams.values()]


def _context(ceremony: Ceremony, role: Role, name: str, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ceremony.certificate_path)
    context.load_cert_chain(ceremony.path_of(role, name, "crt"), ceremony.path_of(role, name, "key"))
    context.set_alpn_protocols(["h2"])
    return context
