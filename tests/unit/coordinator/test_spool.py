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


def test_upload_goes_on_at_the_offset_where_the_stream_broke(session):
    session.open("a").append(0, DATA[:120])
    again = session.open("a")
    assert again.received_bytes == 120
    again.append(120, DATA[120:])
    again.finish(DIGEST)
    assert again.is_complete
    assert again.path.read_bytes() == DATA


@pytest.mark.parametrize("offset", [0, 119, 121])
def test_chunk_at_another_offset_is_refused(session, offset):
    spool = session.open("a")
    spool.append(0, DATA[:120])
    with pytest.raises(RemoteProtocolError, match=f"chunk at offset {offset}, expected 120"):
        spool.append(offset, DATA[:1])


def test_more_bytes_than_the_layout_has_are_refused_before_they_are_written(session):
    spool = session.open("a")
    with pytest.raises(RemoteProtocolError, match="201 bytes, expected 200 for this layout"):
        spool.append(0, DATA + b"x")
    assert spool.path.stat().st_size == 0


def test_short_upload_cannot_end(session):
    spool = session.open("a")
    spool.append(0, DATA[:10])
    with pytest.raises(RemoteProtocolError, match="ended after 10 bytes, expected 200"):
        spool.finish(DIGEST)


def test_upload_with_another_digest_begins_again(session):
    spool = session.open("a")
    spool.append(0, DATA)
    with pytest.raises(RemoteProtocolError, match="digest of the vector does not match"):
        spool.finish(hashlib.sha256(b"other").digest())
    assert (spool.received_bytes, spool.is_complete) == (0, False)
    spool.append(0, DATA)
    spool.finish(DIGEST)
    assert spool.path.read_bytes() == DATA


def test_complete_upload_takes_nothing_more(session):
    spool = session.open("a")
    spool.append(0, DATA)
    spool.finish(DIGEST)
    with pytest.raises(RemoteProtocolError, match="already complete"):
        spool.append(200, b"x")


def test_spools_go_with_their_session(tmp_path):
    with SessionSpool(tmp_path / "1-1", total_bytes=10) as spool:
        spool.open("a").append(0, b"abc")
        assert (tmp_path / "1-1" / "a.part").exists()
    assert not (tmp_path / "1-1").exists()


def test_no_upload_outlives_the_process(tmp_path):
    left = tmp_path / "spool" / "7-2" / "a.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"old")
    clear_spools(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []
