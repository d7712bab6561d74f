from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import prometheus_client
import pytest

from chorale.observability import probes
from chorale.observability.probes import ProbeServer
from crypto.errors import ConfigError


class Checks:
    is_live = True
    is_ready = False


@pytest.fixture
def checks() -> Checks:
    return Checks()


class Clock:
    """Monotonic seconds that a test moves. asked: how often the server looked."""

    def __init__(self) -> None:
        self.seconds, self.asked = 0.0, 0

    def __call__(self) -> float:
        now = self.seconds
        self.asked += 1
        return now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(checks: Checks, clock: Clock) -> Iterator[ProbeServer]:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("chorale_test_rounds", "Rounds.", registry=registry).inc()
    server = ProbeServer(
        "127.0.0.1",
        0,
        registry=registry,
        is_live=lambda: checks.is_live,
        is_ready=lambda: checks.is_ready,
        monotonic=clock,
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


def test_headers_that_drip_in_have_one_deadline(
    server: ProbeServer, clock: Clock, get: Callable[[str], tuple[int, str]]
) -> None:
    # each byte gave the client another five seconds, and it held a thread as long as it liked
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
        slow.sendall(b"GET /livez HTTP/1.0\r\nX-Slow: ")
        wait_until(lambda: clock.asked >= 2)  # when it began, and before it waits for more
        clock.seconds += probes.REQUEST_SECONDS - 0.5
        slow.sendall(b"a")
        wait_until(lambda: clock.asked >= 3)  # still served, with half a second left
        clock.seconds += 0.5
        slow.sendall(b"a")
        assert rest_of(slow) == b""
    assert get("/livez") == (200, "ok\n")


def test_headers_that_end_in_time_are_answered_however_they_come(server: ProbeServer, clock: Clock) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
        for byte in b"GET /livez HTTP/1.0\r\n\r\n":
            slow.sendall(bytes([byte]))
            clock.seconds += probes.REQUEST_SECONDS / 100
        assert rest_of(slow).endswith(b"ok\n")


def test_the_oldest_of_too_many_connections_gives_way(
    server: ProbeServer, get: Callable[[str], tuple[int, str]]
) -> None:
    # each held a thread, without a bound
    def threads() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    with contextlib.ExitStack() as closing:
        waiting = []
        for _ in range(3 * probes.MAX_CONNECTIONS):
            waiting.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            closing.enter_context(waiting[-1])
            waiting[-1].sendall(b"GET /livez HTTP/1.0\r\n")  # and nothing more
        # one is served after them, so all were accepted
        assert get("/livez") == (200, "ok\n")
        assert threads() <= probes.MAX_CONNECTIONS
        for cut in waiting[: 2 * probes.MAX_CONNECTIONS]:
            assert rest_of(cut) == b""
        waiting[-1].sendall(b"\r\n")  # the control: a young one is still served
        assert rest_of(waiting[-1]).endswith(b"ok\n")


def rest_of(client: socket.socket) -> bytes:
    """All until the server closes; a socket's timeout of 30 s is a failure."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(4096):
            received += more
    return received


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        os.sched_yield()


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


def test_probes_answer_where_the_process_has_no_descriptor_left(
    server: ProbeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was answered, no line said why, and the thread asked for the next connection without a pause."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    asking = """
import sys, urllib.request
for page in sys.argv[2:]:
    print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{page}", timeout=30).status)
"""
    pages = ["livez", "metrics"] * 20
    client = subprocess.Popen(
        [sys.executable, "-c", f"input(){asking}", str(server.port), *pages],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with contextlib.ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert client.stdin is not None
        assert client.stdout is not None
        print(file=client.stdin, flush=True)  # and not closed, which would free one
        answered = client.stdout.read()
    client.communicate()
    assert answered.split() == ["200"] * len(pages)
    assert caplog.messages == ["no descriptors are left but those of probes"]
