"""What every command of an operator takes: whose certificate, which coordinator."""

from __future__ import annotations

import os
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import click

from chorale.runtime.files import check_folder
from client.settings import ENV_PREFIX, operator_settings
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

Command: TypeAlias = "Callable[..., None]"


@overload
def operator_options(command: Command) -> Command: ...
@overload
def operator_options(*, is_optional: bool) -> Callable[[Command], Command]: ...
def operator_options(
    command: Command | None = None, *, is_optional: bool = False
) -> Command | Callable[[Command], Command]:
    """Gives a command `settings`, from --config, the environment and single options.

    is_optional: None where nothing names a coordinator.
    """
    if command is None:
        return partial(_with_options, is_optional=is_optional)
    return _with_options(command, is_optional=is_optional)


def check_out_file(out: Path) -> None:
    """Before the coordinator is asked. Raises ConfigError where no file can be written there."""
    if out.is_dir():
        raise ConfigError(f"--out: {out} is a folder, expected a file")
    if not out.absolute().parent.exists():
        raise ConfigError(f"--out: {out.parent}: no such folder")
    check_folder(out.absolute().parent, field="--out")


def _with_options(command: Command, *, is_optional: bool) -> Command:
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
        named = (config, coordinator, os.environ.get(f"{ENV_PREFIX}COORDINATOR"))
        if is_optional and not any(named):
            command(settings=None, **arguments)
            return
        of_fields = {name: f"--{name}" for name, value in given.items() if value is not None}
        settings = operator_settings(config, given=given, identity=identity, options=of_fields)
        command(settings=settings, **arguments)

    return with_settings
