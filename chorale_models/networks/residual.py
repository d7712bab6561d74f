"""Networks with shortcuts, for 32x32 inputs: resnet18 and mobilenet_v2.

resnet18: a 3x3 stem of stride 1 and no pooling before the blocks. Source: He et al. 2015 (arXiv 1512.03385),
basic blocks; the stem as in its CIFAR section 4.2.
mobilenet_v2: the first two strides of the original are 1. Source: Sandler et al. 2018 (arXiv 1801.04381),
table 2.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from chorale_models.model import Sizes, model
from chorale_models.networks.layers import image_channels, norm2d, with_head

RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the stage's first block
RESNET_BLOCKS = 2  # of one stage
MOBILENET_STEM = 32
MOBILENET_WIDTH = 1280
# expansion, channels, blocks, stride of the first block
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions parallel to a shortcut."""

    def __init__(self, before: int, channels: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm2d(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm2d(norm, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            projected = nn.Conv2d(before, channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projected, norm2d(norm, channels))

    def forward(self, inputs: Tensor) -> Tensor:
        inner = relu(self.norm1(self.conv1(inputs)))
        return relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))


@model(head="head")
def resnet18(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 512."""
    before, _ = RESNET_STAGES[0]
    layers: list[nn.Module] = [nn.Conv2d(image_channels(sizes), before, 3, padding=1, bias=False)]
    layers += [norm2d(norm, before), nn.ReLU()]
    for channels, first_stride in RESNET_STAGES:
        for block in range(RESNET_BLOCKS):
            stride = first_stride if block == 0 else 1
            layers.append(BasicBlock(before, channels, stride=stride, norm=norm))
            before = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return with_head(layers, before, sizes.outputs)


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


@model(head="head")
def mobilenet_v2(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 1280."""
    layers = _conv(image_channels(sizes), MOBILENET_STEM, size=3, norm=norm)
    before = MOBILENET_STEM
    for expansion, channels, blocks, first_stride in MOBILENET_STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(InvertedResidual(before, channels, expansion=expansion, stride=stride, norm=norm))
            before = channels
    layers += _conv(before, MOBILENET_WIDTH, size=1, norm=norm)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return with_head(layers, MOBILENET_WIDTH, sizes.outputs)


def _conv(
    before: int, channels: int, *, size: int, norm: str, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(before, channels, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [conv, norm2d(norm, channels), nn.ReLU6()]
