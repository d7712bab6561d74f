"""Counts that figures of a closing evaluation are made of: strategies/tasks/ says what they tell.

N = samples, C = classes, K = classes with curves, B = bins, T = temperatures.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from strategies.tasks import calibration, curves, temperature


def class_log_odds(logits_NC: Tensor) -> Tensor:
    """log(p / (1 - p)) of each class; of two classes that of the second alone. Shapes: -> (N, K) float64."""
    log_NC = log_softmax(logits_NC.double(), dim=1)
    kept_NK = log_NC if log_NC.shape[1] > 2 else log_NC[:, 1:]
    return kept_NK - torch.log(-torch.expm1(kept_NK))  # infinite where p is 1


def score_counts(log_odds_NK: Tensor, is_of_class_NK: Tensor) -> Mapping[str, Tensor]:
    """For `curves`. Shapes: (N, K) float64, (N, K) bool -> scores (K, 2, B)."""
    share_NK = (torch.sigmoid(log_odds_NK) + torch.sigmoid(log_odds_NK / curves.FLATTENING)) / 2
    bins_NK = (share_NK * curves.BINS).long().clamp(0, curves.BINS - 1)
    place_K = torch.arange(bins_NK.shape[1], device=bins_NK.device)
    flat_NK = (2 * place_K + is_of_class_NK.long()) * curves.BINS + bins_NK
    counts = torch.bincount(flat_NK.flatten(), minlength=2 * curves.BINS * len(place_K))
    return {"scores": counts.reshape(len(place_K), 2, curves.BINS)}


def reliability(confidence_NA: Tensor, is_right_NA: Tensor, squared_error_N: Tensor) -> Mapping[str, Tensor]:
    """For `calibration`, of A answers a sample, which weigh one together. Shapes: -> (B,), brier_sum ()."""
    answers, bins = confidence_NA.shape[1], calibration.BINS
    bins_NA = (confidence_NA * bins).long().clamp(0, bins - 1).flatten()

    def binned(values_NA: Tensor | None) -> Tensor:
        weights = None if values_NA is None else values_NA.double().flatten()
        counts_B = torch.bincount(bins_NA, weights=weights, minlength=bins)
        return counts_B.double() / answers

    return {
        "calibration_tested": binned(None),
        "calibration_right": binned(is_right_NA),
        "calibration_confidence": binned(confidence_NA),
        "brier_sum": squared_error_N.double().sum(),
    }


def tempered_losses(logits_NC: Tensor, targets_N: Tensor) -> Mapping[str, Tensor]:
    """For `temperature`. Shapes: -> (T,) float64."""
    largest = temperature.largest_loss(logits_NC.shape[1])
    losses = [
        cross_entropy(logits_NC.double() * factor, targets_N, reduction="none").clamp(max=largest).sum()
        for factor in temperature.FACTORS_K.tolist()
    ]
    return {"tempered_losses": torch.stack(losses)}
