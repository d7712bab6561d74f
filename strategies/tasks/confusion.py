"""Which class was taken for which: the confusion matrix, and what follows from it by class.

Sensitivity is the share of a class that was found, specificity that of all others that were not taken for
it, precision the share of those taken for it that are of it; F1 is the harmonic mean of the first and last.
Leaks how many held-out samples of each class there are, and what the model takes them for.

C = classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.errors import ConfigError
from strategies.base import Array, FloatArray
from strategies.figure import Figure
from strategies.tasks.base import NO_NOISE, Metric, Sum
from strategies.tasks.rates import Rate, rate_of

MAX_TABLE_CLASSES = 100  # a record of a phase is one message: curves of so many classes take 640 kB


def check_classes(metric: str, classes: int) -> None:
    """Raises ConfigError for more classes than a record has room for."""
    if classes > MAX_TABLE_CLASSES:
        raise ConfigError(
            f"task.metrics: {metric} is for up to {MAX_TABLE_CLASSES} classes, the job has {classes}"
        )


class Confusion(Metric):
    """Rows of `confusion` are what samples are, columns what they are taken for. One class a sample."""

    is_by_subgroup = True

    def __init__(self, classes: int) -> None:
        check_classes("confusion", classes)
        self.sums = (
            Sum(
                name="confusion",
                shape=(classes, classes),
                is_count=True,
                is_by_class=True,
                at_most="tested",
            ),
        )

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """Means over the classes that have samples; balanced accuracy is that of sensitivity."""
        return _means(self._rates(sums, noise))

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """Shapes: confusion (C, C), all others (C,)."""
        found = {"confusion": np.asarray(sums["confusion"], np.float64)}
        for name, rate in self._rates(sums, noise).items():
            found |= rate.tables(name)
        return found

    def _rates(self, sums: Mapping[str, Array], noise: Mapping[str, float]) -> dict[str, Rate]:
        counts_CC, others = np.asarray(sums["confusion"], np.float64), len(sums["confusion"]) - 1
        right_C = np.diag(counts_CC)
        missed_C, taken_C = counts_CC.sum(axis=1) - right_C, counts_CC.sum(axis=0) - right_C
        rest_C = counts_CC.sum() - right_C - missed_C - taken_C
        cells = _Cells(right_C, missed_C, taken_C, rest_C, summed=(1, others, others, others**2))
        return cells.rates(noise.get("confusion", 0.0))


class LabelConfusion(Metric):
    """A 2 x 2 matrix for each label: rows are whether a sample has it, columns what is answered."""

    def __init__(self, labels: int) -> None:
        check_classes("confusion", labels)
        self.sums = (
            Sum(
                name="confusion",
                shape=(labels, 2, 2),
                per_record=math.sqrt(labels),  # one count of each label
                is_count=True,
                is_by_class=True,
                at_most="tested",
            ),
        )

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """Means over the classes that have samples; balanced accuracy is that of sensitivity."""
        return _means(self._rates(sums, noise))

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """Shapes: confusion (C, 2, 2), all others (C,)."""
        found = {"confusion": np.asarray(sums["confusion"], np.float64)}
        for name, rate in self._rates(sums, noise).items():
            found |= rate.tables(name)
        return found

    def _rates(self, sums: Mapping[str, Array], noise: Mapping[str, float]) -> dict[str, Rate]:
        (rest_C, taken_C), (missed_C, right_C) = np.moveaxis(np.asarray(sums["confusion"], np.float64), 0, 2)
        return _Cells(right_C, missed_C, taken_C, rest_C).rates(noise.get("confusion", 0.0))


@dataclass(frozen=True, slots=True)
class _Cells:
    """What each class is taken for, and what is taken for it. Shapes: (C,) each. summed: of how many counts
    each of the four is the sum, as their noise is."""

    right_C: FloatArray
    missed_C: FloatArray
    taken_C: FloatArray
    rest_C: FloatArray
    summed: tuple[int, int, int, int] = (1, 1, 1, 1)

    def rates(self, deviation: float) -> dict[str, Rate]:
        """deviation: of the noise in one count."""
        right, missed, taken, rest = (count * deviation**2 for count in self.summed)
        union = rate_of(self.right_C, self.missed_C + self.taken_C, variances=(right, missed + taken))
        return {
            "sensitivity": rate_of(self.right_C, self.missed_C, variances=(right, missed)),
            "specificity": rate_of(self.rest_C, self.taken_C, variances=(rest, taken)),
            "precision": rate_of(self.right_C, self.taken_C, variances=(right, taken)),
            "f1": union.shown(lambda jaccard_C: 2 * jaccard_C / (1 + jaccard_C)),  # grows with it
        }


def _means(rates: Mapping[str, Rate]) -> dict[str, Figure]:
    has_samples_C = ~np.isnan(rates["sensitivity"].value_C)
    means = {f"mean_{name}": rate.mean(has_samples_C) for name, rate in rates.items()}
    return {"balanced_accuracy": means.pop("mean_sensitivity"), **means}
