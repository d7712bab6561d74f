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
        """Raises ValueError where there is nothing to train."""
        self._parameters = list(parameters)
        if not self._parameters:
            raise ValueError("SGD: the model has no parameter to train")
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocities: dict[Tensor, Tensor | None] = {}

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A parameter without a gradient stays as it is."""
        moved: list[Tensor] = [each for each in self._parameters if each.grad is not None]
        gradients = [each.grad for each in moved if each.grad is not None]
        velocities = [self._velocities.get(each) for each in moved]
        sgd(
            moved,
            gradients,
            velocities,
            has_sparse_grad=any(gradient.is_sparse for gradient in gradients),
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocities.update(zip(moved, velocities, strict=True))
