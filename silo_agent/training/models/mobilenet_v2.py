"""MobileNetV2 for 32x32 inputs: the first two strides of the original are 1.

Source: Sandler et al. 2018 (arXiv 1801.04381), table 2.
"""

from __future__ import annotations

from torch import Tensor, nn

from silo_agent.training.models.base import Backbone, initialize
from silo_agent.training.models.norm import norm2d

STEM = 32
WIDTH = 1280
# expansion, channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand, convolve each channel by itself, project; a shortcut where the shapes agree."""

    def __init__(self, before: int, channels: int, *, expansion: int, stride: int, norm: str) -> None:
        super().__init__()
        inner = before * expansion
        layers = _conv(before, inner, size=1, norm=norm) if expansion > 1 else []
        layers += _conv(inner, inner, size=3, stride=stride, groups=inner, norm=norm)
        layers += [nn.Conv2d(inner, channels, 1, bias=False), norm2d(norm, channels)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and before == channels

    def forward(self, inputs: Tensor) -> Tensor:
        projected: Tensor = self.layers(inputs)
        return inputs + projected if self.has_shortcut else projected


def mobilenet_v2(*, input_shape: tuple[int, ...], norm: str) -> Backbone:
    """For images of any size; feature width 1280."""
    layers = _conv(input_shape[0], STEM, size=3, norm=norm)
    before = STEM
    for expansion, channels, blocks, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(InvertedResidual(before, channels, expansion=expansion, stride=stride, norm=norm))
            before = channels
    layers += _conv(before, WIDTH, size=1, norm=norm)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Backbone(body=initialize(nn.Sequential(*layers)), width=WIDTH)


def _conv(
    before: int, channels: int, *, size: int, norm: str, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(before, channels, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [conv, norm2d(norm, channels), nn.ReLU6()]
