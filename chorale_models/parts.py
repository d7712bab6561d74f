"""Silo-side losses and regularizers. What the server does with the sums is Chorale's alone, because
coordinator and silos compute it alike.

N = samples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from chorale_models.model import Sizes

if TYPE_CHECKING:
    from torch import Tensor


class Loss(ABC):
    """A loss in place of the task's own. is_mean: as a task's."""

    is_mean: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, **options: object) -> None:
        self.sizes = sizes

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Shapes: -> (N,)."""


class Regularizer(ABC):
    """Compares what the trained model gives with what the received one gave for the same samples."""

    is_mean: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, **options: object) -> None:
        self.sizes = sizes

    @abstractmethod
    def penalty(self, outputs: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """Shapes: -> (N,). teacher: constant."""
