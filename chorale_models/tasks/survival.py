"""Likelihood of hazards, Brier score, and times by risk.

J = intervals.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from chorale_models.model import Sizes
from chorale_models.task import Task
from strategies.tasks.survival import BINS


class Survival(Task):
    """Outputs: logits of hazards (N, J); targets (N, 2) int64: interval, and whether the event is in it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.answer = (sizes.classes,)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log of the chance to live through the intervals before, and of the event in its own."""
        interval_N, is_event_N = targets[:, 0], targets[:, 1].bool()
        is_before_NJ = _is_before(outputs, interval_N)
        lived_N = torch.where(is_before_NJ, logsigmoid(-outputs), 0.0).sum(dim=1)
        event_N = logsigmoid(outputs.gather(1, interval_N[:, None]))[:, 0]
        return -lived_N - torch.where(is_event_N, event_N, 0.0)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        interval_N, is_event_N = targets[:, 0], targets[:, 1].bool()
        is_alive_NJ = _is_before(outputs, interval_N)  # at the end of an interval
        is_known_NJ = is_alive_NJ | is_event_N[:, None]
        error_NJ = (_living(outputs) - is_alive_NJ.double()).square()
        known_N = is_known_NJ.sum(dim=1).clamp(min=1)
        return {"brier_sum": (torch.where(is_known_NJ, error_NJ, 0.0).sum(dim=1) / known_N).sum()}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """The risk is 1 - the mean chance to live over all intervals."""
        intervals = outputs.shape[1]
        bins_N = ((1.0 - _living(outputs).mean(dim=1)) * BINS).long().clamp(0, BINS - 1)
        flat_N = (targets[:, 1] * intervals + targets[:, 0]) * BINS + bins_N
        counts = torch.bincount(flat_N, minlength=2 * intervals * BINS)
        return {"times": counts.reshape(2, intervals, BINS)}


def _is_before(outputs: Tensor, interval_N: Tensor) -> Tensor:
    """Shapes: -> (N, J)."""
    return torch.arange(outputs.shape[1], device=outputs.device) < interval_N[:, None]


def _living(outputs: Tensor) -> Tensor:
    """The chance to live through each interval and all before it. Shapes: -> (N, J) float64."""
    return logsigmoid(-outputs.double()).cumsum(dim=1).exp()
