"""The teacher of a round: a model that does not learn, run once over the silo's samples.

Inputs are not augmented, so one pass serves every epoch. N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from silo_agent.batches import Tensors
from silo_agent.models.base import CutModel
from silo_agent.objective import Cancelled
from silo_agent.objectives.base import Outputs, run_model

PASS_BATCH = 512  # samples; bounds memory only, the outputs do not depend on it


def frozen_copy(model: CutModel) -> CutModel:
    """The same model in eval mode, out of reach of any gradient."""
    teacher = copy.deepcopy(model).eval()
    return teacher.requires_grad_(False)


@torch.no_grad()
def outputs_of(
    model: CutModel, samples: Tensors, *, is_cancelled: Callable[[], bool], is_private: bool = False
) -> Outputs:
    """One pass in eval mode over all samples, in their order. Raises Cancelled.

    is_private: the last batch is filled up, so that no sample's outputs depend on how many there are.
    """
    model.eval()
    parts = []
    for start in range(0, len(samples), PASS_BATCH):
        if is_cancelled():
            raise Cancelled("forward pass: no longer wanted")
        inputs, _ = samples.slice(start, start + PASS_BATCH)
        count = len(inputs)
        if is_private and count < PASS_BATCH:
            places_N = torch.arange(start, start + count, device=inputs.device)
            inputs, _ = samples.take(samples.filled_up(places_N, PASS_BATCH))
        outputs = run_model(model, inputs)
        parts.append(Outputs(features_ND=outputs.features_ND[:count], logits_NC=outputs.logits_NC[:count]))
    return Outputs(
        features_ND=_join([part.features_ND for part in parts]),
        logits_NC=_join([part.logits_NC for part in parts]),
    )


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)
