"""A model: a function that returns an nn.Module, and the name of its last linear layer where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from strategies.number_stream import Normal, Start
from strategies.tasks.base import TaskSizes

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Build", "Model", "Normal", "Sizes", "Start", "model"]

Sizes: TypeAlias = TaskSizes
Build: TypeAlias = "Callable[..., nn.Module]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as a job can name it; `model` makes one of a function.

    build(sizes, **options) gives the module, with any values: a job's first state replaces them.
    head: the name of the last linear layer, whose output is the module's own; None: the model has no such
    layer, and methods that need one refuse it.
    starts: how arrays start that no usual rule suits, by a pattern of their names as `*.lora_B.*`: a number
    that fills them, or `Normal(std=0.02)`; of several patterns the first that matches counts. All others
    start by docs/protocol.md 7.12: weights by He et al., biases 0.
    """

    build: Build
    head: str | None = None
    starts: Mapping[str, Start] = field(default_factory=dict)

    def __call__(self, sizes: Sizes, **options: object) -> nn.Module:
        return self.build(sizes, **options)


def model(*, head: str | None = None, starts: Mapping[str, Start] | None = None) -> Callable[[Build], Model]:
    """Decorates the function that builds a model: see `Model`."""

    def made(build: Build) -> Model:
        return Model(build=build, head=head, starts=starts or {})

    return made
