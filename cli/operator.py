"""`chorale operator`, and the operator's settings file that `chorale job` reads."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import BaseModel, ConfigDict, Field

from cli.keys import csr_command

ENV_PREFIX = "CHORALE_OPERATOR_"
NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
ADDRESS = r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):\d{1,5}$"


class OperatorSettings(BaseModel):
    """Who submits jobs, and to whom. Paths are relative to the working directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    federation: str = Field(pattern=NAME, description="the federation's name, as in every certificate")
    coordinator: str = Field(pattern=ADDRESS, description="host:port of the coordinator")
    coordinator_name: str | None = Field(
        default=None,
        description="name in the coordinator's certificate, where it is not the dialled host",
    )
    certificate: Path = Field(description="this operator's certificate, PEM, signed by the authority")
    key: Path = Field(description="this operator's private key, PEM, made on this machine")
    authority: Path = Field(description="certificate of the federation's authority, PEM")


@click.group()
def operator() -> None:
    """Make an operator's key."""


operator.add_command(csr_command("operator"))
