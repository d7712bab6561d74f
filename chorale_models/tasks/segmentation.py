"""Cross-entropy and soft Dice of pixels, and how much of what is segmented is right.

A target of -1 is void: the pixel counts nowhere.

C = classes, M = pixels or voxels of an image.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from chorale_models.model import Sizes
from chorale_models.task import Task
from strategies.tasks.segmentation import VOID

SMOOTHING = 1.0  # pixels: a class that is nowhere, and nowhere predicted, has a Dice of 1


class Segmentation(Task):
    """Outputs: logits (N, C, height, width), or with a depth; targets the same without C, int64."""

    def __init__(self, sizes: Sizes, *, loss: str = "cross-entropy", void: int | None = None) -> None:
        super().__init__(sizes)
        self.answer = (sizes.classes, *sizes.input_shape[1:])
        self._loss = loss

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each image by itself: its mean over pixels, or 1 - soft Dice, mean over classes."""
        entropy_NM = cross_entropy(outputs, targets, reduction="none", ignore_index=VOID).flatten(1)
        entropy_N = entropy_NM.sum(dim=1) / counted(targets)
        if self._loss == "cross-entropy":
            return entropy_N
        dice_N = soft_dice(outputs, targets)
        return 1.0 - dice_N if self._loss == "dice" else (entropy_N + 1.0 - dice_N) / 2

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        answer_NM, true_NM = outputs.argmax(dim=1).flatten(1), targets.flatten(1)
        is_right_NM = answer_NM == true_NM
        common_N = (is_right_NM & (true_NM > 0)).sum(dim=1).double()
        answered_N = ((answer_NM > 0) & (true_NM != VOID)).sum(dim=1)
        sizes_N = (answered_N + (true_NM > 0).sum(dim=1)).double()
        dice_N = torch.where(sizes_N > 0, 2 * common_N / sizes_N.clamp(min=1.0), 1.0)
        right_N = is_right_NM.double().sum(dim=1) / counted(targets)
        return {"dice_sum": dice_N.sum(), "pixels_right": right_N.sum()}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        classes, pixels = outputs.shape[1], targets[0].numel()
        is_counted = targets.flatten() != VOID
        answer, true = outputs.argmax(dim=1).flatten()[is_counted], targets.flatten()[is_counted]
        chosen = (true[answer == true], answer, true)
        counts = [torch.bincount(each, minlength=classes).double() for each in chosen]
        return {"overlap": torch.stack(counts) / pixels}


def counted(targets: Tensor) -> Tensor:
    """How many pixels of each image count, at least 1. Shapes: (N, *size) -> (N,)."""
    return (targets != VOID).flatten(1).sum(dim=1).clamp(min=1)


def soft_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Milletari et al. 2016, with probabilities in place of pixels, mean over classes. Shapes: -> (N,)."""
    is_counted_N1M = (targets != VOID).flatten(1).unsqueeze(1)
    chance_NCM = outputs.softmax(dim=1).flatten(2) * is_counted_N1M
    true_NCM = one_hot(targets.flatten(1).clamp(min=0), outputs.shape[1]).transpose(1, 2) * is_counted_N1M
    common_NC = (chance_NCM * true_NCM).sum(dim=2)
    sizes_NC = chance_NCM.sum(dim=2) + true_NCM.sum(dim=2)
    return ((2 * common_NC + SMOOTHING) / (sizes_NC + SMOOTHING)).mean(dim=1)
