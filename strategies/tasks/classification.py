"""Classification: one class a sample. Accuracy and cross-entropy.

Leaks the federation's accuracy and loss on the silos' hold-outs, and their total size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from strategies.base import Array
from strategies.tasks.base import (
    LOSS_SUM,
    TESTED,
    DeclaredTask,
    Metric,
    Ratio,
    Sum,
    Target,
    TaskSizes,
)
from strategies.tasks.calibration import Calibration
from strategies.tasks.confusion import Confusion
from strategies.tasks.curves import Curves
from strategies.tasks.temperature import TEMPERATURE, Temperature

CORRECT = Sum(name="correct", is_count=True, at_most="tested")


class Classification(DeclaredTask):
    """Targets: int64, 0 to classes - 1. Outputs: a logit for each class."""

    word = "classification"
    main = "accuracy"
    has_classes = True
    least_classes: ClassVar[int | None] = 2
    subgroup_sums = (CORRECT.name,)

    @property
    def target(self) -> Target:
        return Target(is_whole=True, low=0, high=self.sizes.classes - 1)

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (CORRECT, TESTED, LOSS_SUM)

    @property
    def further(self) -> Mapping[str, Callable[[], Metric]]:
        classes = self.sizes.classes
        return {
            "confusion": lambda: Confusion(classes),
            # of two classes one curve is the other's mirror image
            "curves": lambda: Curves(classes if classes > 2 else 1),
            "calibration": lambda: Calibration(brier=2.0, is_one_answer=True),
            TEMPERATURE: lambda: Temperature(classes),
        }

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        return {"accuracy": Ratio(above="correct")}

    def score(self, sums: Mapping[str, Array]) -> float:
        tested = float(sums["tested"])
        return float(sums["correct"]) / tested if tested > 0 else 0.0


CLASSIFICATION = Classification(TaskSizes(classes=2))
