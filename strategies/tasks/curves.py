"""ROC and precision-recall curves, and the areas below them, from histograms of scores.

A score is the chance p that the model gives a class, and a bin an equal piece of the mean of p and of the
chance whose odds are the cube root of p's: equal pieces of p alone do not keep the scores of a confident
model apart. Any growing function of p has the same curves. What lies in one bin is not in order, so each area
has a bound that follows from the histograms: the area of the pooled scores is within it, ties included.
Noise is not in the bound.
Fawcett, "An introduction to ROC analysis", 2006. Leaks the scores of each class's samples, by bins.

K = classes with curves: one of two, else all. B = bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies.base import Array, FloatArray
from strategies.figure import Figure
from strategies.intervals import ratio_interval
from strategies.tasks.base import NO_NOISE, Metric, Sum, mean_of, shares
from strategies.tasks.confusion import check_classes
from strategies.tasks.recalibration import calibration_line, in_the_large

BINS = 200
FLATTENING = 3.0  # the root of the odds
HALVINGS = 60  # of a range of 200, in which all log odds of float64 chances are


class Curves(Metric):
    """scores: counts of samples by class, by whether they are of it, and by bin of the class's score."""

    is_by_subgroup = True

    def __init__(self, curves: int) -> None:
        check_classes("curves", curves)
        self.sums = (
            Sum(
                name="scores",
                shape=(curves, 2, BINS),
                per_record=math.sqrt(curves),  # one count of each curve
                is_count=True,
                is_by_class=True,
                at_most="tested",
            ),
        )

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """Means over the classes that have samples and are not all there is, and means of their bounds; of
        one curve also how well its scores are calibrated."""
        counts_K2B = _counts(sums)
        found = {**_roc(counts_K2B), **_precision_recall(counts_K2B)}
        anywhere = self._anywhere(noise)
        figures = {name: Figure(value=mean_of(value_K), noise=anywhere) for name, value_K in found.items()}
        if len(counts_K2B) == 1:
            figures |= self._calibration(counts_K2B[0], noise)
        if anywhere is not None:
            return figures
        # the variance of an area is at most A (1 - A) / min(positives, negatives), Birnbaum and Klose 1957
        fewest_K, area_K = counts_K2B.sum(axis=2).min(axis=1), found["roc_auc"]
        ends = ratio_interval(np.nan_to_num(area_K) * fewest_K, fewest_K, records=fewest_K)
        low, high = (mean_of(end_K[~np.isnan(area_K)]) for end_K in ends)
        return {**figures, "roc_auc": replace(figures["roc_auc"], sampling=(low, high))}

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """Shapes: areas and bounds (K,); roc_curve (K, B + 1, 2), false and true positive rate;
        precision_recall_curve (K, B + 1, 2), recall and precision; curve_thresholds (B + 1,), from 1 to 0:
        a sample is taken for the class where its probability is no smaller."""
        counts_K2B = _counts(sums)
        above_K2B = np.cumsum(counts_K2B[:, :, ::-1], axis=2)
        above_K2B = np.concatenate([np.zeros_like(above_K2B[:, :, :1]), above_K2B], axis=2)
        negatives_K1, positives_K1 = (above_K2B[:, side, -1:] for side in (0, 1))
        false_KB, true_KB = above_K2B[:, 0], above_K2B[:, 1]
        recall_KB = shares(true_KB, positives_K1 + 0 * true_KB)
        return {
            **self._with_ends({**_roc(counts_K2B), **_precision_recall(counts_K2B)}, noise),
            "roc_curve": np.stack([shares(false_KB, negatives_K1 + 0 * false_KB), recall_KB], axis=2),
            "precision_recall_curve": np.stack([recall_KB, shares(true_KB, true_KB + false_KB)], axis=2),
            "curve_thresholds": _edges()[::-1],
        }

    def _calibration(self, counts_2B: FloatArray, noise: Mapping[str, float]) -> dict[str, Figure]:
        middle_B = _log_odds((np.arange(BINS) + 0.5) / BINS)
        negative_B, positive_B = counts_2B
        slope, intercept = calibration_line(negative_B, positive_B, middle_B)
        found = {
            "calibration_slope": slope,
            "calibration_intercept": intercept,
            "calibration_in_the_large": in_the_large(negative_B, positive_B, middle_B),
        }
        anywhere = self._anywhere(noise, low=-math.inf, high=math.inf)
        return {
            name: Figure(value=each.value, noise=anywhere, sampling=None if anywhere else each.sampling)
            for name, each in found.items()
        }


