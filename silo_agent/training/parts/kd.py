"""Knowledge distillation: the softened softmax of the received model, kept.

Hinton et al. 2015 (arXiv 1503.02531), section 2: tau^2 KL( softmax(z_g/tau) || softmax(z/tau) ); tau^2 keeps
the gradient's size where tau changes. The teacher is the model as it was received, in eval mode, constant
for the round. z are the model's own logits: cosines where features have unit length.
Adds nothing to what leaves the silo. N = samples, K = logits compared.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from silo_agent.training.parts.base import Outputs


class KnowledgeDistillation:
    """tau: temperature of both softmaxes."""

    def __init__(self, *, tau: float) -> None:
        self._tau = tau

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        divergence_N = softened_divergence(student.logits_NC, teacher.logits_NC, tau=self._tau)
        return self._tau**2 * divergence_N


def softened_divergence(student_NK: Tensor, teacher_NK: Tensor, *, tau: float) -> Tensor:
    """KL( softmax(teacher/tau) || softmax(student/tau) ). Shapes: -> (N,)."""
    student_log_NK = log_softmax(student_NK / tau, dim=1)
    teacher_log_NK = log_softmax(teacher_NK / tau, dim=1)
    return kl_div(student_log_NK, teacher_log_NK, reduction="none", log_target=True).sum(dim=1)
