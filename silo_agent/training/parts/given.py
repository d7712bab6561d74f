"""A loss or regularizer of an installed distribution, in a job's own place for it (strategy.loss,
strategy.regularizer). What it is made of stays at the silo: it changes the gradients alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chorale_models.parts import Loss, Regularizer
from silo_agent.training.base.passes import Outputs


@dataclass(frozen=True, slots=True)
class GivenLoss:
    """Of the model's outputs."""

    given: Loss

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return self.given.loss(outputs.logits_NC, labels_N)


@dataclass(frozen=True, slots=True)
class GivenRegularizer:
    """Of the outputs of the trained and the received model."""

    given: Regularizer

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return self.given.penalty(student.logits_NC, teacher.logits_NC, labels_N)
