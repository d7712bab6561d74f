"""The loss of a round, as the recipe says: loss + mu R, or beta loss + (1 - beta) R."""

from __future__ import annotations

from functools import partial

import torch

from silo_agent.training.base.augmentation import augmentation_of
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss, WeightPenalty
from silo_agent.training.base.passes import Run, frozen_copy, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.computed_parts import computed_loss, computed_regularizer
from silo_agent.training.parts.regularizers.distillation import FeatureDistillation, log_feature_scale
from silo_agent.training.parts.regularizers.perturbation import proximal_perturbation


def loss_for(setting: Setting) -> SampleLoss:
    """The loss that the job's recipe names. Raises ConfigError if this silo has none of that name."""
    return computed_loss(setting.work.spec).train(setting)


def evaluation_loss_for(setting: Setting) -> SampleLoss:
    """The loss that a model is tested by: the recipe's, or another in its place. Raises ConfigError."""
    loss = computed_loss(setting.work.spec)
    return (loss.test or loss.train)(setting)


def local_loss(
    setting: Setting, samples: Batches, *, has_regularizer: bool = True, is_augmented: bool = True
) -> LocalLoss:
    """The recipe's loss over these samples, augmented as the job says. Raises ConfigError, Cancelled."""
    method, loss = setting.work.spec.method, loss_for(setting)
    kind = computed_regularizer(setting.work.spec) if has_regularizer else None
    augmentation = augmentation_of(setting.work) if is_augmented else None
    if kind is None:
        return LocalLoss(loss=loss, augmentation=augmentation)
    regularizer = kind.make(setting)
    loss_weight, weight = method.recipe.mix.weights(method.options)
    if isinstance(regularizer, WeightPenalty):
        return LocalLoss(
            loss=loss,
            loss_weight=loss_weight,
            augmentation=augmentation,
            weight_penalty=regularizer,
            regularizer_weight=weight,
        )
    perturbation = proximal_perturbation(setting) if method.recipe.mix.is_perturbed else None
    find = kind.teacher or received_teacher
    privacy = setting.work.spec.privacy
    is_one_step = privacy is not None and privacy.has_shared_noise  # which sees few of them
    if augmentation is not None or not samples.keeps_outputs or is_one_step:
        return LocalLoss(
            loss=loss,
            loss_weight=loss_weight,
            augmentation=augmentation,
            regularizer=regularizer,
            regularizer_weight=weight,
            live_teacher=torch.no_grad()(find(setting)),
            perturbation=perturbation,
        )
    teacher = kind.answers(setting, samples) if kind.answers else setting.outputs_of(find(setting), samples)
    if isinstance(regularizer, FeatureDistillation):
        log_feature_scale(
            setting.work, teacher.features_ND, loss_weight=loss_weight, regularizer_weight=weight
        )
    return LocalLoss(
        loss=loss,
        loss_weight=loss_weight,
        regularizer=regularizer,
        regularizer_weight=weight,
        teacher=teacher.filled,
        perturbation=perturbation,
    )


def received_teacher(setting: Setting) -> Run:
    """The model as it was received."""
    return partial(run_model, frozen_copy(setting.received))
