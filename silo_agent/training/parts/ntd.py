"""Not-true distillation: the received model's view of the other classes, kept.

FedNTD, Lee et al. 2022 (arXiv 2106.03097): cross-entropy + mu KL( q_g || q ), where q is the softmax
at temperature tau over the C - 1 logits that are not of the sample's own class; FedDr+ writes beta for mu.
There is no factor tau^2: who wants it multiplies mu. Of two classes only one is left and the term is 0.
Adds nothing to what leaves the silo. N = samples, C = classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from silo_agent.training.parts.base import Outputs
from silo_agent.training.parts.kd import softened_divergence


class NotTrueDistillation:
    """tau: temperature of both softmaxes."""

    def __init__(self, *, tau: float) -> None:
        self._tau = tau

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        student_logits, teacher_logits = (
            not_true(outputs.logits_NC, labels_N) for outputs in (student, teacher)
        )
        return softened_divergence(student_logits, teacher_logits, tau=self._tau)


def not_true(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Every logit but the label's, in order. Shapes: -> (N, C - 1)."""
    is_other_NC = torch.ones_like(logits_NC, dtype=torch.bool).scatter(1, labels_N[:, None], False)
    return logits_NC[is_other_NC].view(len(labels_N), -1)
