"""Networks without shortcuts: mlp, cnn and vgg11.

vgg11, for 32x32 inputs, is as the papers on federated CIFAR use it. Eight 3x3 convolutions with bias, two
fully connected layers of 512, feature width 512, features not negative. Plain unless the job asks for a norm.
Source: Simonyan and Zisserman (arXiv 1409.1556), configuration A; FedDr+ (arXiv 2406.02355) for the narrow
fully connected part.
"""

from __future__ import annotations

import math

from torch import nn

from chorale_models.model import Sizes, model
from chorale_models.networks.layers import image_channels, norm1d, norm2d, with_head

CNN_CHANNELS = (32, 64)
CNN_GRID = 4  # the maps are pooled to 4x4, so any image size fits
CNN_WIDTH = 128
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a pool ends each stage
VGG_WIDTH = 512


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
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels), nn.ReLU()]
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
        before = channels
    layers += [nn.AdaptiveAvgPool2d(CNN_GRID), nn.Flatten()]
    layers += [nn.Linear(before * CNN_GRID * CNN_GRID, CNN_WIDTH), norm1d(norm, CNN_WIDTH), nn.ReLU()]
    return with_head(layers, CNN_WIDTH, sizes.outputs)


@model(head="head")
def vgg11(sizes: Sizes, *, norm: str = "none") -> nn.Module:
    """For images of any size; 9,745,792 parameters in the body at three channels and no norm."""
    layers: list[nn.Module] = []
    before = image_channels(sizes)
    for stage in VGG_STAGES:
        for channels in stage:
            layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # 28x28 ends at 1x1 too
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(before, VGG_WIDTH), nn.ReLU(), nn.Linear(VGG_WIDTH, VGG_WIDTH), nn.ReLU()]
    return with_head(layers, VGG_WIDTH, sizes.outputs)
