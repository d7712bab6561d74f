"""Passes through a model: features and logits of a batch, and of all samples by a model that does not learn.

Where inputs are not augmented, one pass of a teacher serves every epoch.
N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from silo_agent.training.base.batches import Batches
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What one forward pass gives: the backbone's features, not normalized, and the logits."""

    features_ND: Tensor
    logits_NC: Tensor

    @property
    def filled(self) -> Outputs:
        """The same; of no sample one row of zeros, for what fills up a batch."""
        if len(self.logits_NC):
            return self
        features_ND, logits_NC = (
            each.new_zeros((1, *each.shape[1:])) for each in (self.features_ND, self.logits_NC)
        )
        return Outputs(features_ND=features_ND, logits_NC=logits_NC)

    def take(self, places_N: Tensor) -> Outputs:
        return Outputs(
            features_ND=self.features_ND.index_select(0, places_N),
            logits_NC=self.logits_NC.index_select(0, places_N),
        )


Run: TypeAlias = Callable[[Tensor], Outputs]  # of one batch, by models in eval mode that do not learn


def run_model(model: FederatedModel, inputs: Tensor) -> Outputs:
    """Features once, logits from them."""
    features_ND = model.features(inputs)
    return Outputs(features_ND=features_ND, logits_NC=model.logits(features_ND))


def frozen_copy(model: FederatedModel) -> FederatedModel:
    """The same model in eval mode, out of reach of any gradient. What no job trains is not copied."""
    untrained = {id(each): each for name, each in model.named_parameters() if not model.shares(name)}
    teacher = copy.deepcopy(model, untrained).eval()
    return teacher.requires_grad_(False)


@torch.no_grad()
def outputs_of(
    run: Run, samples: Batches, *, is_cancelled: Callable[[], bool], is_private: bool = False
) -> Outputs:
    """One pass over all samples, in their order. Raises Cancelled.

    is_private: all batches have one shape, so that no sample's outputs depend on how many there are.
    """
    parts, counts = list[Outputs](), list[int]()
    for batch in samples.passes(is_private=is_private):
        if is_cancelled():
            raise Cancelled("forward pass: no longer wanted")
        parts.append(run(batch.inputs))
        counts.append(batch.count)
    return Outputs(
        features_ND=torch.cat([part.features_ND[:count] for part, count in zip(parts, counts, strict=True)]),
        logits_NC=torch.cat([part.logits_NC[:count] for part, count in zip(parts, counts, strict=True)]),
    )


def finite_rows(rows_NK: Tensor) -> Tensor:
    """Rows with a value that is not finite become zero. Shapes: -> (N, K)."""
    return torch.where(rows_NK.isfinite().all(dim=1, keepdim=True), rows_NK, 0.0)
