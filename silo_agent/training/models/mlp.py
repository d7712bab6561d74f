"""Fully connected layers with ReLU; any input is flattened."""

from __future__ import annotations

import math

from torch import nn

from silo_agent.training.models.base import Backbone, initialize
from silo_agent.training.models.norm import norm1d


def mlp(*, input_shape: tuple[int, ...], hidden: tuple[int, ...], norm: str) -> Backbone:
    """One layer for each width in `hidden`; the last is the feature width."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), norm1d(norm, next_width), nn.ReLU()]
        width = next_width
    return Backbone(body=initialize(nn.Sequential(*layers)), width=width)
