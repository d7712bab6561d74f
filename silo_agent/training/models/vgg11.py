"""VGG11 for 32x32 inputs, as the papers on federated CIFAR use it.

Eight 3x3 convolutions with bias, two fully connected layers of 512, feature width 512, features
not negative. Plain unless the job asks for a norm. Source: Simonyan and Zisserman
(arXiv 1409.1556), configuration A; FedDr+ (arXiv 2406.02355) for the narrow fully connected part.
"""

from __future__ import annotations

from torch import nn

from silo_agent.training.models.base import Backbone, initialize
from silo_agent.training.models.norm import norm2d

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a pool ends each stage
WIDTH = 512


def vgg11(*, input_shape: tuple[int, ...], norm: str) -> Backbone:
    """For images of any size; 9,745,792 parameters in the body at three channels and no norm."""
    layers: list[nn.Module] = []
    before = input_shape[0]
    for stage in STAGES:
        for channels in stage:
            layers += [nn.Conv2d(before, channels, 3, padding=1), norm2d(norm, channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # 28x28 ends at 1x1 too
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(before, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return Backbone(body=initialize(nn.Sequential(*layers)), width=WIDTH)
