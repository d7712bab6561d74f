"""The server under its pages: TLS, slow requests, many requests on a line, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from chorale.transport.tls import IdentityFiles
from crypto.errors import ChoraleError, ConfigError
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.console import own_certificate
from web.shared import serving
from web.shared.serving import CERTIFICATE, bound_socket, serve_app, tls_context

Answer = Callable[[Request], Awaitable[PlainTextResponse]]
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def _who(request: Request) -> PlainTextResponse:
    der = getattr(request.state, CERTIFICATE)
    return PlainTextResponse(f"{len(await request.body())} {'nobody' if der is None else len(der)}")


@contextlib.asynccontextmanager
async def _served(tls: ssl.SSLContext | None, answer: Answer = _who) -> AsyncIterator[int]:
    """The port of a small application, which is stopped as by SIGTERM."""
    stopping, app = asyncio.Event(), Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    listening = bound_socket("127.0.0.1:0")
    is_ready = asyncio.Event()
    task = asyncio.create_task(serve_app(app, listening, tls=tls, stopping=stopping, say=is_ready.set))
    try:
        await is_ready.wait()
        yield listening.getsockname()[1]
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        assert stopping.is_set()


@pytest.mark.parametrize(
    "parts",
    [
        [],  # nothing is ever said
        [b"GET / HTTP/1.1\r\n", b"host: x\r\n", b"a: b\r\n"],  # headers without an end
        [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n", b"1"],  # a body that does not come
        [GET, b"GET / HTTP/1.1\r\n"],  # the second request of a line
    ],
    ids=["silent", "headers", "body", "second"],
)
async def test_request_that_is_never_whole_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes]
) -> None:
    """Slow loris. What else keeps a line open is waited for much longer than the test may last."""
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.3)
    async with _served(None) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)  # apart, as one who is slow sends it
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # until the server closes
        writer.close()
        # the control: a whole request is answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live pages last for hours."""
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.05)
    waited = asyncio.Event()

    async def slow(request: Request) -> PlainTextResponse:
        asyncio.get_running_loop().call_later(0.3, waited.set)
        await waited.wait()
        return PlainTextResponse("at last")

    async with _served(None, slow) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert b"at last" in await reader.readuntil(b"at last")
        writer.close()


async def test_page_speaks_tls_13_alone_and_sees_the_members_certificate(tmp_path: Path) -> None:
    ceremony = Ceremony(folder=tmp_path / "members")
    olga = ceremony.enroll(Role.OPERATOR, "olga")
    own = IdentityFiles.model_validate(own_certificate(tmp_path))
    foreign = Ceremony(folder=tmp_path / "foreign")
    foreign.enroll(Role.OPERATOR, "olga")

    async def said(context: ssl.SSLContext) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(GET)
            return await reader.readuntil(b"\r\n\r\n") + await reader.read(20)
        finally:
            writer.close()
            with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                await writer.wait_closed()

    def context(shown: Ceremony | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=own.certificate)
        if shown is not None:
            made.load_cert_chain(*(shown.path_of(Role.OPERATOR, "olga", ending) for ending in ("crt", "key")))
        return made

    async with _served(tls_context(own, clients=ceremony.anchors.pem)) as port:
        assert (await said(context())).endswith(b"0 nobody")
        assert (await said(context(ceremony))).endswith(f"0 {len(olga.certificate_der)}".encode())
        old = context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await said(old)
        with pytest.raises((ssl.SSLError, ConnectionResetError, asyncio.IncompleteReadError)):
            await said(context(foreign))


def test_address_that_is_taken_and_files_that_are_none_are_named(tmp_path: Path) -> None:
    taken = bound_socket("127.0.0.1:0")
    try:
        with pytest.raises(ChoraleError, match=r"listen: 127.0.0.1:\d+: address already in use"):
            bound_socket(f"127.0.0.1:{taken.getsockname()[1]}")
    finally:
        taken.close()
    files = IdentityFiles(certificate=tmp_path / "none.crt", key=tmp_path / "none.key")
    with pytest.raises(ConfigError, match="none.crt, .*none.key: expected a certificate and its key"):
        tls_context(files, clients=None)


async def test_who_reads_that_it_serves_may_stop_it_at_once() -> None:
    """The console said so first and was ready to be stopped later: in between SIGTERM ended it with -15."""
    stopping = asyncio.Event()
    await serve_app(
        Starlette(),
        bound_socket("127.0.0.1:0"),
        tls=None,
        stopping=stopping,
        say=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert stopping.is_set()
