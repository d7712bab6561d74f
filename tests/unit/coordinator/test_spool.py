"""Uploads on disk: whole, resumable, never longer than the layout says."""

from __future__ import annotations

import hashlib

import pytest

from coordinator.spool import SessionSpool, clear_spools
from crypto.errors import RemoteProtocolError

DATA = bytes(range(200))
DIGEST = hashlib.sha256(DATA).digest()


@pytest.fixture
def session(tmp_path):
    with SessionSpool(tmp_path / "1-1", total_bytes=len(DATA)) as spool:
        yield spool


async def test_upload_goes_on_at_the_offset_where_the_stream_broke(session):
    await session.open("a").append(0, DATA[:120])
    again = session.open("a")
    assert again.received_bytes == 120
    await again.append(120, DATA[120:])
    await again.settle()
    again.finish(DIGEST)
    assert again.is_complete
    assert again.path.read_bytes() == DATA


@pytest.mark.parametrize("offset", [0, 119, 121])
async def test_chunk_at_another_offset_is_refused(session, offset):
    spool = session.open("a")
    await spool.append(0, DATA[:120])
    with pytest.raises(RemoteProtocolError, match=f"chunk at offset {offset}, expected 120"):
        await spool.append(offset, DATA[:1])


async def test_more_bytes_than_the_layout_has_are_refused_before_they_are_written(session):
    spool = session.open("a")
    with pytest.raises(RemoteProtocolError, match="201 bytes, expected 200 for this layout"):
        await spool.append(0, DATA + b"x")
    assert spool.path.stat().st_size == 0


async def test_short_upload_cannot_end(session):
    spool = session.open("a")
    await spool.append(0, DATA[:10])
    await spool.settle()
    with pytest.raises(RemoteProtocolError, match="ended after 10 bytes, expected 200"):
        spool.finish(DIGEST)


async def test_upload_with_another_digest_begins_again(session):
    spool = session.open("a")
    await spool.append(0, DATA)
    await spool.settle()
    with pytest.raises(RemoteProtocolError, match="digest of the vector does not match"):
        spool.finish(hashlib.sha256(b"other").digest())
    assert (spool.received_bytes, spool.is_complete) == (0, False)
    await spool.append(0, DATA)
    await spool.settle()
    spool.finish(DIGEST)
    assert spool.path.read_bytes() == DATA


async def test_complete_upload_takes_nothing_more(session):
    spool = session.open("a")
    await spool.append(0, DATA)
    await spool.settle()
    spool.finish(DIGEST)
    with pytest.raises(RemoteProtocolError, match="already complete"):
        await spool.append(200, b"x")


async def test_spools_go_with_their_session(tmp_path):
    with SessionSpool(tmp_path / "1-1", total_bytes=10) as spool:
        await spool.open("a").append(0, b"abc")
        assert (tmp_path / "1-1" / "a.part").exists()
    assert not (tmp_path / "1-1").exists()


def test_no_upload_outlives_the_process(tmp_path):
    left = tmp_path / "spool" / "7-2" / "a.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"old")
    clear_spools(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []
