"""Uploads on disk: whole, resumable, never longer than the layout says."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import threading

import pytest

from chorale.runtime.files import write_all
from coordinator.storage.spool import SessionSpool, SpoolMemory, _sha256, clear_spools
from crypto.errors import RemoteProtocolError

DATA = bytes(range(200))
DIGEST = hashlib.sha256(DATA).digest()


def session_spool(folder, budget_bytes=0):
    memory = SpoolMemory(budget_bytes)
    return SessionSpool(folder / "1-1", total_bytes=len(DATA), memory=memory)


async def upload(spool, data=DATA, digest=DIGEST):
    """All of a vector, and its end."""
    await spool.append(0, data)
    await end(spool, digest)


async def end(spool, digest=DIGEST):
    await spool.settle(digest)
    spool.finish(digest)


@pytest.fixture(params=[1000, 0], ids=["in memory", "on disk"])
def session(request, tmp_path):
    with session_spool(tmp_path, request.param) as spool:
        yield spool


@pytest.fixture
def on_disk(tmp_path):
    with session_spool(tmp_path) as spool:
        yield spool


async def test_upload_goes_on_at_the_offset_where_the_stream_broke(session):
    await session.open("a").append(0, DATA[:120])
    again = session.open("a")
    assert again.received_bytes == 120
    await again.append(120, DATA[120:])
    await end(again)
    assert again.is_complete
    assert again.data() == DATA


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
    assert spool.received_bytes == 0


async def test_short_upload_cannot_end(session):
    with pytest.raises(RemoteProtocolError, match="ended after 10 bytes, expected 200"):
        await upload(session.open("a"), DATA[:10])


async def test_upload_with_another_digest_begins_again(session):
    spool = session.open("a")
    await spool.append(0, DATA)
    await spool.settle(DIGEST)
    with pytest.raises(RemoteProtocolError, match="digest of the vector does not match"):
        spool.finish(hashlib.sha256(b"other").digest())
    assert (spool.received_bytes, spool.is_complete) == (0, False)
    await upload(spool)
    assert spool.data() == DATA


async def test_complete_upload_takes_nothing_more(session):
    spool = session.open("a")
    await upload(spool)
    with pytest.raises(RemoteProtocolError, match="already complete"):
        await spool.append(200, b"x")


async def test_spools_go_with_their_session(tmp_path):
    with session_spool(tmp_path) as spool:
        await spool.open("a").append(0, b"abc")
        assert (tmp_path / "1-1" / "a.part").exists()
    assert not (tmp_path / "1-1").exists()


async def test_uploads_beyond_the_budget_go_to_disk_until_one_gives_its_room_back(tmp_path):
    memory = SpoolMemory(2 * len(DATA) + 10)
    with (
        SessionSpool(tmp_path / "1-1", total_bytes=len(DATA), memory=memory) as first,
        SessionSpool(tmp_path / "2-1", total_bytes=len(DATA), memory=memory) as second,
    ):
        spools = [first.open("a"), second.open("a"), first.open("b"), second.open("b")]
        for spool in spools:
            await upload(spool)
            assert spool.data() == DATA
        on_disk = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.part"))]
        assert on_disk == ["1-1/b.part", "2-1/b.part"]

        spools[0].close()
        spools[0].close()  # its room is given back once
        assert memory.take(len(DATA))
        assert not memory.take(len(DATA))
    assert memory.take(len(DATA)), "the sessions' ends gave back the rest"
    assert not memory.take(len(DATA))


async def test_chunks_of_an_upload_in_memory_are_refused_once_the_session_is_over(tmp_path):
    with session_spool(tmp_path, 1000) as session:
        spool = session.open("a")
        await spool.append(0, DATA[:50])
    with pytest.raises(RemoteProtocolError, match="the stage has closed"):
        await spool.append(50, DATA[50:])
    await spool.settle(b"")


async def test_upload_that_ends_after_the_session_is_refused_before_its_digest_is_made(session):
    spool = session.open("a")
    await spool.append(0, DATA)
    spool.close()
    with pytest.raises(RemoteProtocolError, match="the stage has closed"):
        await spool.settle(DIGEST)


async def test_vector_of_one_stream_needs_no_digest(session):
    spool = session.open("a")
    spool.begin_stream()
    await upload(spool, digest=b"")
    assert spool.is_complete
    assert spool.data() == DATA


async def test_vector_of_several_streams_is_held_to_its_digest(session):
    spool = session.open("a")
    for start, stop in ((0, 50), (50, 120), (120, 200)):
        spool.begin_stream()
        await spool.append(start, DATA[start:stop])
    with pytest.raises(RemoteProtocolError, match="a vector of several streams needs its digest"):
        await end(spool, b"")
    await end(spool)
    assert spool.is_complete


async def test_upload_that_began_again_is_of_one_stream(session):
    spool = session.open("a")
    spool.begin_stream()
    await spool.append(0, DATA)
    spool.begin_stream()
    wrong = hashlib.sha256(b"other").digest()
    with pytest.raises(RemoteProtocolError, match="digest of the vector does not match"):
        await end(spool, wrong)
    await upload(spool, digest=b"")
    assert spool.data() == DATA


async def test_writing_and_hashing_leave_the_event_loop_alone(on_disk, monkeypatch):
    threads = set()

    def noted(function):
        def note(*arguments):
            threads.add(threading.current_thread())
            return function(*arguments)

        return note

    monkeypatch.setattr("coordinator.storage.spool.write_all", noted(write_all))
    monkeypatch.setattr("coordinator.storage.spool._sha256", noted(_sha256))
    spool = on_disk.open("a")
    for start in range(0, 200, 40):
        await spool.append(start, DATA[start : start + 40])
    await end(spool)
    assert threads
    assert threading.main_thread() not in threads


async def test_upload_begins_again_where_the_disk_was_full(on_disk, monkeypatch):
    spool = on_disk.open("a")
    await spool.append(0, DATA[:50])
    await spool.settle(b"")

    def full(file, data):
        file.write(data[:1])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("coordinator.storage.spool.write_all", full)
        await spool.append(50, DATA[50:80])
        with pytest.raises(OSError, match="no space left"):
            await spool.settle(b"")
    assert spool.received_bytes == 0
    await upload(spool)
    assert spool.data() == DATA


async def test_session_that_ends_while_a_chunk_is_written_leaves_neither_file_nor_thread(
    tmp_path, monkeypatch
):
    begun, may_go_on, written = threading.Event(), threading.Event(), []

    def slow(file, data):
        begun.set()
        assert may_go_on.wait(20)
        written.append(write_all(file, data))

    monkeypatch.setattr("coordinator.storage.spool.write_all", slow)
    with session_spool(tmp_path) as session:
        spool = session.open("a")
        for start in range(0, 200, 50):
            await spool.append(start, DATA[start : start + 50])
        await asyncio.to_thread(begun.wait, 20)
    assert not (tmp_path / "1-1").exists()
    with pytest.raises(RemoteProtocolError, match="the stage has closed"):
        await asyncio.gather(spool.append(200, b"x"), asyncio.to_thread(may_go_on.set))
    await spool.settle(b"")
    assert len(written) == 1, "what waited is not written any more"
    assert spool._place._file.closed


def test_no_upload_outlives_the_process(tmp_path):
    left = tmp_path / "spool" / "7-2" / "a.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"old")
    clear_spools(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []
