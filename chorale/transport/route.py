"""The way to the coordinator: its address, the certificates on it, and the proxy in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from chorale.transport.tls import IdentityFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """An HTTP proxy that is asked for a tunnel (CONNECT). login: user name and password, for Basic."""

    address: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """As gRPC takes it. Security: it holds the password."""
        if self.login is None:
            return f"http://{self.address}"
        username, password = (quote(part, safe="") for part in self.login)
        return f"http://{username}:{password}@{self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What dialing takes. coordinator: host:port. coordinator_name: the one in its certificate, if not the
    dialed host. authority: file of the certificates that are trusted to sign its own, PEM."""

    coordinator: str
    identity: IdentityFiles
    authority: Path
    coordinator_name: str | None = None
    proxy: Proxy | None = None

    @property
    def host_and_port(self) -> tuple[str, int]:
        return split_address(self.coordinator)


def split_address(address: str) -> tuple[str, int]:
    """host:port, where an address of IPv6 stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
