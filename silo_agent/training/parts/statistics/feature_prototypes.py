"""FedProto at a silo: what its trained model's features add up to by class, and the pull towards all silos'
mean.

Tan et al., AAAI 2022 (arXiv 2105.00243): the sums go over the whole training set in eval mode.
The regularizer is R = 1/D |h(x) - P[y]|^2 for a sample x of class y, with h what the head is given and P the
prototypes of the round before, which are constant; a class without one has R = 0. Eq. 7 measures from the
mean of a batch's features of a class; the authors' code and this one from each feature, whose mean over the
batch differs from that by the features' variance. strategies/parts/statistics/feature_prototypes.py says what
the sums do and what they leak.

N = samples, C = classes, D = feature width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.class_sums import class_sums
from silo_agent.training.base.passes import Outputs, Run
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.base import FederatedModel
from strategies.base import Array
from strategies.parts.statistics.feature_prototypes import prototypes_in


def feature_prototypes(setting: Setting, samples: Batches) -> Mapping[str, Array]:
    """Shapes: feature_sums (C, D) float64, class_counts (C,) int64; zero rows for classes that are not sent.

    Raises Cancelled.
    """
    sums = class_sums(setting, samples, has_products=False)
    is_sent_C = setting.sent_rows_C
    return {
        "feature_sums": np.where(is_sent_C[:, None], sums.features_CD, 0.0),
        "class_counts": np.where(is_sent_C, sums.counts_C, 0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PrototypePull:
    """Shapes: prototypes (C, D), is_known (C,) bool. model: whose head is given the compared features."""

    prototypes_CD: Tensor = field(repr=False)
    is_known_C: Tensor
    model: FederatedModel

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        moved_ND = self.model.embed(student.features_ND) - self.prototypes_CD[labels_N]
        return torch.where(self.is_known_C[labels_N], moved_ND.square().mean(dim=1), 0.0)


def prototype_pull(setting: Setting) -> PrototypePull:
    """Raises RemoteProtocolError for prototypes of another shape."""
    classes, width = setting.received.head.weight.shape
    found = prototypes_in(setting.work.state, classes=classes, width=width)
    return PrototypePull(
        prototypes_CD=torch.tensor(found.rows_CD, dtype=torch.float32, device=setting.device),
        is_known_C=torch.tensor(found.is_known_C, device=setting.device),
        model=setting.received,
    )


def no_teacher(setting: Setting) -> Run:
    """The prototypes are all that the model is compared with."""
    return lambda inputs: Outputs(features_ND=inputs.new_empty(0), logits_NC=inputs.new_empty(0))


def no_answers(setting: Setting, samples: Batches) -> Outputs:
    nothing_N0 = torch.empty((len(samples), 0), device=setting.device)
    return Outputs(features_ND=nothing_N0, logits_NC=nothing_N0)
