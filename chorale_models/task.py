"""A task: the loss of each sample, and the sums that its metrics are made of.

N = samples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from chorale_models.model import Sizes
from strategies.tasks.base import Sum, Target

if TYPE_CHECKING:
    from torch import Tensor


class Task(ABC):
    """What a model is trained for. A subclass says what targets are and gives the loss.

    target: what a sample's target is; Target() is one number. It may also be set by `__init__`, which gets
    what the job says of its samples, and the job's options for the task.
    answer: the shape of what a model gives for one sample; None: the loss takes any.
    sums: what `measure` returns, each with its largest value and with what one record moves of it. Beside
    them every task sums `tested`, the number of samples, and `loss_sum`.
    metrics: figures of the federation, each one sum divided by another, such as
    {"mae": ("error_sum", "tested")}.
    A private job bounds by itself what one record adds to a sum: it measures records one by one, and clips
    what is above `per_record`.
    is_mean: whether a batch is judged by the mean of the losses of its records. A task whose loss of one
    record depends on the others says False, and private jobs refuse it.
    """

    target: Target = Target()
    answer: tuple[int, ...] | None = None
    sums: ClassVar[tuple[Sum, ...]] = ()
    metrics: ClassVar[Mapping[str, tuple[str, str]]] = {}
    is_mean: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, **options: object) -> None:
        self.sizes = sizes

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Shapes: what the model gives for N samples, (N, *target.shape) -> (N,)."""

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """What these samples add to each of `sums`, without gradients. Shapes: by name that sum's shape."""
        return {}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """The same for what a job asks for by `task.metrics`: sums of the closing evaluation. Chorale's own
        tasks have them."""
        return {}
