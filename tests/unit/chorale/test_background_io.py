"""Work outside the event loop: in a thread, in order, bounded, and over when its owner is."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path

import pytest

from chorale.runtime import background_io
from chorale.runtime.background_io import BackgroundWriter, Pieces, Prefetcher

MOST = 3
LOOP = threading.main_thread()


class Source:
    """Gives the numbers below `count` and remembers what it made, where, and whether it was ended."""

    def __init__(self, count: int = 100) -> None:
        self.count = count
        self.made = 0
        self.threads: set[threading.Thread] = set()
        self.is_ended = False
        self.news = threading.Condition()

    def items(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.threads.add(threading.current_thread())
                with self.news:
                    self.made += 1
                    self.news.notify_all()
                yield number
        finally:
            self.threads.add(threading.current_thread())
            self.is_ended = True

    async def has_made(self, number: int) -> None:
        def wait() -> None:
            with self.news:
                assert self.news.wait_for(lambda: self.made >= number, timeout=20)

        await asyncio.to_thread(wait)


async def settled() -> None:
    """Whatever threads and loop still had to tell each other is told."""
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
        await asyncio.sleep(0)


# ahead


async def test_items_come_in_order_and_from_another_thread() -> None:
    source = Source()
    async with Prefetcher(source.items(), max_ready=MOST) as items:
        assert [item async for item in items] == list(range(source.count))
    assert source.threads
    assert LOOP not in source.threads


async def test_no_more_is_made_ahead_than_may_lie_ready() -> None:
    source = Source()
    async with Prefetcher(source.items(), max_ready=MOST) as items:
        for taken in range(10):
            await source.has_made(taken + 1)
            await settled()
            assert taken < source.made <= taken + MOST
            assert await anext(items) == taken


async def test_the_first_item_is_here_before_the_last_is_made() -> None:
    is_taken = threading.Event()

    def two() -> Generator[int, None, None]:
        yield 1
        assert is_taken.wait(20), "the second is made before the first was taken"
        yield 2

    async with Prefetcher(two(), max_ready=MOST) as items:
        assert await anext(items) == 1
        is_taken.set()
        assert [item async for item in items] == [2]


async def test_an_error_comes_after_what_was_made_before_it() -> None:
    def broken() -> Generator[int, None, None]:
        yield 1
        yield 2
        raise ValueError("no third")

    async with Prefetcher(broken(), max_ready=MOST) as items:
        assert [await anext(items), await anext(items)] == [1, 2]
        with pytest.raises(ValueError, match="no third"):
            await anext(items)


async def test_leaving_early_ends_the_generator_in_its_thread() -> None:
    source = Source()
    async with Prefetcher(source.items(), max_ready=MOST) as items:
        assert await anext(items) == 0
    assert source.is_ended
    assert LOOP not in source.threads
    made = source.made
    await settled()
    assert source.made == made


async def test_cancelling_waits_for_the_item_that_is_being_made() -> None:
    begun, may_go_on, is_ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Generator[int, None, None]:
        try:
            begun.set()
            assert may_go_on.wait(20)
            yield 1
        finally:
            is_ended.set()

    async def read() -> None:
        async with Prefetcher(slow(), max_ready=MOST) as items:
            await anext(items)

    reading = asyncio.create_task(read())
    await asyncio.to_thread(begun.wait, 20)
    reading.cancel()
    await settled()
    assert not reading.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert is_ended.is_set()


# reading

DATA = bytes(range(256)) * 8


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileIO]:
    path = tmp_path / "state"
    path.write_bytes(DATA)
    with FileIO(path) as opened:
        yield opened


async def test_a_file_in_memory_is_read_where_it_is_awaited(
    file: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", None)
    if background_io.READ_CACHED:
        pieces = Pieces(file, size=100)
        assert await pieces.at(3) == DATA[3:103]
        assert await pieces.at(len(DATA) - 7) == DATA[-7:]


@pytest.mark.parametrize("cannot", [BlockingIOError(), OSError(errno.EOPNOTSUPP, "not here"), None])
async def test_a_thread_waits_for_a_file_on_the_disk(
    file: FileIO, monkeypatch: pytest.MonkeyPatch, cannot: OSError | None
) -> None:
    threads = []
    preadv = os.preadv

    def cold(descriptor: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        if not flags:
            threads.append(threading.current_thread())
            return preadv(descriptor, buffers, offset)
        if cannot is None:
            return 0
        raise cannot

    monkeypatch.setattr(os, "preadv", cold)
    pieces = Pieces(file, size=100)
    assert await pieces.at(3) == DATA[3:103]
    assert await pieces.at(len(DATA)) == b""
    assert len(threads) == 2
    assert LOOP not in threads


# behind


class Sink:
    """Takes items when it may, and remembers them and where."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.gate = threading.Event()

    def take(self, item: int) -> None:
        assert self.gate.wait(20)
        if item < 0:
            raise OSError("no space left")
        self.threads.add(threading.current_thread())
        self.taken.append(item)


