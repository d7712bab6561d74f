"""The temperature that makes a model's answers probabilities: softmax(answers / T).

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017 (arXiv 1706.04599),
section 4.2: T of the least cross-entropy over held-out samples. Here silos sum the cross-entropy at 27
temperatures, and T is the least of the parabola through the three sums about the smallest.
Leaks that curve: the federation's cross-entropy at each of the temperatures.

K = temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from strategies.base import Array
from strategies.figure import Figure
from strategies.tasks.base import LOSS_CLIP, NO_NOISE, Metric, Sum

FACTORS_K = 2.0 ** (np.arange(-12, 15) / 2.0)  # 1 / T: logits want about 1, cosines up to a hundred
LEAST, MOST = 1.0 / float(FACTORS_K[-1]), 1.0 / float(FACTORS_K[0])
TEMPERATURE = "temperature"


def largest_loss(classes: int) -> float:
    """Of one sample, at any temperature: twice that of chance where there are many classes."""
    return max(LOSS_CLIP, 2.0 * math.log(classes))


class Temperature(Metric):
    """Of a model with one answer a sample."""

    def __init__(self, classes: int) -> None:
        per_record = largest_loss(classes) * math.sqrt(len(FACTORS_K))
        self.sums = (Sum(name="tempered_losses", shape=FACTORS_K.shape, per_record=per_record),)

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """temperature: NaN where no sum is less than both beside it. Noise may choose any."""
        ends = self._anywhere(noise, low=LEAST, high=MOST)
        return {TEMPERATURE: Figure(value=least_temperature(sums["tempered_losses"]), noise=ends)}


def least_temperature(losses_K: Array) -> float:
    """Shapes: (K,), sums of losses by FACTORS_K."""
    place = int(np.argmin(losses_K))
    if not 0 < place < len(FACTORS_K) - 1:
        return math.nan
    before, least, after = (float(each) for each in losses_K[place - 1 : place + 2])
    bend = before - 2.0 * least + after
    moved = (before - after) / (2.0 * bend) if bend > 0 else 0.0  # in steps, at most half of one
    step = math.log(FACTORS_K[1] / FACTORS_K[0])
    return math.exp(-(math.log(FACTORS_K[place]) + moved * step))
