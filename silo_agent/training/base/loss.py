"""What a silo minimizes: one loss a sample, and what depends on the weights alone.

Samples of a job with random transforms are transformed first, and a teacher is then asked about the batch
as it is trained on, because every batch is another one.
Means are taken by the training loop, because per-sample gradients need the single losses; what
depends on the weights alone stands apart, because it has no per-sample gradient.
N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from chorale_models.task import Task
from crypto.errors import ConfigError
from silo_agent.training.base.augmentation import Augmentation
from silo_agent.training.base.batches import Batch
from silo_agent.training.base.passes import Outputs
from silo_agent.training.models.base import FederatedModel


class SampleLoss(Protocol):
    """A loss without a mean."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        """Shapes: labels (N,) int64 -> (N,) float32."""


@dataclass(frozen=True, slots=True)
class TaskLoss:
    """The task's own: cross-entropy in FedAvg (McMahan et al. 2017, arXiv 1602.05629)."""

    task: Task

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        """Raises ConfigError for answers that are not the task's."""
        found, expected = tuple(outputs.logits_NC.shape[1:]), self.task.answer
        if expected is not None and found != expected:
            raise ConfigError(
                f"model: its answer to a sample has shape {found}, the job's task expects {expected}"
            )
        loss_N = self.task.loss(outputs.logits_NC, labels_N)
        if loss_N.shape != (len(labels_N),):
            raise ConfigError(
                f"task: loss gave shape {tuple(loss_N.shape)} for {len(labels_N)} samples, expected one "
                "number for each"
            )
        return loss_N


@runtime_checkable
class SampleRegularizer(Protocol):
    """A regularizer that compares student and teacher, sample by sample. The teacher is constant."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        """Shapes: labels (N,) int64 -> (N,) float32."""


@runtime_checkable
class WeightPenalty(Protocol):
    """A regularizer of the weights alone: its exact gradient is the same for every batch."""

    def penalty(self, model: FederatedModel) -> Tensor:
        """Shapes: -> ()."""

    def add_gradient(self, model: FederatedModel, *, weight: float) -> None:
        """Weight times the penalty's gradient, added to what the trained parameters have: in every step, so
        without autograd where there is a formula."""


class Perturbation(Protocol):
    """Where the loss is taken in place of the weights as they are."""

    def moved(self, model: FederatedModel) -> AbstractContextManager[None]:
        """The model elsewhere, by the gradients that its parameters have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLoss:
    """What one round of local training minimizes.

    per_sample needs the samples' outputs and places in the training set; penalty the weights alone.
    augmentation: what samples go through first. teacher: its outputs for the whole training set.
    live_teacher: in its place where samples are augmented or too many, gives those for a batch.
    correction: of every step, by the server update; no mix weighs it. perturbation: what the regularizer's
    gradient is for, in place of the step.
    """

    loss: SampleLoss
    loss_weight: float = 1.0
    regularizer: SampleRegularizer | None = None
    weight_penalty: WeightPenalty | None = None
    regularizer_weight: float = 0.0
    augmentation: Augmentation | None = None
    teacher: Outputs | None = None
    live_teacher: Callable[[Tensor], Outputs] | None = None
    correction: WeightPenalty | None = None
    perturbation: Perturbation | None = None

    def augmented(self, batch: Batch, *, step: int) -> Batch:
        """The batch as the student and its teacher are given it. step: the epoch, or whatever else counts
        how often a sample was drawn."""
        return batch if self.augmentation is None else self.augmentation(batch, step=step)

    def per_sample(self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor) -> Tensor:
        """Shapes: -> (N,). inputs: what the student was given. places: of the samples in the training set."""
        loss_N = self.loss.per_sample(student, labels_N)
        if self.loss_weight != 1.0:
            loss_N = self.loss_weight * loss_N
        if self.perturbation is not None:
            return loss_N
        regularized_N = self.regularized_per_sample(student, inputs, labels_N, places_N)
        if regularized_N is None:
            return loss_N
        return loss_N.add(regularized_N, alpha=self.regularizer_weight)

    def regularized_per_sample(
        self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor
    ) -> Tensor | None:
        """Of the regularizer alone, without its weight; None where none compares samples. Shapes: -> (N,)."""
        if self.regularizer is None:
            return None
        if self.live_teacher is not None:
            teacher = self.live_teacher(inputs)
        elif self.teacher is not None:
            teacher = self.teacher.take(places_N)
        else:
            return None
        return self.regularizer.per_sample(student, teacher, labels_N)

    def penalty(self, model: FederatedModel) -> Tensor | None:
        """Shapes: -> (); None where there is none."""
        regularized = None
        if self.weight_penalty is not None:
            regularized = self.regularizer_weight * self.weight_penalty.penalty(model)
        if self.correction is None:
            return regularized
        corrected = self.correction.penalty(model)
        return corrected if regularized is None else regularized + corrected

    def add_penalty_gradient(self, model: FederatedModel) -> None:
        """Apart from the samples' gradients: clipping and noise must not touch it (docs/privacy.md)."""
        if self.weight_penalty is not None:
            self.weight_penalty.add_gradient(model, weight=self.regularizer_weight)
        if self.correction is not None:
            self.correction.add_gradient(model, weight=1.0)


@torch.no_grad()
def add_to_gradients(parameters: Sequence[Tensor], values: Sequence[Tensor], *, weight: float) -> None:
    """weight * values, added to the gradients of those parameters that take one. Shapes: like them."""
    chosen = [(each, value) for each, value in zip(parameters, values, strict=True) if each.requires_grad]
    for each, _ in chosen:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
    gradients = [each.grad for each, _ in chosen if each.grad is not None]
    if gradients:
        torch._foreach_add_(gradients, [value for _, value in chosen], alpha=weight)
