"""What every command of an operator takes: whose certificate, which coordinator."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from client.settings import operator_settings

if TYPE_CHECKING:
    from collections.abc import Callable


def operator_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `settings`, from --config, the environment and single options."""
    path = click.Path(path_type=Path)

    @click.option("--config", type=path, help="The operator's settings file.")
    @click.option("--coordinator", help="host:port of the coordinator.")
    @click.option("--certificate", type=path, help="The operator's certificate.")
    @click.option("--key", type=path, help="The operator's private key.")
    @click.option("--authority", type=path, help="Certificate of the federation's authority.")
    @click.option("--federation", help="Name of the federation.")
    @wraps(command)
    def with_settings(
        config: Path | None,
        coordinator: str | None,
        certificate: Path | None,
        key: Path | None,
        authority: Path | None,
        federation: str | None,
        **arguments: Any,
    ) -> None:
        identity = {"certificate": certificate, "key": key}
        given = {"coordinator": coordinator, "authority": authority, "federation": federation}
        command(settings=operator_settings(config, given=given, identity=identity), **arguments)

    return with_settings
