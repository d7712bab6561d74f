"""The probe of a line takes no byte of a proxy for the coordinator's, and asks nobody for a password."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cryptography.hazmat.primitives import serialization

from chorale.transport.line_probe import MAX_PROXY_ANSWER_BYTES, Trouble, probe
from chorale.transport.route import Proxy, Route
from chorale.transport.tls import IdentityFiles
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.rogue import files

HERE = "127.0.0.1"
OPENED = b"HTTP/1.1 200 OK\r\n\r\n"


Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server, whose connections are over when it is left."""
    tasks: list[asyncio.Task[Any]] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            with suppress(OSError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(one, HERE, 0, ssl=context) as server:
        yield int(server.sockets[0].getsockname()[1])
        await asyncio.gather(*tasks)


def other_coordinator(own: IdentityFiles, authority: Path) -> AbstractAsyncContextManager[int]:
    """It refuses the certificate of every silo, after the silo's handshake has ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    return serving(read, context)


def proxy_to(port: int, answer: bytes) -> AbstractAsyncContextManager[int]:
    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        far_reader, far_writer = await asyncio.open_connection(HERE, port)
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    return serving(serve)


@pytest.mark.parametrize(
    ("answer", "trouble", "sentence"),
    [
        (OPENED, Trouble.REFUSED, "refused this certificate"),
        (OPENED + b"x", Trouble.PROXY, "sent bytes of its own into the tunnel to"),
        (OPENED + b"x" * MAX_PROXY_ANSWER_BYTES, Trouble.PROXY, "is unreachable"),
        (OPENED[:-4].ljust(MAX_PROXY_ANSWER_BYTES, b"x"), Trouble.PROXY, "is unreachable"),
    ],
    ids=["alone", "a byte behind it", "many bytes behind it", "without an end"],
)
async def test_bytes_of_a_proxy_are_not_taken_for_the_coordinators(
    tmp_path: Path, answer: bytes, trouble: Trouble, sentence: str
) -> None:
    """One byte behind the answer said that a coordinator was ready that refuses this certificate."""
    ceremony, other = Ceremony(folder=tmp_path / "own"), Ceremony(folder=tmp_path / "other")
    ceremony.enroll(Role.COORDINATOR, "hub")
    ceremony.enroll(Role.SILO, "clinic-a")
    hub = files(ceremony, Role.COORDINATOR, "hub")
    async with (
        other_coordinator(hub, other.certificate_path) as server,
        proxy_to(server, answer) as proxy,
    ):
        route = Route(
            coordinator=f"{HERE}:{server}",
            identity=files(ceremony, Role.SILO, "clinic-a"),
            authority=ceremony.certificate_path,
            proxy=Proxy(address=f"{HERE}:{proxy}", login=None),
        )
        found = await probe(route, seconds=5)
    assert (found.trouble, sentence in str(found)) == (trouble, True), str(found)


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_an_encrypted_key_is_told_and_no_password_is_asked_for(
    tmp_path: Path, is_encrypted: bool
) -> None:
    """OpenSSL asked the terminal for the password, and the agent stood still."""
    ceremony = Ceremony(folder=tmp_path)
    member = ceremony.enroll(Role.SILO, "clinic-a")
    own = files(ceremony, Role.SILO, "clinic-a")
    route = Route(coordinator=f"{HERE}:1", identity=own, authority=ceremony.certificate_path)
    if not is_encrypted:
        assert (await probe(route, seconds=5)).trouble is Trouble.UNREACHABLE
        return
    locked = serialization.BestAvailableEncryption(b"word")
    own.key.write_bytes(
        member.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(ConfigError, match=r"\.key: encrypted, expected an unencrypted PEM private key$"):
        await probe(route, seconds=5)
