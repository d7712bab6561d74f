"""The line that makes a model's answers fit an institution's own records, and leaves nothing else of them.

Of two classes intercept + slope x log odds: Steyerberg et al., "Validation and updating of predictive
logistic regression models", Stat Med 2004. Of more the temperature 1 / slope: Guo et al., ICML 2017.

N = records, C = classes, B = log odds that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from chorale.spec.settings_file import check_values
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.predicting.answers import calibrated
from strategies.tasks.recalibration import NONE, Estimate, calibration_line
from strategies.tasks.temperature import LEAST, MOST

BATCH = 64  # records at once
HALVINGS = 60  # of a range of 2^13, to the last digit of float64
ALIKE = 1e-6  # spread of log odds, relative: a few digits of float32, of which no slope is found
LEAST_RECORDS = 100
LEAST_OF_CLASS = 20  # ten for each of the two coefficients: Peduzzi et al., J Clin Epidemiol 1996


def logits_of(
    model: FederatedModel, settings: DataSettings, job: JobSpec
) -> tuple[Tensor, Tensor, Sequence[str]]:
    """The model's of every record with a label, and these; what is wrong with some, or with others, left out.

    Shapes: -> (N, C) float64, (N,) int64. Raises ConfigError.
    """
    problems = Problems()
    data = load_data(settings, job, problems=problems)
    logits, targets = list[Tensor](), list[Tensor]()
    for samples in (data.train, data.holdout):
        plan = np.array_split(np.arange(len(samples)), math.ceil(len(samples) / BATCH) or 1)
        for batch in samples.read(plan):
            with torch.inference_mode():
                logits.append(model(torch.from_numpy(batch.features)).double())
            targets.append(torch.from_numpy(batch.labels))
    return torch.cat(logits), torch.cat(targets), problems.lines


def fitted_line(
    logits_NC: Tensor, target_N: Tensor, *, before: CalibrationLine | None, model: str
) -> tuple[CalibrationLine, Sequence[str]]:
    """The best line, and in words how the answers fit with it and with that of the file before. model: the
    file's SHA-256. Raises ConfigError where no line is known well enough."""
    slope, intercept = _fit(logits_NC, target_N)
    values = {"slope": slope.value, "intercept": intercept.value, "records": len(target_N), "model": model}
    line = check_values(CalibrationLine, values, source="the line that fits best")
    found = [f"{len(target_N)} records, to which the line is fitted:"]
    scores = (_scores(logits_NC, target_N, each) for each in (before, line))
    for what, one, other in zip(("log loss", "Brier score of all classes"), *scores, strict=True):
        found.append(f"  {what} {one:.6g} -> {other:.6g}")
    for what, each in (("slope", slope), ("intercept", intercept)):
        error = "" if math.isnan(each.error) else f" (standard error {each.error:.3g})"
        found.append(f"  {what} {each.value:.6g}{error}")
    return line, found


def _fit(logits_NC: Tensor, target_N: Tensor) -> tuple[Estimate, Estimate]:
    """Slope and intercept, which of more than two classes is 0."""
    records, count_C = len(target_N), torch.bincount(target_N, minlength=logits_NC.shape[1])
    if records < LEAST_RECORDS:
        raise ConfigError(f"expected at least {LEAST_RECORDS} records with a label, got {records}")
    if len(count_C) > 2:
        slope, intercept = _inverse_temperature(logits_NC, target_N), Estimate(value=0.0, error=math.nan)
    else:
        if (least := int(count_C.min())) < LEAST_OF_CLASS:
            raise ConfigError(f"expected at least {LEAST_OF_CLASS} records of each class, got {least} of one")
        log_odds_B, place_N = torch.unique(logits_NC[:, 1] - logits_NC[:, 0], return_inverse=True)
        width, slope, intercept = len(log_odds_B), NONE, NONE
        if log_odds_B[place_N].std() > ALIKE * log_odds_B.abs().max():
            counts = torch.bincount(target_N * width + place_N, minlength=2 * width).double().numpy()
            slope, intercept = calibration_line(counts[:width], counts[width:], log_odds_B.numpy())
    if not math.isfinite(slope.value):
        raise ConfigError("no line fits best: the answers part the classes, or are all alike")
    return slope, intercept


def _inverse_temperature(logits_NC: Tensor, target_N: Tensor) -> Estimate:
    """By bisection of the loss's derivative, which grows with the slope."""

    def derivative(slope: float) -> float:
        chance_NC = (slope * logits_NC).softmax(dim=1)
        return float((chance_NC * logits_NC).sum() - logits_NC.gather(1, target_N[:, None]).sum())

    low, high = 1.0 / MOST, 1.0 / LEAST
    if not derivative(low) < 0.0 < derivative(high):
        return NONE
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if derivative(middle) < 0.0 else (low, middle)
    chance_NC = (high * logits_NC).softmax(dim=1)
    information = float((chance_NC * logits_NC**2).sum() - (chance_NC * logits_NC).sum(dim=1).square().sum())
    return Estimate(value=high, error=1.0 / math.sqrt(information))


def _scores(logits_NC: Tensor, target_N: Tensor, line: CalibrationLine | None) -> tuple[float, float]:
    """Log loss, and the Brier score as the metric `calibration` has it."""
    found_NC = calibrated(logits_NC, line)
    squares_NC = (found_NC.softmax(dim=1) - one_hot(target_N, found_NC.shape[1])).square()
    return float(cross_entropy(found_NC, target_N)), float(squares_NC.sum(dim=1).mean())
