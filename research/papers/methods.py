"""The papers' methods as a job file names them; rates and options are each paper's own.

A variant of a preset is written by its parts: `with_parts("fedetf", regularizer="fd", mix="convex")`.
"""

from __future__ import annotations

from typing import Any

from chorale.spec.strategy_spec import PartsSpec
from research.papers.cells import Method
from strategies.presets import PRESETS

USUAL = PartsSpec().model_dump()
UNTOUCHED = {"fine_tune_epochs": 0, "fine_tune_scope": "body"}


def preset(name: str, rate: float, **options: Any) -> Method:
    """A preset, with its defaults but for these options."""
    strategy: dict[str, Any] = {"preset": name}
    if options:
        strategy["options"] = options
    return Method(strategy=strategy, rate=rate)


def published(name: str, rate: float, **options: Any) -> Method:
    """A preset as its paper prints it, where the authors' code does something else."""
    made = preset(name, rate, **options)
    return Method(strategy={**made.strategy, "as_published": "paper"}, rate=rate)


def with_parts(
    base: str,
    rate: float,
    *,
    options: dict[str, Any] | None = None,
    unusual: bool = False,
    **changes: str,
) -> Method:
    """A preset with other parts. options: besides those in which the preset differs from its parts."""
    recipe = PRESETS[base]
    words = {name: str(getattr(recipe, name)) for name in USUAL if getattr(recipe, name) is not None}
    parts = {name: word for name, word in {**words, **changes}.items() if word != USUAL[name]}
    strategy: dict[str, Any] = {"parts": parts}
    if given := {**recipe.defaults, **(options or {})}:
        strategy["options"] = given
    return Method(strategy=strategy, rate=rate, unusual=unusual)


def untuned(base: str, rate: float, **changes: Any) -> Method:
    """A method without personal models, whose one final model each silo tests on its own hold-out."""
    return with_parts(base, rate, closing="fine-tuning", options=UNTOUCHED, **changes)
