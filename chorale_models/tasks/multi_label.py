"""Binary cross-entropy of each label, and the share of labels that are right.

K = labels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from chorale_models.model import Sizes
from chorale_models.task import Task
from chorale_models.tasks.histograms import reliability, score_counts


class MultiLabel(Task):
    """Outputs: logits (N, K); targets (N, K) int64, 0 or 1. The loss is the mean over a sample's labels."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.answer = (sizes.classes,)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss_NK = binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return loss_NK.mean(dim=1)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"labels_right": ((outputs > 0) == targets.bool()).double().mean(dim=1).sum()}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        if metric == "confusion":
            place_K = torch.arange(outputs.shape[1], device=outputs.device)
            flat_NK = 4 * place_K + 2 * targets + (outputs > 0).long()
            return {
                "confusion": torch.bincount(flat_NK.flatten(), minlength=4 * len(place_K)).reshape(-1, 2, 2)
            }
        if metric == "curves":
            return score_counts(outputs.double(), targets.bool())
        chance_NK = torch.sigmoid(outputs.double())
        squared_error_N = (chance_NK - targets.double()).square().mean(dim=1)
        # of an answer: how sure the model is of what it says, that the label holds or that it does not
        return reliability(
            torch.maximum(chance_NK, 1.0 - chance_NK), (outputs > 0) == targets.bool(), squared_error_N
        )
