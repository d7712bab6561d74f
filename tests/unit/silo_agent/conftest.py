"""A gRPC server in this process, whose three methods a test writes, and hubs of silos under a coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio

from chorale.v1 import federation_pb2_grpc
from coordinator.service.hosting import OPTIONS
from silo_agent.connection.channel import FederationStub
from tests.support.agents import Hub

MakeStub = Callable[..., Any]
MakeHub = Callable[..., Hub]


@pytest_asyncio.fixture
async def make_stub() -> AsyncIterator[MakeStub]:
    """make_stub(Attend=..., Download=..., Upload=...): a stub connected to a server of these methods."""
    opened: list[Any] = []

    async def make(**methods: Any) -> FederationStub:
        servicer = type("Scripted", (federation_pb2_grpc.FederationServicer,), methods)()
        server = grpc.aio.server(options=OPTIONS)
        federation_pb2_grpc.add_FederationServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stub = FederationStub(lambda: grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        stub.open()
        opened.append((server, stub))
        return stub

    yield make
    for server, stub in opened:
        await stub.close()
        await server.stop(None)


@pytest_asyncio.fixture
async def make_hub(tmp_path: Path) -> AsyncIterator[MakeHub]:
    hubs: list[Hub] = []

    def make(**options: Any) -> Hub:
        hubs.append(Hub(tmp_path, **options))
        return hubs[-1]

    yield make
    for hub in hubs:
        await hub.close()
