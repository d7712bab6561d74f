"""Networks of depthwise separable convolutions, for 32x32 inputs: mobilenet, mobilenet_v2 and
mobilenet_v2_relu.

mobilenet: Howard et al. 2017 (arXiv 1704.04861), table 1, where stem and the first strided block have
stride 1 and 2 as in FedDr+ and FedBABU on CIFAR-100.
mobilenet_v2: Sandler et al. 2018 (arXiv 1801.04381), table 2; the first two strides of the original are 1.
mobilenet_v2_relu: as SphereFed (Dong et al. 2022) prints it: ReLU in place of ReLU6, also after the
projection of a block, and an expanding convolution in the first block too, whose expansion is 1.
"""

from __future__ import annotations

from torch import Tensor, nn

from chorale_models.model import Sizes, model
from chorale_models.networks.layers import norm2d, with_head
from chorale_models.networks.tables import STEM, V1_BLOCKS, V2_STAGES, V2_WIDTH, image_channels


@model(head="head")
def mobilenet(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 1024."""
    layers = _conv(image_channels(sizes), STEM, size=3, norm=norm, activation=nn.ReLU)
    before = STEM
    for channels, stride in V1_BLOCKS:
        layers += _conv(before, before, size=3, stride=stride, groups=before, norm=norm, activation=nn.ReLU)
        layers += _conv(before, channels, size=1, norm=norm, activation=nn.ReLU)
        before = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return with_head(layers, before, sizes.outputs)


class InvertedResidual(nn.Module):
    """Expand, convolve each channel by itself, project; a shortcut where the shapes agree.

    is_relu: ReLU in place of ReLU6, after the projection too, and an expansion by 1 is a layer like others.
    """

    def __init__(
        self, before: int, channels: int, *, expansion: int, stride: int, norm: str, is_relu: bool = False
    ) -> None:
        super().__init__()
        inner, activation = before * expansion, nn.ReLU if is_relu else nn.ReLU6
        is_expanded = expansion > 1 or is_relu
        layers = _conv(before, inner, size=1, norm=norm, activation=activation) if is_expanded else []
        layers += _conv(inner, inner, size=3, stride=stride, groups=inner, norm=norm, activation=activation)
        layers += [nn.Conv2d(inner, channels, 1, bias=False), norm2d(norm, channels)]
        layers += [nn.ReLU()] if is_relu else []
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and before == channels

    def forward(self, inputs: Tensor) -> Tensor:
        projected: Tensor = self.layers(inputs)
        return inputs + projected if self.has_shortcut else projected


@model(head="head")
def mobilenet_v2(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 1280."""
    return _v2(sizes, norm=norm, is_relu=False)


@model(head="head")
def mobilenet_v2_relu(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 1280."""
    return _v2(sizes, norm=norm, is_relu=True)


def _v2(sizes: Sizes, *, norm: str, is_relu: bool) -> nn.Module:
    activation = nn.ReLU if is_relu else nn.ReLU6
    layers = _conv(image_channels(sizes), STEM, size=3, norm=norm, activation=activation)
    before = STEM
    for expansion, channels, blocks, first_stride in V2_STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(
                InvertedResidual(
                    before, channels, expansion=expansion, stride=stride, norm=norm, is_relu=is_relu
                )
            )
            before = channels
    layers += _conv(before, V2_WIDTH, size=1, norm=norm, activation=activation)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return with_head(layers, V2_WIDTH, sizes.outputs)


def _conv(
    before: int,
    channels: int,
    *,
    size: int,
    norm: str,
    activation: type[nn.Module],
    stride: int = 1,
    groups: int = 1,
) -> list[nn.Module]:
    conv = nn.Conv2d(before, channels, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [conv, norm2d(norm, channels), activation()]
