"""What Chorale's networks share: normalization layers as a job chooses them, and the head at the end.

Only the normalization `batch` has buffers.
"""

from __future__ import annotations

from torch import nn

from chorale_models.model import Sizes
from crypto.errors import ConfigError

GROUP_CHANNELS = 16  # channels a group; Wu and He, "Group Normalization", table 3


def with_head(layers: list[nn.Module], width: int, classes: int) -> nn.Module:
    """The layers, and a linear one of that feature width behind them, which is named `head`."""
    network = nn.Sequential(*layers)
    network.add_module("head", nn.Linear(width, classes))
    return network


def image_channels(sizes: Sizes) -> int:
    """Raises ConfigError for samples that are no images."""
    if len(sizes.input_shape) != 3:
        raise ConfigError(f"input_shape: expected (channels, height, width), got {sizes.input_shape}")
    return sizes.input_shape[0]


def norm2d(kind: str, channels: int) -> nn.Module:
    """After a convolution: batch, group or none."""
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
