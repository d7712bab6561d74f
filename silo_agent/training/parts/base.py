"""The words of what a silo minimizes: one pass through the model, one loss a sample.

Means are taken by the training loop, because per-sample gradients need the single losses; what
depends on the weights alone stands apart, because it has no per-sample gradient.
N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silo_agent.objective import Work
from silo_agent.training.models.base import CutModel
from silo_agent.training.parts.kept_pass import KeptPass
from strategies.recipe import PartOptions

Options = TypeVar("Options", bound=PartOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What one forward pass gives: the backbone's features, not normalized, and the logits."""

    features_ND: Tensor
    logits_NC: Tensor

    def take(self, chosen: Tensor | slice) -> Outputs:
        return Outputs(features_ND=self.features_ND[chosen], logits_NC=self.logits_NC[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a part may look at when it is made: the round's work and the model as it was received.

    kept: what an earlier phase of the round left for this one.
    """

    work: Work
    received: CutModel
    device: torch.device
    kept: KeptPass = field(default_factory=KeptPass)

    def options(self, part: type[Options]) -> Options:
        return self.work.spec.method.options_of(part)

    def tensor(self, name: str) -> Tensor | None:
        """A float array of the global state on the training's device; None where it is not there yet."""
        array = self.work.state.get(name)
        return None if array is None else torch.tensor(np.asarray(array, np.float32), device=self.device)

    @property
    def class_counts_C(self) -> Tensor:
        """This silo's own training samples by class; they stay here."""
        counts_C = np.bincount(self.work.data.train.labels, minlength=self.work.spec.classes)
        return torch.tensor(counts_C, dtype=torch.float32, device=self.device)

    @property
    def sent_rows_C(self) -> NDArray[np.bool_]:
        """Classes whose rows this silo sends. Before the sum of presence nobody knows who else holds a
        class, so no row is sent. In a private job all are: noise protects them, whoever else holds them."""
        if self.work.spec.privacy is not None:
            return np.ones(self.work.spec.classes, dtype=np.bool_)
        rows_C = self.work.class_rows
        return np.zeros(self.work.spec.classes, dtype=np.bool_) if rows_C is None else rows_C


class SampleLoss(Protocol):
    """A loss without a mean."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        """Shapes: labels (N,) int64 -> (N,) float32."""


@runtime_checkable
class SampleRegularizer(Protocol):
    """A regularizer that compares student and teacher, sample by sample. The teacher is constant."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        """Shapes: labels (N,) int64 -> (N,) float32."""


@runtime_checkable
class WeightPenalty(Protocol):
    """A regularizer of the weights alone: its exact gradient is the same for every batch."""

    def penalty(self, model: CutModel) -> Tensor:
        """Shapes: -> ()."""


LossFactory: TypeAlias = Callable[[Setting], SampleLoss]
RegularizerFactory: TypeAlias = Callable[[Setting], SampleRegularizer | WeightPenalty]


def run_model(model: CutModel, inputs: Tensor) -> Outputs:
    """Features once, logits from them."""
    features_ND = model.features(inputs)
    return Outputs(features_ND=features_ND, logits_NC=model.logits(features_ND))