def _edges() -> FloatArray:
    """The chances between bins, from 0 to 1. Shapes: -> (B + 1,)."""
    return np.concatenate([[0.0], _chance(_log_odds(np.linspace(0.0, 1.0, BINS + 1)[1:-1])), [1.0]])


def _log_odds(place_N: FloatArray) -> FloatArray:
    """The log odds at those places of the bins' axis, by bisection. Shapes: (N,) -> (N,)."""
    low_N, high_N = np.full(len(place_N), -100.0), np.full(len(place_N), 100.0)
    for _ in range(HALVINGS):
        middle_N = (low_N + high_N) / 2
        is_above = (_chance(middle_N) + _chance(middle_N / FLATTENING)) / 2 >= place_N
        low_N, high_N = np.where(is_above, low_N, middle_N), np.where(is_above, middle_N, high_N)
    return high_N


def _chance(log_odds_B: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds_B)))


def _counts(sums: Mapping[str, Array]) -> FloatArray:
    return np.maximum(np.asarray(sums["scores"], np.float64), 0.0)  # below 0 under noise alone


def _roc(counts_K2B: FloatArray) -> dict[str, FloatArray]:
    """The share of pairs of a positive and a negative in which the positive's score is higher, half of those
    in one bin; these may be all right or all wrong. Shapes: -> (K,) each."""
    negative_KB, positive_KB = counts_K2B[:, 0], counts_K2B[:, 1]
    below_KB = np.cumsum(negative_KB, axis=1) - negative_KB
    pairs_K = negative_KB.sum(axis=1) * positive_KB.sum(axis=1)
    tied_K = (positive_KB * negative_KB).sum(axis=1)
    return {
        "roc_auc": shares((positive_KB * below_KB).sum(axis=1) + tied_K / 2, pairs_K),
        "roc_auc_bound": shares(tied_K / 2, pairs_K),
    }


def _precision_recall(counts_K2B: FloatArray) -> dict[str, FloatArray]:
    """Average precision: the mean, over positives, of the precision at their score. Shapes: -> (K,) each.

    With T positives and F negatives in higher bins, and p and n in this one, it is at most
    (T + p) / (T + F + p) for each, and at least (T + k) / (T + F + n + k) for the k-th; the sum over k is
    bounded by an integral. The figure is the middle of the two.
    """
    negative_KB, positive_KB = (counts_K2B[:, side, ::-1] for side in (0, 1))
    false_KB = np.cumsum(negative_KB, axis=1) - negative_KB
    true_KB = np.cumsum(positive_KB, axis=1) - positive_KB
    low_before_KB = true_KB + false_KB + negative_KB + 0.5
    missed_KB = (false_KB + negative_KB) * np.log1p(positive_KB / low_before_KB)
    low_KB = np.maximum(positive_KB - missed_KB, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        best_KB = (true_KB + positive_KB) / (true_KB + false_KB + positive_KB)
    high_KB = np.where(positive_KB > 0, positive_KB * best_KB, 0.0)
    has_both_K = negative_KB.sum(axis=1) > 0
    positives_K = positive_KB.sum(axis=1) * has_both_K
    low_K, high_K = shares(low_KB.sum(axis=1), positives_K), shares(high_KB.sum(axis=1), positives_K)
    return {"pr_auc": (low_K + high_K) / 2, "pr_auc_bound": (high_K - low_K) / 2}
