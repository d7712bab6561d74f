"""Boosted trees as a network: which input a node asks for, and what its leaves add to the score.

Nothing here has a gradient: rounds write the arrays (strategies/phases/trees.py). A node's children are
2 n + 1 and 2 n + 2.

N = samples, D = inputs, T = trees, K = trees side by side, M = nodes of a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chorale_models.model import Sizes, model
from chorale_models.networks.shapes import trees_shapes
from strategies.phases.trees import MISSING_BELOW


class Trees(nn.Module):
    """An input below MISSING_BELOW is missing. Of two classes the score is that of the second."""

    split_on: Tensor
    threshold: Tensor
    missing_left: Tensor
    value: Tensor
    base: Tensor

    def __init__(self, sizes: Sizes, *, trees: int, depth: int) -> None:
        super().__init__()
        self.depth, self.is_binary = depth, sizes.classes == 2
        for name, shape in trees_shapes(sizes, trees=trees, depth=depth).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=False))

    def forward(self, inputs: Tensor) -> Tensor:
        score_NK = self.scores(inputs, trees=self.value.shape[0])
        return torch.cat([torch.zeros_like(score_NK), score_NK], dim=1) if self.is_binary else score_NK

    def scores(self, inputs: Tensor, *, trees: int) -> Tensor:
        """Of the first trees and the base score. Shapes: (N, ...) -> (N, K)."""
        score_NK = self.base.expand(inputs.shape[0], -1)
        if trees == 0:
            return score_NK
        node_NTK = self.nodes(inputs, slice(0, trees), levels=self.depth)
        value_NTKM = self.value[None, :trees].expand(inputs.shape[0], -1, -1, -1)
        return score_NK + value_NTKM.gather(3, node_NTK[..., None])[..., 0].sum(dim=1)

    def nodes(self, inputs: Tensor, which: slice, *, levels: int) -> Tensor:
        """Where so many levels of splits lead. Shapes: (N, ...) -> (N, T, K) int64."""
        input_ND = inputs.flatten(1)
        arrays = (self.split_on[which], self.threshold[which], self.missing_left[which])
        node_NTK = torch.zeros(inputs.shape[0], *arrays[0].shape[:2], dtype=torch.int64, device=inputs.device)
        for _ in range(levels):
            split_on, threshold, missing_left = (
                each[None].expand(inputs.shape[0], -1, -1, -1).gather(3, node_NTK[..., None])[..., 0]
                for each in arrays
            )
            asked_NTK = split_on.long() - 1
            flat = asked_NTK.clamp(min=0).flatten(1)
            value_NTK = input_ND.gather(1, flat).reshape(asked_NTK.shape)
            # a missing value is below every threshold; ONNX Runtime has no choice between bools
            is_left = (value_NTK < threshold) & ((value_NTK >= MISSING_BELOW) | (missing_left > 0))
            child_NTK = 2 * node_NTK + 2 - is_left.long()
            node_NTK = torch.where(asked_NTK >= 0, child_NTK, node_NTK)
        return node_NTK


@model()
def trees(sizes: Sizes, *, trees: int, depth: int) -> nn.Module:
    """So many trees one after the other, side by side for three classes and more."""
    return Trees(sizes, trees=trees, depth=depth)
