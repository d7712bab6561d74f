"""Feature distillation: the received model's features, kept in angle and length.

FedDr+, Kim et al. 2024 (arXiv 2406.02355), L_FD = 1/D |f - f_g|^2 of raw features, normalized on neither
side. The teacher is the model as it was received, in eval mode, constant for the round; without batch
statistics the first step's distance is 0.

How strong it is depends on the features' scale: its curvature is rho = 2 (w_FD / w_loss) mean(f^2) times
that of dot-regression. Each round's rho goes into the silo's own log and nowhere else. Near 1, small networks
without normalization lose feature length and accuracy; beta 0.99 or 0.999 suits them better than 0.9.
Adds nothing to what leaves the silo. N = samples, D = feature width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chorale.observability.logs import get_logger
from silo_agent.objective import Work
from silo_agent.training.parts.base import Outputs

log = get_logger("silo_agent.training.parts")


class FeatureDistillation:
    """Mean squared difference of the raw features, over their coordinates."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return (student.features_ND - teacher.features_ND).square().mean(dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureScale:
    """norm: mean length of the features. rho: distillation's curvature relative to dot-regression's."""

    norm: float
    rho: float


def feature_scale(features_ND: Tensor, *, loss_weight: float, regularizer_weight: float) -> FeatureScale:
    """rho is infinite where the loss has no weight."""
    mean_square = float(features_ND.double().square().mean())
    ratio = regularizer_weight / loss_weight if loss_weight > 0 else float("inf")
    return FeatureScale(norm=float(features_ND.double().norm(dim=1).mean()), rho=2.0 * ratio * mean_square)


def log_feature_scale(work: Work, scale: FeatureScale) -> None:
    log.info("feature scale", round=work.round, norm=round(scale.norm, 4), rho=round(scale.rho, 6))
