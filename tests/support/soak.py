"""What of a test runs every time, and what under `make soak` alone: cases, and examples of Hypothesis."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import hypothesis
import pytest

from strategies.methods import strategy_for
from strategies.presets import PRESETS

SOAK = "soak"  # profile of Hypothesis, see tests/conftest.py
SOAK_EXAMPLES = 1000


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


def examples(count: int) -> hypothesis.settings:
    """So many examples every time, and a thousand under soak: a number given to Hypothesis itself would hold
    there too."""
    return hypothesis.settings(
        max_examples=SOAK_EXAMPLES if os.environ.get("HYPOTHESIS_PROFILE") == SOAK else count,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def one_for_each_sum() -> list[str]:
    """The first of all presets that sum the same quantities in the same phases, and whose silos keep
    something from round to round, or do not: kinds of what travels and is stored are the same for them."""
    found: dict[object, str] = {}
    for preset in PRESETS:
        method = strategy_for(preset, {})
        summed = method.quantities(has_buffers=True, update_bits=32)
        names = tuple(dict.fromkeys(quantity.name for quantity in summed))
        found.setdefault((names, tuple(method.phases), method.recipe.keeps_local_state), preset)
    return list(found.values())
