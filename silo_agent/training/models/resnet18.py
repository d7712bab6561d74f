"""ResNet-18 for 32x32 inputs: a 3x3 stem of stride 1 and no pooling before the blocks.

Source: He et al. 2015 (arXiv 1512.03385), basic blocks; the stem as in its CIFAR section 4.2.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from silo_agent.training.models.base import Backbone, initialize
from silo_agent.training.models.norm import norm2d

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the stage's first block
BLOCKS_PER_STAGE = 2


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, channels: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm2d(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm2d(norm, channels)
        self.shortcut = _shortcut(before, channels, stride=stride, norm=norm)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = relu(self.norm1(self.conv1(inputs)))
        return relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))


def resnet18(*, input_shape: tuple[int, ...], norm: str) -> Backbone:
    """For images of any size; feature width 512."""
    before, _ = STAGES[0]
    layers: list[nn.Module] = [nn.Conv2d(input_shape[0], before, 3, padding=1, bias=False)]
    layers += [norm2d(norm, before), nn.ReLU()]
    for channels, first_stride in STAGES:
        for block in range(BLOCKS_PER_STAGE):
            stride = first_stride if block == 0 else 1
            layers.append(BasicBlock(before, channels, stride=stride, norm=norm))
            before = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Backbone(body=initialize(nn.Sequential(*layers)), width=before)


def _shortcut(before: int, channels: int, *, stride: int, norm: str) -> nn.Module:
    if stride == 1 and before == channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(before, channels, 1, stride=stride, bias=False), norm2d(norm, channels))
