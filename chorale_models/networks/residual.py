"""Networks of blocks with shortcuts: resnet18, resnet50, both as for ImageNet, and senet18.

He et al. 2015 (arXiv 1512.03385), table 1: basic blocks for 18 layers, bottlenecks for 50, whose stride is at
the 3x3 convolution. resnet18 and resnet50 are for 32x32 inputs: a 3x3 stem of stride 1 and no pooling before
the blocks, as in its section 4.2. resnet18_imagenet and resnet50_imagenet have the paper's own stem, a 7x7
convolution and a pooling, both of stride 2.
senet18: resnet18 with a squeeze-and-excitation module at the end of every block, before the shortcut is
added; reduction 16. Hu et al. 2018 (arXiv 1709.01507), figure 3; SphereFed (Dong et al. 2022) names it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

from chorale_models.model import Sizes, model
from chorale_models.networks.layers import norm2d, with_head
from chorale_models.networks.tables import (
    BASIC_BLOCKS,
    BOTTLENECKS,
    RESNET_STAGES,
    SQUEEZED,
    WIDENED,
    image_channels,
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions parallel to a shortcut. gate: of the block's output; none is the identity."""

    def __init__(
        self, before: int, channels: int, *, stride: int, norm: str, gate: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm2d(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm2d(norm, channels)
        self.gate = nn.Identity() if gate is None else gate
        self.shortcut = _shortcut(before, channels, stride=stride, norm=norm)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = relu(self.norm1(self.conv1(inputs)))
        return relu(self.gate(self.norm2(self.conv2(inner))) + self.shortcut(inputs))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions parallel to a shortcut."""

    def __init__(self, before: int, channels: int, *, stride: int, norm: str) -> None:
        super().__init__()
        wide = WIDENED * channels
        self.conv1 = nn.Conv2d(before, channels, 1, bias=False)
        self.norm1 = norm2d(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm2d(norm, channels)
        self.conv3 = nn.Conv2d(channels, wide, 1, bias=False)
        self.norm3 = norm2d(norm, wide)
        self.shortcut = _shortcut(before, wide, stride=stride, norm=norm)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = relu(self.norm2(self.conv2(relu(self.norm1(self.conv1(inputs))))))
        return relu(self.norm3(self.conv3(inner)) + self.shortcut(inputs))


class SqueezeExcitation(nn.Module):
    """Every channel times a number from 0 to 1 that follows from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // SQUEEZED)
        self.excite = nn.Linear(channels // SQUEEZED, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        means_NK = inputs.mean(dim=(2, 3))
        gates_NK: Tensor = self.excite(relu(self.squeeze(means_NK))).sigmoid()
        return inputs * gates_NK[:, :, None, None]


@model(head="head")
def resnet18(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 512."""
    return _staged(sizes, _small_stem(sizes, norm), BasicBlock, BASIC_BLOCKS, norm=norm)


@model(head="head")
def resnet18_imagenet(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of 32x32 and more; feature width 512."""
    return _staged(sizes, _large_stem(sizes, norm), BasicBlock, BASIC_BLOCKS, norm=norm)


@model(head="head")
def resnet50(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 2048."""
    return _staged(sizes, _small_stem(sizes, norm), Bottleneck, BOTTLENECKS, norm=norm, widened=WIDENED)


@model(head="head")
def resnet50_imagenet(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of 32x32 and more; feature width 2048."""
    return _staged(sizes, _large_stem(sizes, norm), Bottleneck, BOTTLENECKS, norm=norm, widened=WIDENED)


@model(head="head")
def senet18(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 512."""

    def gated(before: int, channels: int, *, stride: int, norm: str) -> nn.Module:
        return BasicBlock(before, channels, stride=stride, norm=norm, gate=SqueezeExcitation(channels))

    return _staged(sizes, _small_stem(sizes, norm), gated, BASIC_BLOCKS, norm=norm)


def _staged(
    sizes: Sizes,
    stem: list[nn.Module],
    make_block: Callable[..., nn.Module],
    blocks: tuple[int, ...],
    *,
    norm: str,
    widened: int = 1,
) -> nn.Module:
    """widened: output channels of a block for each one that its stage names."""
    layers, (before, _) = stem, RESNET_STAGES[0]
    for (channels, first_stride), count in zip(RESNET_STAGES, blocks, strict=True):
        for block in range(count):
            stride = first_stride if block == 0 else 1
            layers.append(make_block(before, channels, stride=stride, norm=norm))
            before = widened * channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return with_head(layers, before, sizes.outputs)


def _small_stem(sizes: Sizes, norm: str) -> list[nn.Module]:
    channels, _ = RESNET_STAGES[0]
    conv = nn.Conv2d(image_channels(sizes), channels, 3, padding=1, bias=False)
    return [conv, norm2d(norm, channels), nn.ReLU()]


def _large_stem(sizes: Sizes, norm: str) -> list[nn.Module]:
    channels, _ = RESNET_STAGES[0]
    conv = nn.Conv2d(image_channels(sizes), channels, 7, stride=2, padding=3, bias=False)
    # the same as ReLU first, to the last bit
    return [conv, norm2d(norm, channels), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU()]


def _shortcut(before: int, channels: int, *, stride: int, norm: str) -> nn.Module:
    if stride == 1 and before == channels:
        return nn.Identity()
    projected = nn.Conv2d(before, channels, 1, stride=stride, bias=False)
    return nn.Sequential(projected, norm2d(norm, channels))
