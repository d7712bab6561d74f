"""What Chorale's networks share: normalization layers as a job chooses them, and the head at the end.

Only the normalization `batch` has buffers.
"""

from __future__ import annotations

from torch import nn

GROUP_CHANNELS = 16  # channels a group; Wu and He, "Group Normalization", table 3


def with_head(layers: list[nn.Module], width: int, classes: int) -> nn.Module:
    """The layers, and a linear one of that feature width behind them, which is named `head`."""
    network = nn.Sequential(*layers)
    network.add_module("head", nn.Linear(width, classes))
    return network


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
