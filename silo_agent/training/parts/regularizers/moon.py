"""Model-contrastive learning: features come near the global model's and leave those of the own last model.

MOON, Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021 (arXiv 2103.16257), Eq. 3:
l_con = -log( exp(cos(z, z_g)/tau) / (exp(cos(z, z_g)/tau) + exp(cos(z, z_p)/tau)) ), added to cross-entropy:
loss + mu l_con. z are the student's features, z_g those of the model as it was received, z_p those of the
model that this silo sent last, which is its local state; both teachers are constant, in eval mode.
The paper puts a projection of two layers between backbone and head. There is none here: z is what the
backbone gives the head, or of a model without a named head its outputs. A job that wants one has it in the
model's own last layers (`hidden` of mlp).
Before its first applied round a silo has no model of its own. It takes the received one, whose cosine is the
same as z_g's, so l_con is the constant log 2 and pulls nowhere.
Adds nothing to what leaves the silo. N = samples, D = feature width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from silo_agent.training.base.passes import Outputs, Run, frozen_copy
from silo_agent.training.base.setting import Setting, kept_model, model_to_keep
from strategies.base import METHOD

PREVIOUS = METHOD + "previous/"  # prefix in the local state: the model that this silo trained last


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContrast:
    """tau: temperature of both cosines. The teacher's features are both models' side by side: (N, 2D)."""

    tau: float

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        global_ND, previous_ND = (
            normalize(each_ND.flatten(1), dim=1) for each_ND in teacher.features_ND.chunk(2, dim=1)
        )
        own_ND = normalize(student.features_ND.flatten(1), dim=1)
        # the difference of two cosines of one vector is one product, which half as many kernels compute
        gap_N = (own_ND * ((previous_ND - global_ND) / self.tau)).sum(dim=1)
        return softplus(gap_N)


def both_models(setting: Setting) -> Run:
    """Features of the received and of the own last model. Raises ConfigError."""
    received, previous = frozen_copy(setting.received), kept_model(setting, PREVIOUS)

    def features_of(inputs: Tensor) -> Outputs:
        received_ND = received.features(inputs)
        own_ND = received_ND if previous is None else previous.features(inputs)
        features_ND = torch.cat([received_ND, own_ND], dim=1)
        return Outputs(features_ND=features_ND, logits_NC=features_ND.new_empty((len(inputs), 0)))

    return features_of


def keep_trained(setting: Setting) -> None:
    """The trained model is the next round's last one."""
    setting.work.local.propose(model_to_keep(setting.received, PREVIOUS))
