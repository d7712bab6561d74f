"""A model is a backbone and a linear head: every method needs the cut between the two.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """body: (N, *input_shape) -> (N, width)."""

    body: nn.Module
    width: int


class CutModel(nn.Module):
    """features(x) -> (N, D) and forward(x) = head(features(x)) -> (N, C).

    Parameters are named body.* and head.*.
    """

    def __init__(self, backbone: Backbone, *, classes: int) -> None:
        super().__init__()
        self.body = backbone.body
        self.head = nn.Linear(backbone.width, classes)

    def features(self, inputs: Tensor) -> Tensor:
        features_ND: Tensor = self.body(inputs)
        return features_ND

    def forward(self, inputs: Tensor) -> Tensor:
        logits_NC: Tensor = self.head(self.features(inputs))
        return logits_NC


def initialise(body: nn.Module) -> nn.Module:
    """He's initialisation for every layer that a ReLU follows; deep plain networks need it to start.

    Source: He et al. 2015 (arXiv 1502.01852), fan out for convolutions as in torchvision.
    """
    for layer in body.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return body
