"""What ends an agent once a coordinator answers: a wrong clock, another protocol version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from chorale.transport.wire import PROTOCOL_VERSION
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import federation_pb2_grpc
from crypto.identity.certificates import Role
from tests.unit.cli.conftest import Desk
from tests.unit.cli.test_user_errors import check_agent


class _Coordinator(federation_pb2_grpc.FederationServicer):
    """Answers every hello with the same welcome."""

    def __init__(self, welcome: pb.Welcome) -> None:
        self._welcome = welcome

    def Attend(self, requests: Any, context: Any) -> Iterator[pb.CoordinatorMessage]:
        next(requests)
        yield pb.CoordinatorMessage(welcome=self._welcome)
        context.abort(grpc.StatusCode.UNAVAILABLE, "done")


@contextmanager
def _answering(desk: Desk, welcome: pb.Welcome) -> Iterator[str]:
    files = [desk.ceremony.path_of(Role.COORDINATOR, "hub", ending).read_bytes() for ending in ("key", "crt")]
    credentials = grpc.ssl_server_credentials(
        [(files[0], files[1])], desk.ceremony.certificate_path.read_bytes(), require_client_auth=True
    )
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        federation_pb2_grpc.add_FederationServicer_to_server(_Coordinator(welcome), server)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@pytest.mark.parametrize(
    ("version", "hours", "code", "message"),
    [
        (PROTOCOL_VERSION, 1, 1, "clock: .* by -3[56][0-9]{2} seconds"),
        (99, 0, 4, "coordinator: expected protocol version 1, got 99"),
    ],
    ids=["clock", "version"],
)
def test_another_clock_or_version_ends_the_agent(
    desk: Desk, version: int, hours: int, code: int, message: str
) -> None:
    there = time.time() + 3600 * hours
    welcome = pb.Welcome(protocol_version=version, unix_seconds=there, heartbeat_seconds=1)
    with _answering(desk, welcome) as address:
        check_agent(["silo", "run", "--config", str(desk.silo(coordinator=address))], code, message)
