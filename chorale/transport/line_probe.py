"""Why a connection to the coordinator failed: the same way once more, step by step, by a TLS of our own.

gRPC tells a failed handshake in words that are those of a refused certificate as well as of a line that was
cut. OpenSSL says which check of a certificate failed: distrust is told only where one was read and refused.
Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from enum import StrEnum

from chorale.runtime.files import read_limited
from chorale.transport.route import Proxy, Route, split_address
from chorale.transport.tls import MAX_PEM_BYTES
from crypto.errors import ChoraleError, ConfigError

PROBE_SECONDS = 10.0  # four round trips of 1.6 s and a stall of 3 s
MAX_PROXY_ANSWER_BYTES = 16 * 1024
# what a client of HTTP/2 begins with: the preface and empty settings (RFC 9113, 3.4)
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Trouble(StrEnum):
    """What was in the way."""

    UNKNOWN_HOST = "unknown-host"
    UNREACHABLE = "unreachable"
    NO_ANSWER = "no-answer"
    CUT = "cut"
    NO_TLS = "no-tls"
    OTHER_AUTHORITY = "other-authority"
    OTHER_HOST = "other-host"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    REFUSED = "refused"
    PROXY = "proxy"
    PROXY_LOGIN = "proxy-login"
    NONE = "none"

    @property
    def is_distrust(self) -> bool:
        """The coordinator's certificate was read and refused."""
        return self in (Trouble.OTHER_AUTHORITY, Trouble.OTHER_HOST, Trouble.EXPIRED, Trouble.NOT_YET_VALID)


# what OpenSSL's X509_V_ERR_* say of a certificate that was read; every other code is one of its chain
FOREIGN = Trouble.OTHER_AUTHORITY, "is not the coordinator's: another authority signed it"
VERIFY_ERRORS = {
    9: (Trouble.NOT_YET_VALID, "is not valid yet, by the clock here"),
    10: (Trouble.EXPIRED, "has expired"),
    26: (Trouble.OTHER_HOST, "is not the coordinator's: it is not one for servers"),
    62: (Trouble.OTHER_HOST, "is not the coordinator's: it is for another host than {name}"),
    64: (Trouble.OTHER_HOST, "is not the coordinator's: it is for another host than {name}"),
}


class LineFailed(ChoraleError):
    """There is no connection to the coordinator; one sentence on why."""

    def __init__(self, trouble: Trouble, sentence: str) -> None:
        super().__init__(sentence)
        self.trouble = trouble


async def probe(route: Route, *, seconds: float = PROBE_SECONDS) -> LineFailed:
    """Connect as gRPC does, and leave. Raises ConfigError for files of one's own that cannot be read.

    Security: nothing but a handshake is sent, and what comes is never shown.
    """
    context = _context(route)
    try:
        async with asyncio.timeout(seconds):
            await _connect(route, context)
    except TimeoutError:
        by = "" if route.proxy is None else f" through proxy {route.proxy.address}"
        message = f"the coordinator at {route.coordinator} did not answer{by} within {seconds:g} seconds"
        return LineFailed(Trouble.NO_ANSWER, message)
    except LineFailed as finding:
        return finding
    return LineFailed(
        Trouble.NONE, f"the coordinator at {route.coordinator} was not ready a moment ago, and is now"
    )


async def _connect(route: Route, context: ssl.SSLContext) -> None:
    """Until the coordinator has accepted this side's certificate. Raises LineFailed."""
    reader, writer = await (_dial(route) if route.proxy is None else _tunnel(route, route.proxy))
    try:
        await _shake_hands(route, context, writer)
        writer.write(HTTP2_PREFACE)
        # in TLS 1.3 a client's handshake ends before the server has looked at its certificate
        if not await reader.read(1):
            raise ConnectionResetError
    except OSError as error:
        has_alert = isinstance(error, ssl.SSLError) and "_ALERT_" in (error.reason or "")
        message = f"coordinator at {route.coordinator} refused this certificate"
        raise LineFailed(Trouble.REFUSED, message if has_alert else f"{message} or is restarting") from None
    finally:
        writer.transport.abort()


async def _dial(route: Route) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(*route.host_and_port)
    except socket.gaierror as error:
        message = f"no address is known for {route.host_and_port[0]}, the coordinator's host name"
        raise LineFailed(Trouble.UNKNOWN_HOST, message) from error
    except OSError as error:
        message = f"coordinator is unreachable at {route.coordinator}"
        raise LineFailed(Trouble.UNREACHABLE, message) from error