async def handed_in(behind: BackgroundWriter, sink: Sink, numbers: Iterable[int]) -> None:
    for number in numbers:
        await behind.room()
        behind.put(partial(sink.take, number))


async def test_steps_are_taken_in_order_and_in_another_thread() -> None:
    sink = Sink()
    sink.gate.set()
    behind = BackgroundWriter(max_waiting=MOST)
    await handed_in(behind, sink, range(50))
    await behind.drain()
    assert sink.taken == list(range(50))
    assert LOOP not in sink.threads


async def test_no_more_is_handed_in_than_may_wait() -> None:
    sink = Sink()
    behind = BackgroundWriter(max_waiting=MOST)
    put: list[int] = []

    async def hand_in() -> None:
        for number in range(20):
            await behind.room()
            behind.put(partial(sink.take, number))
            put.append(number)

    handing_in = asyncio.create_task(hand_in())
    await settled_without_threads()
    assert len(put) == 2 * MOST  # half of them are worked on
    sink.gate.set()
    await handing_in
    await behind.drain()
    assert sink.taken == list(range(20))


async def test_what_a_step_raises_is_told_once_and_what_waited_is_dropped() -> None:
    sink = Sink()
    behind = BackgroundWriter(max_waiting=MOST)
    await handed_in(behind, sink, (1, -1, 2))
    sink.gate.set()
    with pytest.raises(OSError, match="no space left"):
        await behind.drain()
    behind.put(partial(sink.take, 3))
    await behind.drain()
    assert sink.taken == [1, 3]


async def test_stopping_drops_what_waits_and_lets_go_when_no_thread_is_at_work() -> None:
    sink = Sink()
    behind = BackgroundWriter(max_waiting=MOST)
    await handed_in(behind, sink, range(MOST))
    let_go: list[list[int]] = []
    behind.stop(lambda: let_go.append(list(sink.taken)))
    await settled_without_threads()
    assert let_go == []
    sink.gate.set()
    await behind.drain()
    assert let_go == [[0]]
    behind.put(partial(sink.take, 9))
    await behind.drain()
    assert sink.taken == [0]


async def test_the_end_takes_what_was_put_and_tells_no_error() -> None:
    sink = Sink()
    sink.gate.set()
    behind = BackgroundWriter(max_waiting=MOST)
    await handed_in(behind, sink, (1, 2))
    await behind.end()
    assert sink.taken == [1, 2]
    broken = BackgroundWriter(max_waiting=MOST)
    await handed_in(broken, sink, (3, -1, 4))
    await broken.end()
    assert sink.taken == [1, 2, 3]


async def test_an_end_that_is_cancelled_again_and_again_leaves_no_thread_at_work() -> None:
    sink = Sink()
    behind = BackgroundWriter(max_waiting=MOST)
    await handed_in(behind, sink, range(2 * MOST))
    ending = asyncio.create_task(behind.end())
    for _ in range(3):
        await settled_without_threads()
        ending.cancel()
    await settled_without_threads()
    assert not ending.done()
    sink.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert sink.taken == [0]  # what a thread had begun; what waited is dropped
    await settled_without_threads()
    assert sink.taken == [0]


async def settled_without_threads() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
