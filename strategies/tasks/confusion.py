"""Which class was taken for which: the confusion matrix, and what follows from it by class.

Sensitivity is the share of a class that was found, specificity that of all others that were not taken for
it, precision the share of those taken for it that are of it; F1 is the harmonic mean of the first and last.
Leaks how many held-out samples of each class there are, and what the model takes them for.

C = classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from crypto.errors import ConfigError
from strategies.base import Array, FloatArray
from strategies.tasks.base import Metric, Sum, mean_of, shares

MAX_TABLE_CLASSES = 100  # a record of a phase is one message: curves of so many classes take 640 kB


def check_classes(metric: str, classes: int) -> None:
    """Raises ConfigError for more classes than a record has room for."""
    if classes > MAX_TABLE_CLASSES:
        raise ConfigError(
            f"task.metrics: {metric} is for up to {MAX_TABLE_CLASSES} classes, the job has {classes}"
        )


class Confusion(Metric):
    """Rows of `confusion` are what samples are, columns what they are taken for. One class a sample."""

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

    def figures(self, sums: Mapping[str, Array]) -> dict[str, float]:
        """Means over the classes that have samples; balanced accuracy is that of sensitivity."""
        return _means(_by_class(sums["confusion"]))

    def tables(self, sums: Mapping[str, Array]) -> dict[str, Array]:
        """Shapes: confusion (C, C), all others (C,)."""
        return {"confusion": np.asarray(sums["confusion"], np.float64), **_by_class(sums["confusion"])}


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

    def figures(self, sums: Mapping[str, Array]) -> dict[str, float]:
        return _means(_by_label(sums["confusion"]))

    def tables(self, sums: Mapping[str, Array]) -> dict[str, Array]:
        """Shapes: confusion (C, 2, 2), all others (C,)."""
        return {"confusion": np.asarray(sums["confusion"], np.float64), **_by_label(sums["confusion"])}


def _by_class(counts_CC: Array) -> dict[str, FloatArray]:
    right_C, total = np.diag(counts_CC), counts_CC.sum()
    held_C, answered_C = counts_CC.sum(axis=1), counts_CC.sum(axis=0)
    return _rates(right_C, held_C, answered_C, total)


def _by_label(counts_C22: Array) -> dict[str, FloatArray]:
    held_C, answered_C = counts_C22[:, 1].sum(axis=1), counts_C22[:, :, 1].sum(axis=1)
    return _rates(counts_C22[:, 1, 1], held_C, answered_C, counts_C22.sum(axis=(1, 2)))


def _rates(right_C: Array, held_C: Array, answered_C: Array, total: Array) -> dict[str, FloatArray]:
    """total: of all samples, by class or one number. NaN where there is nothing to have a share of."""
    others_C = total - held_C
    return {
        "sensitivity": shares(right_C, held_C),
        "specificity": shares(others_C - (answered_C - right_C), others_C),
        "precision": shares(right_C, answered_C),
        "f1": shares(2 * right_C, held_C + answered_C),
    }


def _means(rates: Mapping[str, FloatArray]) -> dict[str, float]:
    has_samples = ~np.isnan(rates["sensitivity"])
    means = {f"mean_{name}": mean_of(rate_C[has_samples]) for name, rate_C in rates.items()}
    return {"balanced_accuracy": means.pop("mean_sensitivity"), **means}
