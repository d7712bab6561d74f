"""Distillation: what the model answered as it was received, kept.

The teacher is the received model, in eval mode, constant for the round. z are the model's own logits: cosines
where features have unit length. None of these adds anything to what leaves the silo.

Knowledge distillation: Hinton et al. 2015 (arXiv 1503.02531), section 2:
tau^2 KL( softmax(z_g/tau) || softmax(z/tau) ); tau^2 keeps the gradient's size where tau changes.

FedGKD (Yao et al. 2021, arXiv 2107.00051) is the same at tau 1 from the mean of the last global models, which
strategies/parts/gkd.py makes.

Not-true distillation: FedNTD, Lee et al. 2022 (arXiv 2106.03097): cross-entropy + mu KL( q_g || q ), where q
is the softmax at temperature tau over the C - 1 logits that are not of the sample's own class; FedDr+ writes
beta for mu. There is no factor tau^2 here; the authors' code has one, 9 at tau 3 (`tau_squared`:
Lee-Gihun/FedNTD at be00ee5, algorithms/fedntd/criterion.py, line 42). Of two classes only one is left and the
term is 0.

Logit distillation: FedDr+, Kim et al. 2024 (arXiv 2406.02355), Table 2 of the journal version:
mean_c (z_c - z_g,c)^2. FedCSD's term of the same name is a soft cross-entropy and another part (csd). On raw
features and a frozen simplex it is at most |f - f_g|^2 / (C - 1): feature directions outside the classes'
span are free.

Feature distillation: FedDr+, L_FD = 1/D |f - f_g|^2 of raw features, normalized on neither side; without
batch statistics the first step's distance is 0. How strong it is depends on the features' scale: its
curvature is rho = 2 (w_FD / w_loss) mean(f^2) times that of dot-regression. Each round's rho goes into the
silo's own log and nowhere else. Near 1, small networks without normalization lose feature length and
accuracy; beta 0.99 or 0.999 suits them better than 0.9.

N = samples, C = classes, D = feature width, K = logits compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from chorale.observability.logs import get_logger
from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.row_functions import mean_squares
from silo_agent.training.objective import Work
from strategies.parts.regularizers import NotTrueOptions, TemperatureOptions

log = get_logger("silo_agent.training.parts")

HIDDEN = -1e30  # of a class left out: beside it a logit is nothing, and its share is exactly 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeDistillation:
    """tau: temperature of both softmaxes."""

    tau: float

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        divergence_N = softened_divergence(student.logits_NC, teacher.logits_NC, tau=self.tau)
        return self.tau**2 * divergence_N


def knowledge_distillation(setting: Setting) -> KnowledgeDistillation:
    return KnowledgeDistillation(tau=setting.options(TemperatureOptions).tau)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTrueDistillation:
    """tau: temperature of both softmaxes. weight: of the divergence."""

    tau: float
    weight: float = 1.0

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        hidden_NC = torch.zeros_like(teacher.logits_NC).scatter_(1, labels_N[:, None], HIDDEN)
        student_NC, teacher_NC = (
            hidden_NC.add(outputs.logits_NC, alpha=1.0 / self.tau) for outputs in (student, teacher)
        )
        divergence_N = divergence(student_NC, teacher_NC)
        return divergence_N if self.weight == 1.0 else self.weight * divergence_N


def not_true_distillation(setting: Setting) -> NotTrueDistillation:
    options = setting.options(NotTrueOptions)
    return NotTrueDistillation(tau=options.tau, weight=options.tau**2 if options.tau_squared else 1.0)


class LogitDistillation:
    """Mean squared difference of the logits, over the classes."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return mean_squares(student.logits_NC, teacher.logits_NC)


class FeatureDistillation:
    """Mean squared difference of the raw features, over their coordinates."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return mean_squares(student.features_ND, teacher.features_ND)


def softened_divergence(student_NK: Tensor, teacher_NK: Tensor, *, tau: float) -> Tensor:
    """KL( softmax(teacher/tau) || softmax(student/tau) ). Shapes: -> (N,)."""
    return divergence(student_NK / tau, teacher_NK / tau)


def divergence(student_NK: Tensor, teacher_NK: Tensor) -> Tensor:
    """KL( softmax(teacher) || softmax(student) ). Shapes: -> (N,)."""
    log_NK = log_softmax(teacher_NK, dim=1)
    share_NK = log_NK.exp()
    return torch.addcmul(share_NK * log_NK, share_NK, log_softmax(student_NK, dim=1), value=-1.0).sum(dim=1)


def log_feature_scale(
    work: Work, features_ND: Tensor, *, loss_weight: float, regularizer_weight: float
) -> None:
    """Mean length of the features, and rho; infinite where the loss has no weight."""
    wide_ND = features_ND.double()
    ratio = regularizer_weight / loss_weight if loss_weight > 0 else float("inf")
    norm, rho = float(wide_ND.norm(dim=1).mean()), 2.0 * ratio * float(wide_ND.square().mean())
    log.info("feature scale", round=work.round, norm=round(norm, 4), rho=round(rho, 6))
