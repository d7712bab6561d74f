"""Logit distillation: the received model's logits, kept.

FedDr+, Kim et al. 2024 (arXiv 2406.02355), Table 2 of the journal version: mean_c (z_c - z_g,c)^2.
FedCSD's term of the same name is a soft cross-entropy and another part (csd). On raw features and a
frozen simplex it is at most |f - f_g|^2 / (C - 1): feature directions outside the classes' span are free.
Adds nothing to what leaves the silo. N = samples, C = classes.
"""

from __future__ import annotations

from torch import Tensor

from silo_agent.training.parts.base import Outputs


class LogitDistillation:
    """Mean squared difference of the logits, over the classes."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return (student.logits_NC - teacher.logits_NC).square().mean(dim=1)
