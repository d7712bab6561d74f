"""Networks without shortcuts: mlp, cnn, vgg11, vgg13, convnet7, lenet, lenet_linear and alexnet.

vgg11, for 32x32 inputs, is as the papers on federated CIFAR use it. Eight 3x3 convolutions with bias, two
fully connected layers of 512, feature width 512, features not negative. Plain unless the job asks for a norm.
Source: Simonyan and Zisserman (arXiv 1409.1556), configuration A; FedDr+ (arXiv 2406.02355) for the narrow
fully connected part.
vgg13, for 32x32 inputs: configuration B's ten convolutions and no fully connected layer but the head, as
SphereFed (Dong et al. 2022) has it. As printed there a pooling is missing: five end at the printed width 512.
convnet7: SphereFed's seven convolutions. Their padding is not printed; 1 ends at the printed width 1024.
lenet: LeCun et al. 1998, figure 2, as MOON (arXiv 2103.16257) and FedCSD (arXiv 2308.10162) run it: two 5x5
convolutions of 6 and 16 channels, layers of 120 and 84, ReLU and max-pooling.
lenet_linear: as FedDW's authors run it on CIFAR-10 (their models.py, CNN_cifar10): layers of 256 and 128, and
no ReLU between the last one and the head, so features have both signs.
alexnet: Krizhevsky 2014 (arXiv 1404.5997), the variant of one column that torchvision has, with its dropout.

A max-pooling stands before the ReLU that the papers have before it: values and gradients are the same to the
last bit, and the ReLU has a quarter of the numbers to look at.
"""

from __future__ import annotations

import math

from torch import nn

from chorale_models.model import Sizes, model
from chorale_models.networks.layers import norm1d, norm2d, with_head
from chorale_models.networks.tables import (
    ALEXNET,
    ALEXNET_GRID,
    ALEXNET_SMALLEST,
    ALEXNET_WIDTH,
    CNN_CHANNELS,
    CNN_GRID,
    CNN_WIDTH,
    CONVNET7,
    CONVNET7_GRID,
    LENET_CHANNELS,
    VGG13_STAGES,
    VGG_STAGES,
    VGG_WIDTH,
    check_size,
    image_channels,
    lenet_grid,
)


@model(head="head")
def mlp(sizes: Sizes, *, hidden: tuple[int, ...] = (64,), norm: str = "none") -> nn.Module:
    """Fully connected layers with ReLU, one for each width in `hidden`; the last is the feature width.

    Any input is flattened.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(sizes.input_shape)
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), norm1d(norm, next_width), nn.ReLU()]
        width = next_width
    return with_head(layers, width, sizes.outputs)


@model(head="head")
def cnn(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of any size; 3x3 convolutions, feature width 128."""
    layers: list[nn.Module] = []
    before = image_channels(sizes)
    for channels in CNN_CHANNELS:
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels)]
        layers += [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        before = channels
    layers += [nn.AdaptiveAvgPool2d(CNN_GRID), nn.Flatten()]
    layers += [nn.Linear(before * CNN_GRID * CNN_GRID, CNN_WIDTH), norm1d(norm, CNN_WIDTH), nn.ReLU()]
    return with_head(layers, CNN_WIDTH, sizes.outputs)


@model(head="head")
def vgg11(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of any size; 9,745,792 parameters in the body at three channels and no norm."""
    layers, before = _vgg(sizes, VGG_STAGES, norm=norm)
    layers += [nn.Linear(before, VGG_WIDTH), nn.ReLU(), nn.Linear(VGG_WIDTH, VGG_WIDTH), nn.ReLU()]
    return with_head(layers, VGG_WIDTH, sizes.outputs)


@model(head="head")
def vgg13(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 512."""
    layers, before = _vgg(sizes, VGG13_STAGES, norm=norm)
    return with_head(layers, before, sizes.outputs)


@model(head="head")
def convnet7(sizes: Sizes, *, norm: str = "batch") -> nn.Module:
    """For images of any size; feature width 1024."""
    layers: list[nn.Module] = []
    before = image_channels(sizes)
    for channels, stride in CONVNET7:
        layers += [
            nn.Conv2d(before, channels, 3, stride=stride, padding=1),
            norm2d(norm, channels),
            nn.ReLU(),
        ]
        before = channels
    layers += [nn.AdaptiveAvgPool2d(CONVNET7_GRID), nn.Flatten()]
    return with_head(layers, before * CONVNET7_GRID * CONVNET7_GRID, sizes.outputs)


@model(head="head")
def lenet(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of 16x16 and more; feature width 84."""
    layers, width = _lenet(sizes, "lenet", norm=norm)
    layers += [nn.Linear(width, 120), norm1d(norm, 120), nn.ReLU()]
    layers += [nn.Linear(120, 84), norm1d(norm, 84), nn.ReLU()]
    return with_head(layers, 84, sizes.outputs)


@model(head="head")
def lenet_linear(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of 16x16 and more; feature width 128, of both signs."""
    layers, width = _lenet(sizes, "lenet_linear", norm=norm)
    layers += [nn.Linear(width, 256), norm1d(norm, 256), nn.ReLU(), nn.Linear(256, 128)]
    return with_head(layers, 128, sizes.outputs)


@model(head="head")
def alexnet(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of 63x63 and more; feature width 4096."""
    check_size(sizes, "alexnet", smallest=ALEXNET_SMALLEST)
    layers: list[nn.Module] = []
    before = image_channels(sizes)
    for channels, size, stride, padding, is_pooled in ALEXNET:
        layers += [nn.Conv2d(before, channels, size, stride=stride, padding=padding)]
        layers.append(norm2d(norm, channels))
        layers += [nn.MaxPool2d(3, stride=2), nn.ReLU()] if is_pooled else [nn.ReLU()]
        before = channels
    layers += [nn.AdaptiveAvgPool2d(ALEXNET_GRID), nn.Flatten()]
    width = before * ALEXNET_GRID * ALEXNET_GRID
    for next_width in (ALEXNET_WIDTH, ALEXNET_WIDTH):
        layers += [nn.Dropout(), nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return with_head(layers, width, sizes.outputs)


def _vgg(sizes: Sizes, stages: tuple[tuple[int, ...], ...], *, norm: str) -> tuple[list[nn.Module], int]:
    """The convolutions, down to one number a channel, and how many channels there are."""
    layers: list[nn.Module] = []
    before = image_channels(sizes)
    for stage in stages:
        for channels in stage:
            layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels), nn.ReLU()]
            before = channels
        layers.insert(-1, nn.MaxPool2d(2, ceil_mode=True))  # 28x28 ends at 1x1 too
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()], before


def _lenet(sizes: Sizes, network: str, *, norm: str) -> tuple[list[nn.Module], int]:
    """The convolutions without padding, and how many numbers they end in."""
    layers: list[nn.Module] = []
    (height, width), before = lenet_grid(sizes, network), image_channels(sizes)
    for channels in LENET_CHANNELS:
        layers += [nn.Conv2d(before, channels, 5), norm2d(norm, channels), nn.MaxPool2d(2), nn.ReLU()]
        before = channels
    return [*layers, nn.Flatten()], before * height * width
