"""/livez, /readyz and /metrics over plain HTTP, for an orchestrator on the same network.

Kubernetes' own gRPC probes cannot do TLS. What is served holds no payload and takes no input.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app

from crypto.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SOCKET_SECONDS = 5.0  # a client that says nothing is cut off
POLL_SECONDS = 0.1  # how soon `stop` is noticed


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
    """A thread for each request, so that a client that says nothing holds up no other."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # of connections at one moment: with five, the sixth waits a second to be seen

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = SOCKET_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; the metrics count what matters."""


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
