"""Classification: one class a sample. Accuracy and cross-entropy.

Leaks the federation's accuracy and loss on the silos' hold-outs, and their total size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from strategies.base import Array
from strategies.tasks.base import LOSS_SUM, TESTED, DeclaredTask, Sum, Target, TaskSizes, base_figures

CORRECT = Sum(name="correct", is_count=True, at_most="tested")


class Classification(DeclaredTask):
    """Targets: int64, 0 to classes - 1."""

    word = "classification"
    has_classes = True
    least_classes: ClassVar[int | None] = 2

    @property
    def target(self) -> Target:
        return Target(is_whole=True, low=0, high=self.sizes.classes - 1)

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (CORRECT, TESTED, LOSS_SUM)

    def figures(self, sums: Mapping[str, Array]) -> dict[str, float]:
        """accuracy, loss (mean per tested sample; NaN where nothing was tested) and tested."""
        tested, correct = float(sums["tested"]), float(sums["correct"])
        accuracy = min(max(correct / tested, 0.0), 1.0) if tested > 0 else math.nan
        return {"accuracy": accuracy, **base_figures(sums)}

    def score(self, sums: Mapping[str, Array]) -> float:
        tested = float(sums["tested"])
        return float(sums["correct"]) / tested if tested > 0 else 0.0


CLASSIFICATION = Classification(TaskSizes(classes=2))
