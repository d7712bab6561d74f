"""What a job of boosted trees says: `strategy: {preset: trees}` and `model: {name: trees}`, each of which
brings the other. Source: strategies/phases/trees.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from chorale.spec.plug_in_specs import ModelSpec
from chorale.spec.samples.column_specs import ColumnSpec
from chorale.spec.selection import MAX_ROUNDS
from chorale.spec.training.job_fields import JobFields
from crypto.errors import ConfigError
from strategies.methods import Strategy
from strategies.phases.trees import TREES, TreesOptions, side_by_side

SIZES = ("trees", "depth")  # options of the model, which follow from the job
ONE_HOT = (0.5,)
MAX_BINS = 1 << 24  # of a level, of which each has up to three sums


def with_trees(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A job's fields, with method and model where either names trees, and the model's room: a tree a
    round."""
    strategy, model = values.get("strategy") or {}, values.get("model") or {}
    if not isinstance(strategy, dict) or not isinstance(model, dict):
        return dict(values)
    if TREES.word not in (strategy.get("preset"), model.get("name")) or model.get("from"):
        return dict(values)
    strategy, model = {"preset": TREES.word, **strategy}, {"name": TREES.word, **model}
    given, rounds = strategy.get("options"), values.get("rounds")
    is_trees = model["name"] == TREES.word
    if is_trees and not model.get("options") and isinstance(given or {}, dict) and isinstance(rounds, int):
        depth = (given or {}).get("depth", TreesOptions().depth)
        model["options"] = dict(zip(SIZES, (max(1, rounds - 1), depth), strict=True))
    return {**values, "strategy": strategy, "model": model}


def check_trees(
    spec: JobFields, method: Strategy, *, inputs: tuple[ColumnSpec, ...], draws_rounds: bool
) -> None:
    """Raises ConfigError for trees in a job that cannot grow them."""
    is_trees = spec.model.source is None and spec.model.name == TREES.word
    if is_trees != (method.recipe.growth is not None):
        raise ConfigError(f"model.name: strategy {TREES.word} and model {TREES.word} need one another")
    if not is_trees:
        if column := next((each.name for each in inputs if each.edges is not None), None):
            raise ConfigError(f"columns: {column}: edges are for model {TREES.word}")
        return
    task, options = method.task, method.options_of(TreesOptions)
    if not (task.word == "classification" and task.sizes.classes >= 2):
        if task.word != "regression" or side_by_side(task) != 1 or task.sizes.outputs > 1:
            raise ConfigError(
                f"task: {TREES.word} are grown for classification, or for regression of one number; got "
                f"{task.word} with classes {task.sizes.classes}"
            )
        if task.chosen.model_dump()["loss"] != "squared":
            raise ConfigError(f"task.options.loss: {TREES.word} are grown by the squared error")
    room = room_of(spec.model)
    if (
        set(spec.model.options) != {*SIZES}
        or room["depth"] != options.depth
        or room["trees"] < spec.rounds - 1
    ):
        raise ConfigError(
            "model.options: they follow from rounds and strategy.options.depth: expected none, got "
            f"{spec.model.options}"
        )
    bins = max([options.bins, *(1 + len(each.edges or ()) for each in inputs)])
    level = (side_by_side(task) << (options.depth - 1)) * math.prod(spec.input_shape) * (bins + 1)
    if level > MAX_BINS:
        raise ConfigError(
            f"strategy.options: a tree's last level has {level} bins in all, at most {MAX_BINS} are summed"
        )
    others = {
        "fraction": draws_rounds,  # many draws tell each silo's records by bin
        "search": spec.search is not None,
        "adapters": spec.adapters is not None,
        "trains": spec.trains != "all",
        "augment": spec.augment is not None,
        "input_type": spec.input_type != "float32",
        "training.schedule": spec.training.schedule.kind != "constant",
        "strategy.loss": spec.strategy.loss is not None,
        "strategy.regularizer": spec.strategy.regularizer is not None,
    }
    if refused := next((name for name, is_set in others.items() if is_set), None):
        raise ConfigError(f"{refused}: not allowed with {TREES.word}, which no steps train")
    if filled := next((each.name for each in inputs if each.fill != 0.0), None):
        raise ConfigError(f"columns: {filled}: fill: {TREES.word} read a missing value as missing")


def room_of(model: ModelSpec) -> dict[str, int]:
    """Trees and depth of the model. Raises ConfigError."""
    found = {name: model.options.get(name) for name in SIZES}
    room = {name: value for name, value in found.items() if type(value) is int and 1 <= value <= MAX_ROUNDS}
    if len(room) < len(SIZES):
        raise ConfigError(f"model.options: expected trees and depth, whole numbers from 1, got {found}")
    return room


def own_edges(columns: Iterable[ColumnSpec]) -> dict[int, tuple[float, ...]]:
    """Of bins, by input, where it is not cut as a standardized number is."""
    found, start = dict[int, tuple[float, ...]](), 0
    for column in columns:
        if column.is_one_hot:
            found |= dict.fromkeys(range(start, start + column.width), ONE_HOT)
        elif column.edges is not None:
            found[start] = tuple((edge - column.mean) / column.scale for edge in column.edges)
        start += column.width
    return found
