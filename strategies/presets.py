"""Methods by name: a preset is a row of parts with its own values for their options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strategies.recipe import Recipe

PRESETS: Mapping[str, Recipe] = MappingProxyType(
    {
        "fedavg": Recipe(),
    }
)
