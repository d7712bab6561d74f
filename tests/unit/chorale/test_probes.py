from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator

import prometheus_client
import pytest

from chorale.observability.probes import ProbeServer
from crypto.errors import ConfigError


class Checks:
    is_live = True
    is_ready = False


@pytest.fixture
def checks() -> Checks:
    return Checks()


@pytest.fixture
def server(checks: Checks) -> Iterator[ProbeServer]:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("chorale_test_rounds", "Rounds.", registry=registry).inc()
    server = ProbeServer(
        "127.0.0.1",
        0,
        registry=registry,
        is_live=lambda: checks.is_live,
        is_ready=lambda: checks.is_ready,
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def get(server: ProbeServer) -> Callable[[str], tuple[int, str]]:
    def ask(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    return ask


def test_probes_follow_what_the_process_says(checks: Checks, get: Callable[[str], tuple[int, str]]) -> None:
    assert get("/livez") == (200, "ok\n")
    assert get("/readyz") == (503, "not ready\n")
    checks.is_live, checks.is_ready = False, True
    assert get("/livez")[0] == 503
    assert get("/readyz") == (200, "ok\n")


def test_metrics_hold_no_created_series(get: Callable[[str], tuple[int, str]]) -> None:
    status, body = get("/metrics")
    assert status == 200
    assert "chorale_test_rounds_total 1.0" in body
    assert "_created" not in body


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/livez/"])
def test_other_paths_are_not_found(get: Callable[[str], tuple[int, str]], path: str) -> None:
    assert get(path) == (404, "not found\n")


def test_a_taken_port_is_named(server: ProbeServer) -> None:
    with pytest.raises(
        ConfigError, match=f"metrics: cannot listen on 127.0.0.1:{server.port}: address already"
    ):
        ProbeServer(
            "127.0.0.1",
            server.port,
            registry=prometheus_client.CollectorRegistry(),
            is_live=lambda: True,
            is_ready=lambda: True,
        )


def test_a_client_that_says_nothing_holds_up_nobody(
    server: ProbeServer, get: Callable[[str], tuple[int, str]]
) -> None:
    # one request at a time let any open connection fail the liveness probe
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
        assert get("/livez") == (200, "ok\n")
        assert silent.getpeername()[1] == server.port


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_served() -> None:
    server = ProbeServer(
        "::1",
        0,
        registry=prometheus_client.CollectorRegistry(),
        is_live=lambda: True,
        is_ready=lambda: True,
    )
    server.start()
    with contextlib.closing(http.client.HTTPConnection("::1", server.port, timeout=30)) as connection:
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
    server.stop()


def test_a_stopped_server_frees_its_port(server: ProbeServer) -> None:
    server.stop()
    with pytest.raises(ConnectionRefusedError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=30).connect()
