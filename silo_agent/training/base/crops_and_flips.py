"""Crops and flips of an image by torch alone: the draws and the numbers of torchvision's transforms.

They are what most jobs ask for, and take 0.3 of torchvision's time over a small image (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from chorale.spec.samples.image_specs import HorizontalFlip, RandomCrop, TransformSpec, VerticalFlip

BORDERS = {"zeros": "constant", "reflect": "reflect", "edge": "replicate"}
WIDTH, HEIGHT = -1, -2

Move = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # of an image and its label
_ImageMove = Callable[[Tensor], Tensor]


def crops_and_flips(transforms: Sequence[TransformSpec]) -> Move | None:
    """All of them, one after the other, which leave labels as they are; None where one is something else.

    Shapes: of an image (channels, height, width) -> the same. It draws from torch's CPU generator.
    """
    moves: list[_ImageMove] = []
    for each in transforms:
        match each:
            case RandomCrop():
                moves.append(partial(_cropped, padding=each.padding, mode=BORDERS[each.border]))
            case HorizontalFlip():
                moves.append(partial(_flipped, axis=WIDTH, chance=each.chance))
            case VerticalFlip():
                moves.append(partial(_flipped, axis=HEIGHT, chance=each.chance))
            case _:
                return None

    def move(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        for each in moves:
            image = each(image)
        return image, label

    return move


def _cropped(image: Tensor, *, padding: int, mode: str) -> Tensor:
    """Back to its size, at one of (2 padding + 1)^2 places."""
    _, height, width = image.shape
    top, left = (int(torch.randint(0, 2 * padding + 1, ())) for _ in range(2))
    return pad(image, [padding] * 4, mode=mode)[:, top : top + height, left : left + width]


def _flipped(image: Tensor, *, axis: int, chance: float) -> Tensor:
    return image.flip(axis) if bool(torch.rand(1) < chance) else image
