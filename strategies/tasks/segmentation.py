"""Segmentation: one class for each pixel, or voxel. Cross-entropy or soft Dice, Dice and IoU.

Class 0 is the background. Dice: twice what prediction and truth have in common over the sum of their sizes.
Milletari et al. 2016 (arXiv 1606.04797); Taha and Hanbury 2015.
A round leaks over the silos' hold-outs the mean of the images' Dice (all classes but the background
together; 1 for an image without any, of which none is predicted), the share of pixels that are right, the
loss, and the total size; `overlap` besides how large each class is and how much of it was found.

C = classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from crypto.errors import ConfigError
from strategies.base import Array, FloatArray, PartOptions
from strategies.figure import Figure
from strategies.tasks.base import (
    LOSS_SUM,
    NO_NOISE,
    TESTED,
    DeclaredTask,
    Metric,
    Ratio,
    Sum,
    Target,
    TaskSizes,
    mean_of,
    shares,
)
from strategies.tasks.confusion import check_classes

DICE_SUM = Sum(name="dice_sum")  # of an image: 0 to 1
PIXELS = Sum(name="pixels_right")  # the share of an image's pixels


VOID = -1  # in a target: the pixel counts neither in the loss nor in a figure


class SegmentationOptions(PartOptions):
    """What is minimized, and which pixels count."""

    loss: Literal["cross-entropy", "dice", "both"] = Field(
        default="cross-entropy",
        description="mean over an image's pixels; 1 - soft Dice of the image, mean over its classes; or the "
        "mean of the two",
    )
    void: int | None = Field(
        default=None,
        ge=0,
        description="number in masks whose pixels count neither in the loss nor in a figure, such as 255; a "
        "silo's own data give -1; null: every pixel counts",
    )


class Overlap(Metric):
    """By class: what is common, what is predicted, what is true; in images, so that one of any size weighs
    1."""

    def __init__(self, classes: int) -> None:
        check_classes("overlap", classes)
        # each of the three rows of an image has shares that add up to 1 or less
        self.sums = (Sum(name="overlap", shape=(3, classes), per_record=math.sqrt(3), is_by_class=True),)

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """Means over the classes that are somewhere, but for the background."""
        return {
            f"mean_{name}": Figure(value=mean_of(rate_C[1:]), noise=self._anywhere(noise))
            for name, rate_C in _rates(sums).items()
        }

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """Shapes: (C,) each."""
        return {**self._with_ends(_rates(sums), noise)}


def _rates(sums: Mapping[str, Array]) -> dict[str, FloatArray]:
    """Over all images together."""
    common_C, predicted_C, true_C = np.maximum(np.asarray(sums["overlap"], np.float64), 0.0)
    return {
        "dice_by_class": shares(2 * common_C, predicted_C + true_C),
        "iou_by_class": shares(common_C, predicted_C + true_C - common_C),
    }


class Segmentation(DeclaredTask):
    """Targets: int64 in the input's shape without its channels. Outputs: (classes, *that shape) logits."""

    word = "segmentation"
    main = "dice"
    options: ClassVar[type[PartOptions]] = SegmentationOptions
    least_classes: ClassVar[int | None] = 2

    def __init__(
        self, sizes: TaskSizes, options: PartOptions | None = None, metrics: tuple[str, ...] = ()
    ) -> None:
        super().__init__(sizes, options, metrics)
        if len(sizes.input_shape) < 2:
            raise ConfigError(
                "input_shape: segmentation expects (channels, height, width) or (channels, depth, height, "
                f"width), got {sizes.input_shape}"
            )

    @property
    def target(self) -> Target:
        shape = self.sizes.input_shape[1:]
        low = 0 if self.void is None else VOID
        return Target(shape=shape, is_whole=True, low=low, high=self.sizes.classes - 1)

    @property
    def void(self) -> int | None:
        assert isinstance(self.chosen, SegmentationOptions)
        return self.chosen.void

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (DICE_SUM, PIXELS, TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        return {"overlap": lambda: Overlap(self.sizes.classes)}

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """dice: mean over images. pixel_accuracy: share of pixels."""
        return {"dice": Ratio(above="dice_sum"), "pixel_accuracy": Ratio(above="pixels_right")}

    def score(self, sums: Mapping[str, Array]) -> float:
        tested = float(sums["tested"])
        return min(max(float(sums["dice_sum"]) / tested, 0.0), 1.0) if tested > 0 else 0.0
