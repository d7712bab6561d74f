"""A silo's own loading function, without a file of its own."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

OWN = {"format": "module", "module": "own_loader:load"}


def gives(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    """The function that OWN names gives these data."""
    module = ModuleType("own_loader")
    module.__dict__["load"] = lambda settings: data
    monkeypatch.setitem(sys.modules, "own_loader", module)
