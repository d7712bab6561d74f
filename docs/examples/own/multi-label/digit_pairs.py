"""Which digits are in an image of two."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from chorale_models import Data, model


@model(head="6")
def pair_net(sizes, *, width=32):
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * width, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, sizes.classes),
    )


def pairs(sizes, *, samples=1500):
    images, digits = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).integers(len(digits), size=(samples, 2))
    images = np.float32(images.reshape(-1, 8, 8)[chosen] / 16).transpose(0, 2, 1, 3).reshape(-1, 1, 8, 16)
    labels = np.eye(sizes.classes, dtype=np.int64)[digits[chosen]].max(axis=1)
    return Data(train=list(zip(images, labels, strict=True)))
