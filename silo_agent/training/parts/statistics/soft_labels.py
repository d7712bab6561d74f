"""FedDW at a silo: what its trained model answers, summed by true class; the regularizer made of the sums.

Liu et al., FedDW, Eqs. 4 to 6: softmax of each sample's logits without a temperature, misclassified
samples included, over the whole training set in eval mode. strategies/parts/statistics/soft_labels.py divides
the sums over all silos by the counts and says what that leaks.

The next round's regularizer, Eq. 11: the head's rows relate to one another as the soft labels say the classes
do, R = ||Omega - S||_F^2 / C^2 with S the softmax of each row of W W^T; no temperature, no scaling, no
normalized rows. Omega, the soft-label matrix of the round before, is data; in a method without the statistic
soft-labels it stays what `init_slm` says.
Both factors of W W^T are differentiated; nothing but the head's weight takes a gradient. A class whose
row is not known drops out of the sum, and C^2 stays.

Federated distillation (Jeong et al. 2018, arXiv 1811.11479): R = -sum_c Omega[y, c] log p[c] for a sample of
class y, with p its softmax output; a class whose row is not known has R = 0.

N = samples, C = classes, D = feature width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.passes import Outputs, finite_rows
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.base import FederatedModel
from strategies.base import Array
from strategies.parts.statistics.soft_labels import MatrixOptions, SoftLabelOptions, soft_labels_in


def soft_labels(setting: Setting, samples: Batches) -> Mapping[str, Array]:
    """Shapes: soft_labels (C, C) float64, class_counts (C,) int64; zero rows for classes that are not sent.

    A class that this silo lacks has a zero row of its own accord. In a private job an answer that is no
    number counts as zero: a refusal would reveal of one sample what no noise covers. Raises Cancelled.
    """
    classes, logits_NC = setting.work.spec.classes, setting.logits_of(setting.received, samples)
    weights_N = samples.weights_N(setting.weight_steps)
    sums_CC = probability_sums(
        logits_NC, samples.labels, weights_N=weights_N, classes=classes, is_private=setting.is_private
    ).numpy(force=True)
    counts_C = torch.bincount(samples.labels, weights=weights_N, minlength=classes).numpy(force=True)
    is_sent_C = setting.sent_rows_C
    return {
        "soft_labels": np.where(is_sent_C[:, None], sums_CC, 0.0),
        "class_counts": np.where(is_sent_C, counts_C, 0),
    }


def probability_sums(
    logits_NC: Tensor, labels_N: Tensor, *, weights_N: Tensor, classes: int, is_private: bool = False
) -> Tensor:
    """A: row i sums softmax(logits) over the samples of class i, each times its weight.

    Shapes: -> (C, C) float64.

    is_private: a sample whose softmax is no number counts as zero.
    """
    probabilities_NC = torch.softmax(logits_NC.double(), dim=1)
    if is_private:
        probabilities_NC = finite_rows(probabilities_NC)
    sums_CC = torch.zeros((classes, classes), dtype=torch.float64, device=logits_NC.device)
    return sums_CC.index_add_(0, labels_N, weights_N[:, None] * probabilities_NC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRelations:
    """Shapes: soft_labels (C, C), is_known (C,) bool. The same for every batch of a round. weight: of this
    round, in addition to mu."""

    soft_labels_CC: Tensor = field(repr=False)
    is_known_C: Tensor
    weight: float = 1.0
    has_rows: bool = field(init=False)  # asked of the device once, not in every step

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_rows", bool(self.is_known_C.any()))

    def penalty(self, model: FederatedModel) -> Tensor:
        """Shapes: -> (). Constant, so without a gradient, where no row is known."""
        if not self.has_rows:
            return torch.zeros((), device=self.soft_labels_CC.device)
        gap = relation_gap(model.head.weight, self.soft_labels_CC, is_known_C=self.is_known_C)
        return self.weight * gap

    def add_gradient(self, model: FederatedModel, *, weight: float) -> None:
        penalty = weight * self.penalty(model)
        if penalty.requires_grad:
            torch.autograd.backward(penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDistillation:
    """Shapes: soft_labels (C, C), is_known (C,) bool."""

    soft_labels_CC: Tensor = field(repr=False)
    is_known_C: Tensor

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        log_student_NC = torch.log_softmax(student.logits_NC, dim=1)
        distance_N = -(self.soft_labels_CC[labels_N] * log_student_NC).sum(dim=1)
        return torch.where(self.is_known_C[labels_N], distance_N, 0.0)


def class_relations(setting: Setting) -> ClassRelations:
    """The penalty of this round. Raises RemoteProtocolError for a state of another shape."""
    options, (soft_labels_CC, is_known_C) = setting.options(SoftLabelOptions), matrix_of(setting)
    decays = 0 if options.mu_decay_rounds is None else setting.work.round // options.mu_decay_rounds
    return ClassRelations(soft_labels_CC=soft_labels_CC, is_known_C=is_known_C, weight=0.1**decays)


def class_distillation(setting: Setting) -> ClassDistillation:
    """Raises RemoteProtocolError for a state of another shape."""
    soft_labels_CC, is_known_C = matrix_of(setting)
    return ClassDistillation(soft_labels_CC=soft_labels_CC, is_known_C=is_known_C)


def matrix_of(setting: Setting) -> tuple[Tensor, Tensor]:
    """Omega and which of its rows are known, of the round before. Shapes: -> (C, C), (C,) bool."""
    work = setting.work
    matrix = soft_labels_in(work.state, classes=work.spec.classes, options=setting.options(MatrixOptions))
    return (
        torch.tensor(matrix.rows_CC, dtype=torch.float32, device=setting.device),
        torch.tensor(matrix.is_known_C, device=setting.device),
    )


def relations_of(weight_CD: Tensor) -> Tensor:
    """S: softmax of each row of the Gram matrix. Shapes: (C, D) -> (C, C)."""
    return torch.softmax(weight_CD @ weight_CD.T, dim=1)


def relation_gap(weight_CD: Tensor, soft_labels_CC: Tensor, *, is_known_C: Tensor) -> Tensor:
    """The mean squared difference of all C^2 entries, unknown rows counting as none. Shapes: -> ()."""
    squares_CC = (soft_labels_CC - relations_of(weight_CD)) ** 2
    return (is_known_C[:, None] * squares_CC).sum() / soft_labels_CC.numel()
