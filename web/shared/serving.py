"""One HTTP server process: TLS 1.3, bounded connections and requests, the client's certificate."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chorale.transport.route import split_address
from chorale.transport.tls import IdentityFiles
from crypto.errors import ChoraleError, ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

REQUEST_SECONDS = 10.0  # until a request is whole; a page of ours has a few hundred bytes of it
HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 8 * 1024
MAX_CONNECTIONS = 512
STOP_SECONDS = 3  # for answers under way; live pages end at once
NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME: the login page says what expired
CERTIFICATE = "client_certificate"  # in a request's state: DER, or None


class BoundedProtocol(H11Protocol):
    """Closes a connection whose request is not whole in time (slow loris), and tells the app who is there."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        der = None if connection is None else connection.getpeercert(binary_form=True)
        self.app_state = {**self.app_state, CERTIFICATE: der}
        self._deadline = self.loop.call_later(REQUEST_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # the request is whole
            self._disarm()
        elif self._deadline is None:  # the next request of a connection that is kept alive
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def tls_context(files: IdentityFiles, *, clients: bytes | None) -> ssl.SSLContext:
    """clients: PEM of the authority whose certificates browsers may show; None asks for none.

    Raises ConfigError that names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # each connection shows its certificate again
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"tls: {files.certificate}, {files.key}: expected a certificate and its key, {reason}"
        ) from None
    if clients is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= NO_CHECK_TIME
        context.load_verify_locations(cadata=clients.decode())
    return context


def bound_socket(address: str) -> socket.socket:
    """A listening address. Raises ChoraleError where it is taken."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ChoraleError(f"listen: {address}: {(error.strerror or str(error)).lower()}") from None
    listening.listen()  # browsers may connect from now on
    return listening


class _Server(uvicorn.Server):
    """Leaves signals to `serve_app`: uvicorn's own would end the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_app(
    app: ASGIApp,
    listening: socket.socket,
    *,
    tls: ssl.SSLContext | None,
    stopping: asyncio.Event,
    say: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT, which set `stopping`: live pages end then.

    say: that it serves, once it may be stopped: who read it before would end the process without a farewell.
    """
    context: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda _config, _default: tls}
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # requests may carry tokens
        proxy_headers=False,  # nobody is believed about addresses
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=STOP_SECONDS,
        **context,
    )
    server = _Server(config)

    def stop() -> None:
        stopping.set()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    say()
    await server.serve(sockets=[listening])


def static_folder() -> Path:
    return Path(__file__).parent / "static"
