"""Stochastic gradient descent: torch's own step, without what torch.optim loads for it.

torch.optim.SGD imports torch's compiler when it is made and when it steps: two seconds of CPU and 70 MB in
every silo, for a compiler that nothing here calls. The step itself is torch.optim.sgd.sgd: the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd


class Optimizer(Protocol):
    """What a training loop asks of one; torch.optim's have it."""

    def zero_grad(self) -> None: ...

    def step(self) -> object: ...


class SGD:
    """torch.optim.SGD of one group of parameters, without dampening or Nesterov's momentum."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocities: dict[nn.Parameter, Tensor | None] = {}

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A parameter without a gradient stays as it is."""
        moved = [parameter for parameter in self._parameters if parameter.grad is not None]
        velocities = [self._velocities.get(parameter) for parameter in moved]
        sgd(
            list(moved),
            [parameter.grad for parameter in moved if parameter.grad is not None],
            velocities,
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocities.update(zip(moved, velocities, strict=True))
