"""A small convolutional network: two convolutions, one fully connected layer."""

from __future__ import annotations

from torch import nn

from silo_agent.training.models.base import Backbone, initialize
from silo_agent.training.models.norm import norm1d, norm2d

CHANNELS = (32, 64)
GRID = 4  # the maps are pooled to 4x4, so any image size fits
WIDTH = 128


def cnn(*, input_shape: tuple[int, ...], norm: str) -> Backbone:
    """For images of any size; 3x3 convolutions, feature width 128."""
    layers: list[nn.Module] = []
    before = input_shape[0]
    for channels in CHANNELS:
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels), nn.ReLU()]
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
        before = channels
    layers += [nn.AdaptiveAvgPool2d(GRID), nn.Flatten()]
    layers += [nn.Linear(before * GRID * GRID, WIDTH), norm1d(norm, WIDTH), nn.ReLU()]
    return Backbone(body=initialize(nn.Sequential(*layers)), width=WIDTH)
