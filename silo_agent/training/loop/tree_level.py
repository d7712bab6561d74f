"""What a silo sums for one level of a tree. Source: strategies/phases/trees.py.

N = samples, D = inputs, K = trees side by side, L = nodes of the level, B = bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from chorale_models.networks.trees import Trees
from silo_agent.training.base.setting import Setting
from strategies.base import Array
from strategies.phases.trees import (
    FARTHEST_GRADIENT,
    GRADIENTS,
    GROWN,
    HESSIANS,
    MISSING_BELOW,
    RECORDS,
    TreesPhase,
    trees_in,
)
from strategies.tasks.regression import Regression

LEAST_HESSIAN = 1e-16  # XGBoost's kRtEps of a probability of 0 or 1


@torch.no_grad()
def bin_sums(setting: Setting) -> Mapping[str, Array]:
    """Shapes: (K, L, D, B), or K numbers for the base score. As many records as were enrolled."""
    work = setting.work
    phase = work.spec.method.phase(work.phase_kind)
    assert isinstance(phase, TreesPhase)
    model = cast(Trees, setting.received.body)
    has_base, (tree, level) = GROWN in work.state, trees_in(work.state)
    shape = next(each for each in phase.quantities(work.context) if each.name == RECORDS).shape
    sums = {name: np.zeros(shape) for name in (GRADIENTS, HESSIANS, RECORDS)}
    edges_DE = torch.from_numpy(phase.edges(work.context)).to(setting.device)
    for batch in setting.train.passes(is_private=False):
        work_inputs = batch.inputs.flatten(1)
        score_NK = model.scores(batch.inputs, trees=tree)
        gradient_NK, hessian_NK = derivatives(score_NK.double(), batch.labels_N, phase.task)
        bin_ND = torch.searchsorted(edges_DE, work_inputs.T.contiguous(), right=True).T
        bin_ND = torch.where(work_inputs < MISSING_BELOW, edges_DE.shape[1] + 1, bin_ND)
        node_NK = model.nodes(batch.inputs, slice(tree, tree + 1), levels=level)[:, 0] - ((1 << level) - 1)
        if not has_base:
            bin_ND, node_NK = torch.zeros_like(bin_ND[:, :1]), torch.zeros_like(node_NK)
        for side in range(shape[0]):
            is_live_N = node_NK[:, side] >= 0
            place_ND = bin_ND[is_live_N] + shape[3] * torch.arange(shape[2], device=bin_ND.device)
            place_ND += shape[2] * shape[3] * node_NK[is_live_N, side, None]
            for name, value_N in (
                (GRADIENTS, gradient_NK[is_live_N, side]),
                (HESSIANS, hessian_NK[is_live_N, side]),
                (RECORDS, torch.ones(int(is_live_N.sum()), dtype=torch.float64, device=bin_ND.device)),
            ):
                weight_ND = value_N[:, None].expand(place_ND.shape)
                found = torch.bincount(
                    place_ND.reshape(-1), weight_ND.reshape(-1), minlength=shape[1] * shape[2] * shape[3]
                )
                sums[name][side] += found.reshape(shape[1:]).cpu().numpy()
    asked = {each.name for each in phase.quantities(work.context)}
    return {
        name: value.astype(np.int64) if name == RECORDS else value
        for name, value in sums.items()
        if name in asked
    }


def derivatives(score_NK: Tensor, labels_N: Tensor, task: object) -> tuple[Tensor, Tensor]:
    """Of XGBoost's losses: binary:logistic, multi:softprob, reg:squarederror. Shapes: (N, K) both."""
    if isinstance(task, Regression):
        middle, half = (task.low + task.high) / 2, (task.high - task.low) / 2
        error_NK = score_NK - ((labels_N.double().reshape(len(score_NK), -1) - middle) / half)
        return error_NK.clamp(-FARTHEST_GRADIENT, FARTHEST_GRADIENT), torch.ones_like(error_NK)
    if score_NK.shape[1] == 1:
        chance_NK = torch.sigmoid(score_NK)
        return chance_NK - labels_N[:, None], (chance_NK * (1.0 - chance_NK)).clamp(min=LEAST_HESSIAN)
    chance_NK = torch.softmax(score_NK, dim=1)
    is_class_NK = torch.nn.functional.one_hot(labels_N, score_NK.shape[1])
    return chance_NK - is_class_NK, (2.0 * chance_NK * (1.0 - chance_NK)).clamp(min=LEAST_HESSIAN)
