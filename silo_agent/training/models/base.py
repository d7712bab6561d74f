"""A model is a backbone and a linear head: every method needs the cut between the two. What backbones share.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from strategies.parts.heads import RAW, TRAINED
from strategies.recipe import Features, Head

SMALLEST_NORM = 1e-12  # a ReLU network may give an all-zero feature
GROUP_CHANNELS = 16  # channels a group; Wu and He, "Group Normalization", table 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """body: (N, *input_shape) -> (N, width)."""

    body: nn.Module
    width: int


class CutModel(nn.Module):
    """features(x) -> (N, D), logits(features) -> (N, C), forward(x) = logits(features(x)).

    Parameters are named body.* and head.*. A frozen head is a parameter that takes no gradient.
    With projected features there are projection.weight (C, D), which the head's input goes through, and
    scale (1,), which multiplies the logits. Source: FedETF, Li et al. 2023 (arXiv 2303.10058).
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        classes: int,
        head: Head = TRAINED,
        features: Features = RAW,
    ) -> None:
        super().__init__()
        self.body = backbone.body
        is_projected = features.is_projected
        self.projection = nn.Linear(backbone.width, classes, bias=False) if is_projected else None
        self.scale = nn.Parameter(torch.ones(1)) if is_projected else None
        self.head = nn.Linear(classes if is_projected else backbone.width, classes, bias=head.has_bias)
        self._is_unit = features.is_unit

    def features(self, inputs: Tensor) -> Tensor:
        """What the backbone gives, not normalized."""
        features_ND: Tensor = self.body(inputs)
        return features_ND

    def embed(self, features_ND: Tensor) -> Tensor:
        """What the head is given: projected and at unit length where the method says so."""
        projected = features_ND if self.projection is None else self.projection(features_ND)
        return normalize(projected, dim=1, eps=SMALLEST_NORM) if self._is_unit else projected

    def logits(self, features_ND: Tensor) -> Tensor:
        logits_NC: Tensor = self.head(self.embed(features_ND))
        return logits_NC if self.scale is None else self.scale * logits_NC

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits(self.features(inputs))


def norm2d(kind: str, channels: int) -> nn.Module:
    """The normalization that a job chooses, after a convolution: batch, group or none. Only `batch` has
    buffers."""
    return nn.BatchNorm2d(channels) if kind == "batch" else _stateless(kind, channels)


def norm1d(kind: str, width: int) -> nn.Module:
    """After a fully connected layer."""
    return nn.BatchNorm1d(width) if kind == "batch" else _stateless(kind, width)


def _stateless(kind: str, channels: int) -> nn.Module:
    if kind != "group":
        return nn.Identity()
    groups = max(1, channels // GROUP_CHANNELS)
    while channels % groups:  # as many of about 16 channels as divide them evenly
        groups -= 1
    return nn.GroupNorm(groups, channels)
