"""The learning rates that a job's method was measured with, and that of a job which names none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chorale.spec.plug_in_specs import TaskSpec
from chorale.spec.strategy_spec import StrategySpec, TrainingSpec
from crypto.errors import ConfigError
from strategies.recipe import Rates
from strategies.tasks.classification import CLASSIFICATION

OTHERWISE = ("privacy", "adapters")  # parts of a job with which nothing was measured


def known_rates(values: Mapping[Any, object]) -> Rates | None:
    """The rates of the preset. values: a job's fields, unchecked.

    None where a field is wrong, and where the job trains otherwise than the rates were measured: by parts or
    as published, with another loss or task, another optimizer or momentum, privacy, adapters, the head alone.
    """
    training = values.get("training") or {}
    if not isinstance(training, dict) or any(values.get(name) is not None for name in OTHERWISE):
        return None
    with suppress(ValueError, ConfigError):
        task = TaskSpec.model_validate(values.get("task") or {})
        plan = TrainingSpec.model_validate(training)
        is_plain = (plan.optimizer, plan.momentum) == ("sgd", TrainingSpec().momentum)
        if is_plain and task.name == CLASSIFICATION.word and values.get("trains", "all") == "all":
            return StrategySpec.model_validate(values.get("strategy") or {}).recipe.rates
    return None


def with_rate(values: Mapping[object, object]) -> dict[object, object]:
    """A job's fields, with its preset's learning rate where it says none and one is known."""
    training, rates = values.get("training") or {}, known_rates(values)
    if rates is None or not isinstance(training, dict) or training.get("learning_rate") is not None:
        return dict(values)
    return {**values, "training": {**training, "learning_rate": rates.default}}


def check_rate(rate: float | None) -> None:
    """Raises ConfigError for a job that still has none."""
    if rate is None:
        raise ConfigError(
            "training.learning_rate: a value is required: only a preset without a loss or regularizer of "
            "others has one of its own, for classification by sgd with momentum 0.9, without privacy, "
            "adapters and as_published"
        )
