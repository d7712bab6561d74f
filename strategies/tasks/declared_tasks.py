"""Every task that a job may name: the only list of them on this side.

chorale_models/tasks/ computes their losses and sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from crypto.errors import ConfigError
from strategies.base import options_of
from strategies.expected import did_you_mean
from strategies.tasks.base import DeclaredTask, TaskSizes
from strategies.tasks.classification import Classification
from strategies.tasks.multi_label import MultiLabel
from strategies.tasks.next_token import NextToken
from strategies.tasks.regression import Regression
from strategies.tasks.segmentation import Segmentation
from strategies.tasks.survival import Survival

TASKS: Mapping[str, type[DeclaredTask]] = MappingProxyType(
    {each.word: each for each in (Classification, MultiLabel, Regression, Segmentation, Survival, NextToken)}
)


def task_of(
    word: str, sizes: TaskSizes, *, options: Mapping[str, Any], metrics: tuple[str, ...]
) -> DeclaredTask:
    """The task of a job. Raises ConfigError for unknown words, options and metrics, and for sizes that the
    task cannot have."""
    if word not in TASKS:
        message = f"expected one of {', '.join(TASKS)}, got {word}{did_you_mean(word, list(TASKS))}"
        raise ConfigError(f"task.name: {message}")
    kind = TASKS[word]
    unknown = sorted(set(options) - set(kind.options.model_fields))
    if unknown:
        known = ", ".join(kind.options.model_fields) or "none"
        raise ConfigError(f"task.options.{unknown[0]}: unknown option, {word} has {known}")
    return kind(sizes, options_of(kind.options, options, field="task.options"), metrics)
