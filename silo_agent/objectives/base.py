"""The words of a loss: one pass through the model, one loss a sample.

Means are taken by the training loop, because per-sample gradients need the single losses.
N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from silo_agent.models.base import CutModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What one forward pass gives: the cut and the end."""

    features_ND: Tensor
    logits_NC: Tensor


class SampleLoss(Protocol):
    """A loss without a mean."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        """Shapes: labels (N,) int64 -> (N,) float32."""


def run_model(model: CutModel, inputs: Tensor) -> Outputs:
    """Features once, logits from them."""
    features_ND = model.features(inputs)
    return Outputs(features_ND=features_ND, logits_NC=model.head(features_ND))
