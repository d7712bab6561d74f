"""Loss and regularizer joined as the recipe says: loss + mu R, or beta loss + (1 - beta) R."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from silo_agent.training.batches import Tensors
from silo_agent.training.models.base import CutModel
from silo_agent.training.parts import loss_for, regularizer_for
from silo_agent.training.parts.base import Outputs, SampleLoss, SampleRegularizer, Setting, WeightPenalty
from silo_agent.training.parts.fd import FeatureDistillation, feature_scale, log_feature_scale
from silo_agent.training.parts.teacher import frozen_copy, outputs_of
from strategies.parts.regularizers import AdditiveWeight, ConvexWeight
from strategies.recipe import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLoss:
    """What one round of local training minimizes.

    per_sample needs the samples' outputs and places in the training set; penalty the weights alone.
    correction: of every step, by the server update; no mix weighs it.
    """

    loss: SampleLoss
    loss_weight: float = 1.0
    regularizer: SampleRegularizer | None = None
    weight_penalty: WeightPenalty | None = None
    regularizer_weight: float = 0.0
    teacher: Outputs | None = None
    correction: WeightPenalty | None = None

    def per_sample(self, student: Outputs, labels_N: Tensor, places_N: Tensor) -> Tensor:
        """Shapes: -> (N,). places: of the samples in the training set, for the teacher's outputs."""
        loss_N = self.loss_weight * self.loss.per_sample(student, labels_N)
        if self.regularizer is None or self.teacher is None:
            return loss_N
        regularized_N = self.regularizer.per_sample(student, self.teacher.take(places_N), labels_N)
        return loss_N + self.regularizer_weight * regularized_N

    def penalty(self, model: CutModel) -> Tensor | None:
        """Shapes: -> (); None where there is none."""
        regularized = None
        if self.weight_penalty is not None:
            regularized = self.regularizer_weight * self.weight_penalty.penalty(model)
        if self.correction is None:
            return regularized
        corrected = self.correction.penalty(model)
        return corrected if regularized is None else regularized + corrected


def local_loss(setting: Setting, samples: Tensors, *, teacher: Outputs | None = None) -> LocalLoss:
    """The recipe's loss over these samples. teacher: outputs of another teacher than the received model.

    Raises ConfigError, Cancelled.
    """
    loss, regularizer = loss_for(setting), regularizer_for(setting)
    if regularizer is None:
        return LocalLoss(loss=loss)
    loss_weight, regularizer_weight = _weights(setting)
    if isinstance(regularizer, WeightPenalty):
        return LocalLoss(
            loss=loss,
            loss_weight=loss_weight,
            weight_penalty=regularizer,
            regularizer_weight=regularizer_weight,
        )
    if teacher is None:
        received = frozen_copy(setting.received)
        work = setting.work
        is_private = work.spec.privacy is not None
        teacher = outputs_of(received, samples, is_cancelled=work.is_cancelled, is_private=is_private)
    if isinstance(regularizer, FeatureDistillation):
        scale = feature_scale(
            teacher.features_ND, loss_weight=loss_weight, regularizer_weight=regularizer_weight
        )
        log_feature_scale(setting.work, scale)
    return LocalLoss(
        loss=loss,
        loss_weight=loss_weight,
        regularizer=regularizer,
        regularizer_weight=regularizer_weight,
        teacher=teacher,
    )


def _weights(setting: Setting) -> tuple[float, float]:
    if setting.work.spec.method.recipe.mix is Mix.ADDITIVE:
        return 1.0, setting.options(AdditiveWeight).mu
    beta = setting.options(ConvexWeight).beta
    return beta, 1.0 - beta
