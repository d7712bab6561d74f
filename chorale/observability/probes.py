"""/livez, /readyz and /metrics over plain HTTP, for an orchestrator on the same network.

Kubernetes' own gRPC probes cannot do TLS. What is served holds no payload and takes no input.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedIOBase, BufferedReader, RawIOBase
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app

from chorale.observability.logs import get_logger
from chorale.runtime.machine import max_descriptors
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from typing_extensions import Buffer

REQUEST_SECONDS = 5.0  # request line and headers together; as long again for each part of the answer
MAX_CONNECTIONS = 32  # a thread each; beyond them the oldest is cut off
POLL_SECONDS = 0.1  # how soon `stop` is noticed
WARNING_SECONDS = 60.0  # between two lines that say so
RESERVED = 8  # descriptors for a request where there are no others: its own, and what metrics read

log = get_logger("observability.probes")


class ProbeServer:
    """Serves probes from a thread of its own. `port` is the real one, also where 0 was asked for.

    Raises ConfigError if the address is taken.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: CollectorRegistry,
        is_live: Callable[[], bool],
        is_ready: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        application = _application(registry, {"/livez": is_live, "/readyz": is_ready})
        try:
            self._server = make_server(
                host,
                port,
                application,
                server_class=_ServerOfIPv6 if ":" in host else _Server,
                handler_class=_QuietHandler,
            )
            self._server.monotonic = monotonic
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"metrics: cannot listen on {host}:{port}: {reason}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="probes", daemon=True
        )

    @property
    def port(self) -> int:
        return self._server.server_port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, so that a client that says nothing holds up no other; at most
    MAX_CONNECTIONS of them. The oldest gives way to a new one: a probe is never turned away by clients that
    only wait. Where the process has no descriptor left, some are reserved for a request."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # of connections at one moment: with five, the sixth waits a second to be seen
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._open: dict[int, socket.socket] = {}  # oldest first
        self._turn = threading.Lock()
        self._reserved: list[int] = []
        self._warned_at = -WARNING_SECONDS
        super().__init__(*args, **options)
        self._reserve()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return cast(tuple[Any, Any], super().get_request())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        now = self.monotonic()
        if now - self._warned_at >= WARNING_SECONDS:
            log.warning("no descriptors are left but those of probes", limit=max_descriptors())
            self._warned_at = now
        if not self._give_up():
            time.sleep(POLL_SECONDS)  # requests that are under way have them
        try:
            return cast(tuple[Any, Any], super().get_request())
        except OSError:
            self._reserve()
            raise

    def _reserve(self) -> None:
        with self._turn, suppress(OSError):
            while len(self._reserved) < RESERVED and self.fileno() >= 0:
                self._reserved.append(os.open(os.devnull, os.O_RDONLY))

    def _give_up(self) -> bool:
        with self._turn:
            given_up, self._reserved = self._reserved, []
        for each in given_up:
            os.close(each)
        return bool(given_up)

    def server_close(self) -> None:
        super().server_close()
        self._give_up()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._cut_oldest()
            self._free.acquire()  # its thread ends now, or another did before
        with self._turn:
            self._open[id(request)] = request
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread began, so none gives its place back
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        with self._turn:
            self._open.pop(id(request), None)
        self._reserve()
        self._free.release()

    def _cut_oldest(self) -> None:
        """What its thread waits for is the end of the stream."""
        with self._turn:
            oldest = next(iter(self._open.values()), None)
            if oldest is not None:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def setup(self) -> None:
        super().setup()
        incoming = _Incoming(self.connection, cast(_Server, self.server).monotonic)
        self.rfile = cast(BufferedIOBase, BufferedReader(incoming))

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; the metrics count what matters."""


class _Incoming(RawIOBase):
    """What a client sends within REQUEST_SECONDS in all: a byte now and then does not extend them."""

    def __init__(self, connection: socket.socket, monotonic: Callable[[], float]) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._ends = monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        left = self._ends - self._monotonic()
        if left <= 0:
            raise TimeoutError("probes: the request took too long")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(REQUEST_SECONDS)  # for the answer


def _application(
    registry: CollectorRegistry, checks: dict[str, Callable[[], bool]]
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            pages: Iterable[bytes] = metrics(environ, start_response)
            return pages
        if path not in checks:
            status, body = "404 Not Found", b"not found\n"
        elif checks[path]():
            status, body = "200 OK", b"ok\n"
        else:
            status, body = "503 Service Unavailable", b"not ready\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [body]

    return answer
