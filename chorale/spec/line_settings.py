"""Settings of who dials the coordinator, silo or operator: whom, by which way, with which certificates."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from chorale.runtime.key_files import read_key
from chorale.spec.fields import Address, Name
from chorale.transport.route import Proxy, Route, split_address
from chorale.transport.tls import IdentityFiles
from crypto.errors import ConfigError
from strategies.expected import got

MAX_LOGIN_BYTES = 4096
PAST_PROXY_FORM = "a host name, .suffix, an address or a CIDR"

_HOST = re.compile(r"\.?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def _checked_past_proxy(value: object) -> str:
    """Raises ValueError."""
    if isinstance(value, str):
        if _network(value) is not None:
            return value
        if _HOST.fullmatch(value) and not re.fullmatch(r"[0-9.]+", value):  # else a mistyped address
            return value.lower()
    raise ValueError(f"expected {PAST_PROXY_FORM}, got {got(value)}")


PastProxy = Annotated[
    str,
    BeforeValidator(_checked_past_proxy),
    WithJsonSchema({"type": "string", "format": PAST_PROXY_FORM}),
]


class LineSettings(BaseModel):
    """Paths are relative to the working directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    federation: Name = Field(description="the federation's name, as in every certificate")
    coordinator: Address = Field(description="host:port of the coordinator, which is dialed")
    coordinator_name: str | None = Field(
        default=None, description="host name in the coordinator's certificate, if not the dialed one"
    )
    proxy: Address | None = Field(
        default=None, description="host:port of an HTTP proxy to go through by CONNECT"
    )
    proxy_credentials: Path | None = Field(
        default=None,
        description="file of the proxy's login, username:password on one line, which nobody else may read; "
        "it is sent as Basic, in clear between here and the proxy; null: none",
    )
    no_proxy: tuple[PastProxy, ...] = Field(
        default=(),
        max_length=100,
        description="hosts that are dialed past the proxy: name (and all below it), .suffix (only what is "
        "below), address or CIDR",
    )
    identity: IdentityFiles
    authority: Path = Field(
        description="certificate of the federation's authority, PEM; two while it changes its key"
    )

    @model_validator(mode="after")
    def _has_a_proxy(self) -> LineSettings:
        if self.proxy is None and self.proxy_credentials is not None:
            raise ValueError("proxy_credentials: needs proxy")
        return self

    def route(self) -> Route:
        """The way to the coordinator, with the proxy's login read again. Raises ConfigError."""
        proxy = None
        if self.proxy is not None and not _is_past(split_address(self.coordinator)[0], self.no_proxy):
            login = None if self.proxy_credentials is None else read_login(self.proxy_credentials)
            proxy = Proxy(address=self.proxy, login=login)
        return Route(
            coordinator=self.coordinator,
            coordinator_name=self.coordinator_name,
            proxy=proxy,
            identity=self.identity,
            authority=self.authority,
        )


def read_login(path: Path) -> tuple[str, str]:
    """User name and password. Raises ConfigError that names the file and shows nothing of it."""
    expected = f"{path}: expected one line, username:password"
    try:
        text = read_key(path, MAX_LOGIN_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{expected}, in UTF-8") from None
    username, colon, password = text.removesuffix("\n").removesuffix("\r").partition(":")
    if not (username and colon) or not (username + password).isprintable():
        raise ConfigError(expected)
    return username, password


def _is_past(host: str, past: tuple[str, ...]) -> bool:
    """Whether a host is dialed past the proxy. Names are not looked up: a CIDR covers addresses alone."""
    own = _network(host)
    if own is not None:
        networks = [network for each in past if (network := _network(each)) is not None]
        return any(own.network_address in network for network in networks)
    dotted = f".{host.lower().rstrip('.')}"
    return any(dotted.endswith(f".{each}") if each[0] != "." else dotted[1:].endswith(each) for each in past)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """What an address or a CIDR covers; None for a name."""
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None
