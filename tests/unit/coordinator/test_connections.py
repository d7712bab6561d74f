"""Connections of peers that show no certificate: how many stay, and which."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.service import connections, hosting
from coordinator.service.connections import max_connections


def test_half_of_the_descriptors_is_left_for_others(monkeypatch):
    monkeypatch.setattr(connections, "max_descriptors", lambda: 1000)
    assert max_connections() == 500
    monkeypatch.setattr(connections, "max_descriptors", lambda: 1 << 20)
    assert max_connections() == 4 * 4096  # of each member of the largest roster


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::]:0"])
async def test_those_that_came_first_are_cut_and_a_member_never(listen, start_hub, monkeypatch):
    """Of IPv4, also where the socket that listens is of IPv6."""
    monkeypatch.setattr(hosting, "max_connections", lambda: 32)  # so that eight may be silent
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.01)
    hub = await start_hub(3, listen=listen)
    port = int(hub.host.grpc_address.rpartition(":")[2])
    hub.host.grpc_address = f"127.0.0.1:{port}"
    hub.start_silos()
    metrics, attended = hub.host.resources.metrics, hub.host.resources.attendance.connections
    while len(attended) < 3:
        await asyncio.sleep(0)
    before = dict(attended)
    silent = [await asyncio.open_connection("127.0.0.1", port)]
    while metrics.connections_without_certificate._value.get() != 1:
        await asyncio.sleep(0)
    silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

    first, _ = silent[0]
    assert await first.read() == b""
    while metrics.connections_cut._value.get() == 0:  # the look that cut it has not ended
        await asyncio.sleep(0)
    assert metrics.connections_cut._value.get() == 1
    assert metrics.connections_without_certificate._value.get() == 8
    for _, writer in silent:
        writer.close()
    while metrics.connections_without_certificate._value.get():
        await asyncio.sleep(0)
    assert metrics.connections_cut._value.get() == 1
    assert attended == before


async def test_a_member_that_takes_too_many_loses_those_that_came_last(start_hub, monkeypatch):
    """One silo with a call on each of its connections locked all others out."""
    monkeypatch.setattr(hosting, "max_connections", lambda: 32)  # four of a member
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.01)
    hub = await start_hub(3)
    hub.start_silos()
    attended, cut = hub.host.resources.attendance.connections, hub.host.resources.metrics.connections_cut
    while len(attended) < 3:
        await asyncio.sleep(0)
    before = dict(attended)
    held = hub.host._connections
    member = next(iter(held._members.values()))
    port = int(hub.host.grpc_address.rpartition(":")[2])
    own = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    # gRPC takes a connection before it admits a call on it
    while hub.host.resources.metrics.connections_without_certificate._value.get() < 8:
        await asyncio.sleep(0)
    for _, writer in own:
        host, port = writer.get_extra_info("sockname")
        held.admit(f"ipv4:{host}:{port}", member)
    while cut._value.get() < 5:  # one of the member's was there before
        await asyncio.sleep(0)
    for reader, _ in own[3:]:
        assert await reader.read() == b""
    assert attended == before
    assert cut._value.get() == 5
    for _, writer in own:
        writer.close()
