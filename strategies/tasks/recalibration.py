"""How the log odds of what happened follow from those that a model says: logit P(y) = intercept + slope * L.

Cox, "Two further applications of a model for binary regression", Biometrika 1958. Slope 1 and intercept 0: it
is calibrated. A slope below 1: its chances are too extreme. In the large: the intercept at slope 1, above 0
where more happens than it says. The line is also how to recalibrate: intercept + slope * L are log odds that
fit. Fitted by maximum likelihood to histograms of scores, each sample at the middle of its bin.

B = bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strategies.base import FloatArray
from strategies.intervals import TWO_SIDED

STEPS = 50  # of Newton
CLOSE = 1e-10  # of a gradient, per sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """value: NaN where none is best. error: its standard error."""

    value: float
    error: float

    @property
    def sampling(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval for new records (Wald)."""
        if not math.isfinite(self.value):
            return None
        return self.value - TWO_SIDED * self.error, self.value + TWO_SIDED * self.error


NONE = Estimate(value=math.nan, error=math.nan)


def calibration_line(
    negative_B: FloatArray, positive_B: FloatArray, log_odds_B: FloatArray
) -> tuple[Estimate, Estimate]:
    """Slope and intercept. negative, positive: samples by bin, in the order of their log odds; where these
    part them, no finite line is best. Shapes: (B,)."""
    negatives, positives = np.flatnonzero(negative_B > 0), np.flatnonzero(positive_B > 0)
    if not len(negatives) or not len(positives):
        return NONE, NONE
    if negatives[-1] <= positives[0] or positives[-1] <= negatives[0]:
        return NONE, NONE
    given_BK = np.stack([log_odds_B, np.ones_like(log_odds_B)], axis=1)
    slope, intercept = _fit(negative_B, positive_B, given_BK, np.zeros_like(log_odds_B))
    return slope, intercept


def in_the_large(negative_B: FloatArray, positive_B: FloatArray, log_odds_B: FloatArray) -> Estimate:
    """The intercept where the slope is 1."""
    if min(negative_B.sum(), positive_B.sum()) <= 0:
        return NONE
    (found,) = _fit(negative_B, positive_B, np.ones((len(log_odds_B), 1)), log_odds_B)
    return found


def _fit(
    negative_B: FloatArray, positive_B: FloatArray, given_BK: FloatArray, offset_B: FloatArray
) -> list[Estimate]:
    """The coefficients of those K regressors, by Newton's method with halved steps."""
    count_B = negative_B + positive_B

    def loss(coefficient_K: FloatArray) -> float:
        logit_B = given_BK @ coefficient_K + offset_B
        return float((count_B * np.logaddexp(0.0, logit_B) - positive_B * logit_B).sum())

    found_K = np.zeros(given_BK.shape[1])
    # the last regressor is the constant: from the share that happened, as if all said the same
    mean = (count_B * offset_B).sum() / count_B.sum()
    found_K[-1] = math.log(positive_B.sum() / negative_B.sum()) - mean
    for _ in range(STEPS):
        chance_B = 1.0 / (1.0 + np.exp(-(given_BK @ found_K + offset_B)))
        gradient_K = given_BK.T @ (positive_B - count_B * chance_B)
        weight_B = count_B * chance_B * (1.0 - chance_B)
        information_KK = (given_BK * weight_B[:, np.newaxis]).T @ given_BK
        if np.abs(gradient_K).max() <= CLOSE * count_B.sum():
            error_K = np.sqrt(np.diagonal(np.linalg.inv(information_KK)))
            return [Estimate(value=float(v), error=float(e)) for v, e in zip(found_K, error_K, strict=True)]
        step_K, before = np.linalg.solve(information_KK, gradient_K), loss(found_K)
        while loss(found_K + step_K) > before and np.abs(step_K).max() > CLOSE:
            step_K = step_K / 2.0
        found_K = found_K + step_K
    return [NONE] * len(found_K)
