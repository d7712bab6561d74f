"""Softmax cross-entropy: the loss of FedAvg (McMahan et al. 2017, arXiv 1602.05629)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from silo_agent.training.parts.base import Outputs


class CrossEntropy:
    """-log softmax(logits)[label], one value a sample."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(outputs.logits_NC, labels_N, reduction="none")
