"""The normalization that a job chooses for a backbone: batch, group or none."""

from __future__ import annotations

from torch import nn

GROUP_CHANNELS = 16  # channels a group; Wu and He, "Group Normalization", table 3


def norm2d(kind: str, channels: int) -> nn.Module:
    """After a convolution. Only `batch` has buffers."""
    return nn.BatchNorm2d(channels) if kind == "batch" else _stateless(kind, channels)


def norm1d(kind: str, width: int) -> nn.Module:
    """After a fully connected layer."""
    return nn.BatchNorm1d(width) if kind == "batch" else _stateless(kind, width)


def _stateless(kind: str, channels: int) -> nn.Module:
    return nn.GroupNorm(_groups(channels), channels) if kind == "group" else nn.Identity()


def _groups(channels: int) -> int:
    """As many groups of about 16 channels as divide the channels evenly."""
    groups = max(1, channels // GROUP_CHANNELS)
    while channels % groups:
        groups -= 1
    return groups
