"""Multi-label: each of several labels holds or not. Cross-entropy of each, and the share of labels that are
right.

Leaks how much of the silos' hold-outs is right over all labels together, the loss, and their total size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from strategies.base import Array
from strategies.tasks.base import LOSS_SUM, TESTED, DeclaredTask, Metric, Ratio, Sum, Target
from strategies.tasks.calibration import Calibration
from strategies.tasks.confusion import LabelConfusion
from strategies.tasks.curves import Curves

RIGHT = Sum(name="labels_right")  # the share of a sample's labels


class MultiLabel(DeclaredTask):
    """Targets: a 0 or 1 for each label, int64. Outputs: a logit for each; `classes` says how many."""

    word = "multi-label"
    main = "label_accuracy"
    least_classes: ClassVar[int | None] = 1

    @property
    def target(self) -> Target:
        return Target(shape=(self.sizes.classes,), is_whole=True, low=0, high=1)

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (RIGHT, TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        return {
            "confusion": lambda: LabelConfusion(self.sizes.classes),
            "curves": lambda: Curves(self.sizes.classes),
            "calibration": lambda: Calibration(brier=1.0, is_one_answer=False),
        }

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """label_accuracy: the share of labels that are right, by the model's answer above 1/2 or below."""
        return {"label_accuracy": Ratio(above="labels_right")}

    def score(self, sums: Mapping[str, Array]) -> float:
        tested = float(sums["tested"])
        return float(sums["labels_right"]) / tested if tested > 0 else 0.0
