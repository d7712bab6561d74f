"""What a silo minimizes: one loss a sample, and what depends on the weights alone.

Samples of a job with random transforms are transformed first, and a teacher is then asked about the batch
as it is trained on, because every batch is another one.
Means are taken by the training loop, because per-sample gradients need the single losses; what
depends on the weights alone stands apart, because it has no per-sample gradient.
N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from chorale_models.task import Task
from crypto.errors import ConfigError
from silo_agent.training.base.augmentation import Augmentation
from silo_agent.training.base.batches import Batch
from silo_agent.training.base.passes import Outputs, Run
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
class Comparison:
    """A regularizer of samples, with its weight.

    teacher: its outputs for the whole training set; where samples are augmented or too many, what gives those
    for a batch.
    """

    regularizer: SampleRegularizer
    weight: float
    teacher: Outputs | Run

    def per_sample(self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor) -> Tensor:
        """Without the weight. Shapes: -> (N,)."""
        answers = self.teacher
        teacher = answers.take(places_N) if isinstance(answers, Outputs) else answers(inputs)
        return self.regularizer.per_sample(student, teacher, labels_N)

    def terms(
        self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor
    ) -> list[tuple[float, Tensor]]:
        """As LocalLoss has them: this one alone."""
        return [(1.0, self.per_sample(student, inputs, labels_N, places_N))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLoss:
    """What one round of local training minimizes.

    per_sample needs the samples' outputs and places in the training set; penalty the weights alone.
    penalties: each with its weight. augmentation: what samples go through first. perturbation: what the one
    comparison's gradient is for, in place of the step.
    """

    loss: SampleLoss
    loss_weight: float = 1.0
    comparisons: tuple[Comparison, ...] = ()
    penalties: tuple[tuple[float, WeightPenalty], ...] = ()
    augmentation: Augmentation | None = None
    perturbation: Perturbation | None = None

    def augmented(self, batch: Batch, *, step: int) -> Batch:
        """The batch as the student and its teacher are given it. step: the epoch, or whatever else counts
        how often a sample was drawn."""
        return batch if self.augmentation is None else self.augmentation(batch, step=step)

    def per_sample(self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor) -> Tensor:
        """Shapes: -> (N,). inputs: what the student was given. places: of the samples in the training set."""
        (weight, loss_N), *others = self.terms(student, inputs, labels_N, places_N)
        if weight != 1.0:
            loss_N = weight * loss_N
        for weight, term_N in others:
            loss_N = loss_N.add(term_N, alpha=weight)
        return loss_N

    def terms(
        self, student: Outputs, inputs: Tensor, labels_N: Tensor, places_N: Tensor
    ) -> list[tuple[float, Tensor]]:
        """What `per_sample` adds up, each with its weight: the loss, then the comparisons."""
        compared = self.comparisons if self.perturbation is None else ()
        return [
            (self.loss_weight, self.loss.per_sample(student, labels_N)),
            *((each.weight, each.per_sample(student, inputs, labels_N, places_N)) for each in compared),
        ]

    def penalty(self, model: FederatedModel) -> Tensor | None:
        """Shapes: -> (); None where there is none."""
        weighed = [weight * penalty.penalty(model) for weight, penalty in self.penalties]
        return torch.stack(weighed).sum() if weighed else None

    def add_penalty_gradient(self, model: FederatedModel) -> None:
        """Apart from the samples' gradients: clipping and noise must not touch it (docs/privacy.md)."""
        for weight, penalty in self.penalties:
            penalty.add_gradient(model, weight=weight)


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
