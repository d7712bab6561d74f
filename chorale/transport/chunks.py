"""Chunks of a transfer, framed as federation.proto says, without the copies that protobuf makes.

A message copies the bytes that it is given, once more when it is written, and again whenever it is asked for
them. Here a chunk is joined to its frame once, and read in place; bytes that are framed in any other way are
left to protobuf, which gives the same chunk or refuses. Source: docs/protocol.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chorale.runtime.files import Part
from chorale.transport.wire import CHUNK_BYTES
from chorale.v1 import federation_pb2 as pb
from crypto.errors import RemoteProtocolError

_OFFSET, _DATA, _CHUNK = b"\x08", b"\x12", b"\x12"  # tags: field number << 3 | wire type
_VARINT_BYTES: Final = 10  # of 64 bits, at most


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a transfer and where in it they start."""

    offset: int
    data: Part = field(repr=False)


def chunk_to_wire(chunk: Chunk) -> bytes:
    """The message `Chunk`."""
    return b"".join((*_head(chunk), chunk.data))


def upload_to_wire(message: pb.UploadMessage | Chunk) -> bytes:
    """The message `UploadMessage`."""
    if isinstance(message, pb.UploadMessage):
        return message.SerializeToString()
    head = b"".join(_head(message))
    return b"".join((_CHUNK, _varint(len(head) + len(message.data)), head, message.data))


def chunk_from_wire(message: bytes) -> Chunk:
    """Raises DecodeError for bytes that are no `Chunk`."""
    if (chunk := _read_chunk(message, 0)) is not None:
        return chunk
    parsed = pb.Chunk.FromString(message)
    return Chunk(parsed.offset, parsed.data)


def upload_from_wire(message: bytes) -> pb.UploadMessage | Chunk:
    """Raises DecodeError for bytes that are no `UploadMessage`."""
    if message[:1] == _CHUNK:
        size, start = _read_varint(message, 1)
        if start + size == len(message) and (chunk := _read_chunk(message, start)) is not None:
            return chunk
    parsed = pb.UploadMessage.FromString(message)
    is_chunk = parsed.WhichOneof("kind") == "chunk"
    return Chunk(parsed.chunk.offset, parsed.chunk.data) if is_chunk else parsed


def chunk_of(message: pb.Chunk) -> Chunk:
    """Raises RemoteProtocolError as `check_chunk`."""
    return check_chunk(Chunk(message.offset, message.data))


def check_chunk(chunk: Chunk) -> Chunk:
    """Raises RemoteProtocolError for no bytes and for too many."""
    if not 0 < len(chunk.data) <= CHUNK_BYTES:
        raise RemoteProtocolError(f"chunk: expected 1 to {CHUNK_BYTES} bytes, got {len(chunk.data)}")
    return chunk


def _head(chunk: Chunk) -> tuple[bytes, ...]:
    """All that stands before the data; protobuf leaves an offset of 0 away."""
    offset = (_OFFSET, _varint(chunk.offset)) if chunk.offset else ()
    return *offset, _DATA, _varint(len(chunk.data))


def _read_chunk(message: bytes, start: int) -> Chunk | None:
    """The chunk that fills the message from there on: an offset, if any, then the data, and no more."""
    offset = 0
    if message[start : start + 1] == _OFFSET:
        offset, start = _read_varint(message, start + 1)
    if message[start : start + 1] != _DATA:
        return None
    size, start = _read_varint(message, start + 1)
    return Chunk(offset, memoryview(message)[start:]) if start + size == len(message) else None


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """The number and where it ends; a place beyond the message where none is written in the shortest way."""
    number = 0
    for place, digit in enumerate(message[start : start + _VARINT_BYTES]):
        number |= (digit & 0x7F) << 7 * place
        if digit < 0x80:
            is_shortest = digit > 0 or place == 0
            return (number, start + place + 1) if is_shortest and number < 1 << 64 else (0, len(message) + 1)
    return 0, len(message) + 1
