"""What systemd reads from its socket: datagrams of a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chorale.runtime.service_manager import notify, service_notifications


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The end that systemd listens on."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@chorale-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield listening


async def test_service_is_ready_while_it_serves_and_stopping_after(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    async with service_notifications():
        assert manager.recv(64) == b"READY=1"
        await asyncio.sleep(0)
    assert manager.recv(64) == b"STOPPING=1"


async def test_event_loop_reports_again_and_again_where_there_is_a_watchdog(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "4000")
    async with service_notifications():
        said = [await asyncio.to_thread(manager.recv, 64) for _ in range(3)]
    assert said == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


async def test_loop_that_hangs_reports_nothing(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that reported in its place would hide the hang."""
    monkeypatch.setenv("WATCHDOG_USEC", "4000")
    async with service_notifications():
        manager.recv(64)
        await asyncio.to_thread(manager.recv, 64)
        _take_all(manager)  # what was sent before the loop came to stand, here
        manager.settimeout(0.1)
        with pytest.raises(TimeoutError):
            manager.recv(64)


def _take_all(manager: socket.socket) -> None:
    manager.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            manager.recv(64)


def test_nothing_is_sent_without_a_manager_and_one_that_is_gone_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
