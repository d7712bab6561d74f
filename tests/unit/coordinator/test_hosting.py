"""Starting and stopping: addresses, directories, what is announced."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import suppress

import pytest

from chorale.runtime.audit import AuditInUse
from coordinator.service import hosting
from coordinator.service.hosting import AddressTaken
from crypto.errors import ConfigError


async def test_port_that_is_in_use_is_one_clear_line(make_hub):
    first = make_hub()
    await first.start()
    second = make_hub(listen=first.host.grpc_address)
    with pytest.raises(AddressTaken, match=f"cannot listen on {first.host.grpc_address}: it is in use"):
        await second.start()
    del second.host


async def test_peer_that_never_shakes_hands_is_dropped(start_hub, monkeypatch):
    options = {**dict(hosting.OPTIONS), "grpc.server_handshake_timeout_ms": 200}
    assert dict(hosting.OPTIONS).keys() == options.keys()  # 20 seconds, where gRPC has two minutes
    monkeypatch.setattr(hosting, "OPTIONS", tuple(options.items()))
    hub = await start_hub()
    host, _, port = hub.host.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_connections_beyond_the_most_are_closed_at_once(start_hub, monkeypatch):
    monkeypatch.setattr(hosting, "max_connections", lambda: 2)
    hub = await start_hub()
    host, _, port = hub.host.grpc_address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    reads = {asyncio.ensure_future(reader.read()): writer for reader, writer in silent}
    done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(waiting)) == (1, 2)  # within 20 seconds, which the two have for their handshake
    with suppress(ConnectionResetError):
        assert done.pop().result() == b""
    for read, writer in reads.items():
        read.cancel()
        writer.close()


async def test_two_coordinators_never_share_a_directory(start_hub):
    hub = await start_hub()
    running = hub.host
    with pytest.raises(AuditInUse, match="another coordinator runs there"):
        await hub.start()
    hub.host = running


async def test_real_ports_are_written_where_tests_and_people_find_them(start_hub):
    hub = await start_hub(metrics_listen="127.0.0.1:0")
    endpoint = json.loads((hub.settings.directory / hosting.ENDPOINT_FILE).read_text())
    assert endpoint == {"grpc": hub.host.grpc_address, "metrics": hub.host.metrics_address}
    assert not endpoint["grpc"].endswith(":0")
    with urllib.request.urlopen(f"http://{endpoint['metrics']}/readyz", timeout=5) as reply:
        assert reply.status == 200


async def test_own_certificate_of_another_role_is_refused_at_the_start(make_hub):
    hub = make_hub()
    paths = {
        "certificate": hub.folder / "members" / "silo-silo-0.crt",
        "key": hub.folder / "members" / "silo-silo-0.key",
    }
    hub.overrides["identity"] = paths
    with pytest.raises(ConfigError, match="own certificate"):
        await hub.start()
    del hub.host
