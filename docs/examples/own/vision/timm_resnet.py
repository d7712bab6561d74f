"""A residual network of timm, for methods that need its last linear layer."""

from functools import partial

import timm
import torch
from timm.layers import GroupNorm

from chorale_models import model


@model(head="1.fc")
def resnet(sizes, *, architecture="test_resnet", scale=4):
    if architecture not in timm.list_models():  # create_model takes addresses and folders too
        raise ValueError("architecture: expected a name of timm.list_models()")
    norm = partial(GroupNorm, num_groups=4)
    channels, classes = sizes.input_shape[0], sizes.classes
    network = timm.create_model(architecture, in_chans=channels, num_classes=classes, norm_layer=norm)
    return torch.nn.Sequential(torch.nn.Upsample(scale_factor=scale), network)
