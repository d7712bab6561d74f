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

from torch import Tensor
from torch.nn.functional import softplus

from silo_agent.training.base.passes import Outputs, Run, frozen_copy
from silo_agent.training.base.setting import Setting, kept_model, model_to_keep
from silo_agent.training.models.row_functions import unit_rows
from strategies.base import METHOD

PREVIOUS = METHOD + "previous/"  # prefix in the local state: the model that this silo trained last


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContrast:
    """tau: temperature of both cosines. The teacher's features are z_p / |z_p| - z_g / |z_g|, because the
    difference of two cosines of one vector is one product."""

    tau: float

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        own_ND = unit_rows(student.features_ND.flatten(1))
        return softplus((own_ND * (teacher.features_ND / self.tau)).sum(dim=1))


def both_models(setting: Setting) -> Run:
    """From the received model's unit features to the own last model's. Raises ConfigError."""
    received, previous = frozen_copy(setting.received), kept_model(setting, PREVIOUS)

    def features_of(inputs: Tensor) -> Outputs:
        received_ND = unit_rows(received.features(inputs).flatten(1))
        own_ND = received_ND if previous is None else unit_rows(previous.features(inputs).flatten(1))
        features_ND = own_ND - received_ND
        return Outputs(features_ND=features_ND, logits_NC=features_ND.new_empty((len(inputs), 0)))

    return features_of


def keep_trained(setting: Setting) -> None:
    """The trained model is the next round's last one."""
    setting.work.local.propose(model_to_keep(setting.received, PREVIOUS))
