"""Cross-entropy of one class a sample, and how many are right."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from chorale_models.task import Task


class Classification(Task):
    """Outputs: logits (N, C); targets (N,) int64."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"correct": (outputs.argmax(dim=1) == targets).sum()}
