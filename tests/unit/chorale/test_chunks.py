from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from chorale.transport import chunks
from chorale.transport.chunks import Chunk
from chorale.transport.wire import CHUNK_BYTES, CHUNK_FRAME_BYTES
from chorale.v1 import federation_pb2 as pb
from crypto.errors import RemoteProtocolError

OFFSETS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
DATA = st.one_of(st.binary(), st.integers(100, 20_000).map(bytes))


def of_protobuf(chunk: pb.Chunk) -> Chunk:
    return Chunk(chunk.offset, chunk.data)


# framing


@given(OFFSETS, DATA)
def test_a_chunk_is_framed_as_protobuf_would(offset: int, data: bytes) -> None:
    message = pb.Chunk(offset=offset, data=data or b"x")
    for given_data in (message.data, memoryview(message.data)):
        assert chunks.chunk_to_wire(Chunk(offset, given_data)) == message.SerializeToString()
        uploaded = pb.UploadMessage(chunk=message).SerializeToString()
        assert chunks.upload_to_wire(Chunk(offset, given_data)) == uploaded
        if offset < 1 << 35:
            assert len(uploaded) <= len(message.data) + CHUNK_FRAME_BYTES


def test_other_messages_of_an_upload_are_protobufs_own() -> None:
    message = pb.UploadMessage(header=pb.UploadHeader(total_bytes=7))
    assert chunks.upload_to_wire(message) == message.SerializeToString()
    assert chunks.upload_from_wire(message.SerializeToString()) == message


@given(OFFSETS, DATA)
def test_a_chunk_is_read_in_place(offset: int, data: bytes) -> None:
    message = pb.Chunk(offset=offset, data=data or b"x")
    written = (message.SerializeToString(), pb.UploadMessage(chunk=message).SerializeToString())
    for chunk in (chunks.chunk_from_wire(written[0]), chunks.upload_from_wire(written[1])):
        assert chunk == of_protobuf(message)
        assert isinstance(chunk, Chunk)
        assert isinstance(chunk.data, memoryview)


# bytes of a peer


def varint(number: int) -> bytes:
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


VARINTS = st.one_of(
    st.integers(0, 2**64 - 1).map(varint),
    st.binary(max_size=11),
    st.sampled_from([b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"]),
)
TAGS = st.sampled_from([b"\x08", b"\x12", b"\x1a", b"\x0a", b"\x10"])
PIECES = st.one_of(TAGS, VARINTS, st.binary(max_size=40))


def nested(inner: bytes) -> bytes:
    return b"\x12" + varint(len(inner)) + inner


@given(st.lists(PIECES, max_size=8).map(b"".join))
@example(b"")
@example(b"\x08\x01\x12\x01x\x08\x02")  # an offset after the data
@example(b"\x12\x01x\x12\x01y")  # data twice: the last counts
@example(b"\x08\x01\x08\x02\x12\x01x")  # an offset twice
@example(b"\x12\x05x")  # shorter than it says
@example(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x12\x01x")  # an offset of more than 64 bits
@example(b"\x12" + b"\x80" * 9 + b"\x01")
@example(b"\x12\x81\x80\x80\x80\x80\x00x")  # a size of 1 in more bytes than a size may have
def test_whatever_a_peer_sends_is_the_chunk_that_protobuf_reads_or_refused(message: bytes) -> None:
    try:
        expected = of_protobuf(pb.Chunk.FromString(message))
    except DecodeError:
        with pytest.raises(DecodeError):
            chunks.chunk_from_wire(message)
    else:
        assert chunks.chunk_from_wire(message) == expected


@given(st.lists(PIECES, max_size=8).map(b"".join), st.booleans())
@example(b"\x0a\x00", False)  # a header
@example(nested(b"\x12\x01x") + nested(b"\x08\x07"), False)  # a chunk in two parts is one
@example(nested(b"\x12\x01x") + b"\x1a\x00", False)  # a chunk and an end: the last counts
@example(b"", True)  # a chunk of nothing
@example(b"\x12\x02\x12\x01x", False)  # a chunk that is longer than it says
def test_whatever_a_peer_uploads_is_what_protobuf_reads_or_refused(message: bytes, is_nested: bool) -> None:
    message = nested(message) if is_nested else message
    try:
        parsed = pb.UploadMessage.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            chunks.upload_from_wire(message)
        return
    expected = of_protobuf(parsed.chunk) if parsed.WhichOneof("kind") == "chunk" else parsed
    assert chunks.upload_from_wire(message) == expected


@pytest.mark.parametrize("size", [0, CHUNK_BYTES + 1])
def test_chunks_of_nothing_and_of_too_much_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"expected 1 to {CHUNK_BYTES} bytes, got {size}"):
        chunks.check_chunk(Chunk(0, bytes(size)))
    with pytest.raises(RemoteProtocolError, match=f"expected 1 to {CHUNK_BYTES} bytes, got {size}"):
        chunks.chunk_of(pb.Chunk(offset=0, data=bytes(size)))
    most = Chunk(0, bytes(CHUNK_BYTES))
    assert chunks.check_chunk(most) is most
    assert chunks.chunk_of(pb.Chunk(offset=7, data=b"x")) == Chunk(7, b"x")
