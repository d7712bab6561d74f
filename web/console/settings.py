"""The console's settings file: whom it asks, where it listens, who may log in."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from chorale.spec.fields import Address, Name
from chorale.spec.line_settings import LineSettings
from chorale.spec.settings_file import load_settings
from chorale.transport.tls import IdentityFiles
from strategies.expected import got

ENV_PREFIX = "CHORALE_CONSOLE_"
CALLBACK = "/login/oidc/callback"  # of url, which a provider knows
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ORIGIN = re.compile(r"https://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")


def _checked_origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError(f"expected https://host or https://host:port in lower case, got {got(value)}")
    return value.removesuffix(":443")


def _checked_issuer(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ValueError(f"expected an https:// address, got {got(value)}")
    return value.rstrip("/")


class Right(StrEnum):
    """What a login may do."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # read, and steer jobs of its own name
    ADMIN = "admin"  # read, and steer every job


class OidcSettings(BaseModel):
    """Login by an OpenID Connect provider: authorization code with PKCE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Annotated[str, AfterValidator(_checked_issuer)] = Field(
        description="address of the provider, as its configuration names it"
    )
    client_id: str = Field(min_length=1, max_length=200, description="the console's id at the provider")
    client_secret: Path | None = Field(
        default=None,
        description="file of the client's secret, which nobody else may read; null: a public client",
    )
    authority: Path | None = Field(
        default=None,
        description="certificates that are trusted to sign the provider's, PEM; null: those of the system",
    )
    scope: str = Field(default="openid profile", description="what is asked for; openid must be in it")
    role_claim: str = Field(
        default="groups", description="claim of the signed ID token that holds a word or a list of words"
    )
    roles: dict[str, Right] = Field(
        description="what a word of role_claim may do: viewer, operator or admin; who has none is not let in"
    )
    operators: dict[str, Name] = Field(
        default_factory=dict,
        description="by `sub` of the provider the operator's name in the federation, whose jobs are theirs",
    )


class ConsoleSettings(LineSettings):
    """Everything `chorale console` reads. Paths are relative to the working directory."""

    listen: Address = Field(default="127.0.0.1:8443", description="host:port for browsers")
    url: Annotated[str, AfterValidator(_checked_origin)] = Field(
        description="the address that people type, https://host:port; under no other name anything is served"
    )
    tls: IdentityFiles = Field(description="certificate and key that browsers see, of a CA that they trust")
    roster: Path | None = Field(
        default=None,
        description="the authority's signed roster, whose operators log in by certificate; null: nobody does",
    )
    oidc: OidcSettings | None = Field(default=None, description="login by a provider; null: none")

    @model_validator(mode="after")
    def _lets_somebody_in(self) -> ConsoleSettings:
        if self.roster is None and self.oidc is None:
            raise ValueError("roster: expected roster, oidc or both: nobody could log in")
        return self

    @property
    def host(self) -> str:
        """As browsers send it in Host."""
        return self.url.removeprefix("https://")


def load_console_settings(path: Path) -> ConsoleSettings:
    """Raises ConfigError that names file, field and what is allowed."""
    return load_settings(ConsoleSettings, path, ENV_PREFIX)
