"""What a silo's own settings file names as `package.module:function`. No peer ever names one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from crypto.errors import ConfigError


def load_entry_point(entry_point: str, *, field: str) -> Callable[..., object]:
    """The function, imported now. field: of the settings, for the message. Raises ConfigError."""
    module_name, _, attribute = entry_point.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SystemExit) as error:  # the last: of a script
        raise ConfigError(f"{field}: cannot load {entry_point}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{field}: {entry_point} is not a function")
    return cast(Callable[..., object], found)
