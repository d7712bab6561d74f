"""Errors of numbers within a range: what is trained is -1 at its low end and 1 at its high end.

T = numbers of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import huber_loss, l1_loss, mse_loss

from chorale_models.model import Sizes
from chorale_models.task import Task

LOSSES: Mapping[str, Callable[..., Tensor]] = {"squared": mse_loss, "absolute": l1_loss, "huber": huber_loss}


class Regression(Task):
    """Outputs: (N, T); targets (N, T), or (N,) where T is 1; both float32."""

    def __init__(self, sizes: Sizes, *, low: float, high: float, loss: str = "squared") -> None:
        super().__init__(sizes)
        self.answer = (sizes.outputs,)
        self._middle, self._half_range, self._loss = (low + high) / 2, (high - low) / 2, LOSSES[loss]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a sample's numbers."""
        scaled = (targets - self._middle) / self._half_range
        loss_NT = self._loss(outputs, scaled.reshape(len(targets), -1), reduction="none")
        return loss_NT.mean(dim=1)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        error_NT = (outputs.double().clamp(-1.0, 1.0) - self._scaled(targets)).abs() / 2
        return {
            "absolute_error": error_NT.mean(dim=1).sum(),
            "squared_error": error_NT.square().mean(dim=1).sum(),
        }

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        place_NT = (self._scaled(targets) + 1.0) / 2
        return {
            "target_sum": place_NT.mean(dim=1).sum(),
            "target_square_sum": place_NT.square().mean(dim=1).sum(),
        }

    def _scaled(self, targets: Tensor) -> Tensor:
        """Shapes: -> (N, T) float64, -1 to 1."""
        scaled = (targets.double() - self._middle) / self._half_range
        return scaled.reshape(len(targets), -1).clamp(-1.0, 1.0)
