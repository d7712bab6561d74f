"""Cross-entropy of one class a sample, and how many are right."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softmax

from chorale_models.model import Sizes
from chorale_models.task import Task
from chorale_models.tasks.histograms import class_log_odds, reliability, score_counts, tempered_losses


class Classification(Task):
    """Outputs: logits (N, C); targets (N,) int64."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.answer = (sizes.classes,)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"correct": (outputs.argmax(dim=1) == targets).sum()}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        classes = outputs.shape[1]
        if metric == "confusion":
            counts = torch.bincount(targets * classes + outputs.argmax(dim=1), minlength=classes**2)
            return {"confusion": counts.reshape(classes, classes)}
        if metric == "temperature":
            return tempered_losses(outputs, targets)
        is_of_class_NC = one_hot(targets, classes).bool()
        if metric == "curves":
            log_odds_NK = class_log_odds(outputs)
            return score_counts(log_odds_NK, is_of_class_NC[:, -log_odds_NK.shape[1] :])
        chance_NC = softmax(outputs.double(), dim=1)
        confidence_N, answer_N = chance_NC.max(dim=1)
        squared_error_N = (chance_NC - is_of_class_NC.double()).square().sum(dim=1)
        return reliability(confidence_N[:, None], (answer_N == targets)[:, None], squared_error_N)
