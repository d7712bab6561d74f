"""Groups that import a command's module when that command is called, and not before."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping
from typing import Any, cast

import click


class LazyGroup(click.Group):
    """entries: by name of a command where it is, as `package.module:attribute`, in the order of the help."""

    def __init__(self, *arguments: Any, entries: Mapping[str, str], **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self.entries = entries
        self.commands = {name: click.Command(name) for name in entries}  # what a wrong name may have meant

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            return None
        module_name, _, attribute = self.entries[cmd_name].partition(":")
        was_enabled = gc.isenabled()
        gc.disable()  # nothing of what loads is garbage, and looking for it takes a seventh of the time
        try:
            return cast(click.Command, getattr(importlib.import_module(module_name), attribute))
        finally:
            if was_enabled:
                gc.enable()
