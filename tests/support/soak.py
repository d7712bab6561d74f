"""Cases of one test of which some run every time and the others under `make soak`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def cases(all_of_them: Mapping[str, Any], *, always: Collection[str]) -> list[Any]:
    """Parameters with the names for ids; a tuple is one case's several values."""
    assert set(always) <= set(all_of_them)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=() if name in always else pytest.mark.soak,
        )
        for name, value in all_of_them.items()
    ]
