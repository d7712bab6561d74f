"""Cross-entropy of the token that follows.

L = places of a sequence, V = tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from chorale_models.model import Sizes
from chorale_models.task import Task
from strategies.tasks.next_token import MAX_TOKEN_LOSS, NOTHING


class NextToken(Task):
    """Outputs: logits (N, L, V); targets (N, L) int64: the next token at each place, -1 where there is
    none."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.answer = (*sizes.input_shape, sizes.classes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a sequence's predicted places; 0 where it has none."""
        loss_NL = _losses(outputs, targets)
        return loss_NL.sum(dim=1) / (targets != NOTHING).sum(dim=1).clamp(min=1)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        is_predicted_NL = targets != NOTHING
        is_right_NL = is_predicted_NL & (outputs.argmax(dim=2) == targets)
        loss_NL = _losses(outputs, targets).double().clamp(0.0, MAX_TOKEN_LOSS)
        found = {"tokens": is_predicted_NL, "tokens_right": is_right_NL, "token_loss": loss_NL}
        return {name: each_NL.double().mean(dim=1).sum() for name, each_NL in found.items()}


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """0 where nothing is predicted. Shapes: -> (N, L)."""
    losses: Tensor = cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=NOTHING)
    return losses