async def _tunnel(route: Route, proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Through the proxy. Raises LineFailed."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(*split_address(proxy.address))
        writer.write(_connect_request(route, proxy))
        answer, rest = await _read_answer(reader)
    except socket.gaierror as error:
        message = f"no address is known for {split_address(proxy.address)[0]}, the proxy's host name"
        raise LineFailed(Trouble.UNKNOWN_HOST, message) from error
    except (OSError, asyncio.IncompleteReadError):
        if writer is not None:
            writer.transport.abort()
        message = f"proxy {proxy.address} is unreachable, and so is the coordinator at {route.coordinator}"
        raise LineFailed(Trouble.PROXY, message) from None
    refused = _refusal(answer, route, proxy)
    if refused is None and rest:
        message = f"proxy {proxy.address} sent bytes of its own into the tunnel to {route.coordinator}"
        refused = LineFailed(Trouble.PROXY, message)
    if refused is not None:
        writer.transport.abort()
        raise refused
    return reader, writer


async def _read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of a proxy's answer, and all that came with it.

    Security: nothing stays in the reader, where it would be taken for the coordinator's after the handshake.
    """
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = await reader.read(MAX_PROXY_ANSWER_BYTES - len(answer))
        answer += more
        # a read of fewer bytes than were asked for has emptied the reader
        if not more or len(answer) == MAX_PROXY_ANSWER_BYTES:
            raise asyncio.IncompleteReadError(answer, None)
    head, _, rest = answer.partition(b"\r\n\r\n")
    return head, rest


def _connect_request(route: Route, proxy: Proxy) -> bytes:
    lines = [f"CONNECT {route.coordinator} HTTP/1.1", f"Host: {route.coordinator}"]
    if proxy.login is not None:
        lines.append(f"Proxy-Authorization: Basic {b64encode(':'.join(proxy.login).encode()).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


def _refusal(answer: bytes, route: Route, proxy: Proxy) -> LineFailed | None:
    """One sentence on a proxy's answer; None where it opened the tunnel."""
    status, *headers = answer.lower().split(b"\r\n")
    version, _, rest = status.partition(b" ")
    code = rest[:3].decode("ascii", "replace")
    if not version.startswith(b"http/1.") or not code.isdecimal():
        return LineFailed(Trouble.PROXY, f"proxy {proxy.address} does not answer in HTTP")
    if code.startswith("2"):
        return None
    subject = f"proxy {proxy.address}"
    if code == "407":
        asked = [header for header in headers if header.startswith(b"proxy-authenticate:")]
        if asked and not any(b"basic" in header for header in asked):
            what = "asks for a login of another kind than Basic (HTTP status 407), which is the only one here"
        elif proxy.login is None:
            what = "asks for a login (HTTP status 407), and proxy_credentials names none"
        else:
            what = "does not accept the login of proxy_credentials (HTTP status 407)"
        return LineFailed(Trouble.PROXY_LOGIN, f"{subject} {what}")
    if code.startswith("4"):
        what = f"does not allow a tunnel to {route.coordinator}"
    else:
        what = f"finds no way to the coordinator at {route.coordinator}"
    return LineFailed(Trouble.PROXY, f"{subject} {what} (HTTP status {code})")


async def _shake_hands(route: Route, context: ssl.SSLContext, writer: asyncio.StreamWriter) -> None:
    """Raises LineFailed where the handshake ends before this side is content with the peer's certificate."""
    name = route.coordinator_name or route.host_and_port[0]
    try:
        await writer.start_tls(context, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        raise _distrust(error, route, name) from None
    except ssl.SSLEOFError:
        raise _cut(route) from None
    except ssl.SSLError:
        message = f"{route.coordinator} does not speak TLS 1.3 as a coordinator does"
        raise LineFailed(Trouble.NO_TLS, message) from None
    except OSError:
        raise _cut(route) from None


def _distrust(error: ssl.SSLCertVerificationError, route: Route, name: str) -> LineFailed:
    trouble, why = VERIFY_ERRORS.get(error.verify_code, FOREIGN)
    return LineFailed(trouble, f"the certificate of {route.coordinator} {why.format(name=name)}")


def _cut(route: Route) -> LineFailed:
    message = f"the line to the coordinator at {route.coordinator} was cut during the handshake"
    return LineFailed(Trouble.CUT, message)


def _context(route: Route) -> ssl.SSLContext:
    """As gRPC's: mutual TLS 1.3, and the authority alone is trusted. Raises ConfigError."""

    def no_password() -> str:  # without it OpenSSL asks the terminal, and the event loop waits
        raise ConfigError(f"{route.identity.key}: encrypted, expected an unencrypted PEM private key")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    authority_pem = read_limited(route.authority, MAX_PEM_BYTES).decode(errors="replace")
    try:
        context.load_verify_locations(cadata=authority_pem)
        context.load_cert_chain(route.identity.certificate, route.identity.key, password=no_password)
    except OSError as error:
        files = f"{route.identity.certificate}, {route.identity.key}, {route.authority}"
        raise ConfigError(f"{files}: {error.strerror or error}") from None
    context.set_alpn_protocols(["h2"])
    return context
