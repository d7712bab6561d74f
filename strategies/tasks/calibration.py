"""Whether a model is right as often as it says: calibration by bins of its confidence, and the Brier score.

ECE: Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015:
the mean over samples of |share right - mean confidence| in the bin that the sample is in. Brier 1950.
Leaks how many held-out samples are in each bin and how many of them are right, over all classes together.

B = bins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategies.base import Array
from strategies.figure import AT_MOST, Figure
from strategies.tasks.base import NO_NOISE, Metric, Ratio, Sum, share, shares

BINS = 15  # of equal width, as in Guo et al. 2017 (arXiv 1706.04599)


class Calibration(Metric):
    """Of one answer a sample (classification: the class that it is taken for), or of one for each label; a
    sample's labels weigh one together. brier: the largest Brier score of one sample."""

    is_by_subgroup = True

    def __init__(self, *, brier: float, is_one_answer: bool) -> None:
        self.sums = (
            # shares of a sample's labels are no counts
            Sum(name="calibration_tested", shape=(BINS,), is_count=is_one_answer),
            Sum(name="calibration_right", shape=(BINS,), is_count=is_one_answer),
            Sum(name="calibration_confidence", shape=(BINS,)),
            Sum(name="brier_sum", per_record=brier),
        )
        self._brier = Ratio(above="brier_sum", high=brier)

    def figures(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Figure]:
        """ece, and brier: the mean over samples of the squared error of all probabilities. Noise makes each
        bin's gap larger, and so does chance where it has few samples."""
        tested_B = np.maximum(sums["calibration_tested"], 0.0)
        total = float(tested_B.sum())
        # sums of a bin, so that no mean of an empty one is taken
        gap_B = np.abs(sums["calibration_right"] - sums["calibration_confidence"])
        ece = Figure(value=share(gap_B.sum(), total), noise=self._anywhere(noise), bias=AT_MOST)
        return {"ece": ece, "brier": self._brier.figure(sums, noise)}

    def tables(self, sums: Mapping[str, Array], noise: Mapping[str, float] = NO_NOISE) -> dict[str, Array]:
        """reliability: samples, mean confidence and share right by bin of confidence. Shapes: (B, 3)."""
        tested_B = np.asarray(sums["calibration_tested"], np.float64)
        confidence_B = shares(sums["calibration_confidence"], tested_B)
        right_B = shares(sums["calibration_right"], tested_B)
        return {"reliability": np.stack([tested_B, confidence_B, right_B], axis=1)}
