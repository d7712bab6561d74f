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
    """Gives a command `settings`, from --config and the environment.

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
    @click.option("--config", type=click.Path(path_type=Path), help="The operator's settings file.")
    @wraps(command)
    def with_settings(config: Path | None, **arguments: Any) -> None:
        if is_optional and config is None and f"{ENV_PREFIX}COORDINATOR" not in os.environ:
            command(settings=None, **arguments)
        else:
            command(settings=operator_settings(config), **arguments)

    return with_settings
