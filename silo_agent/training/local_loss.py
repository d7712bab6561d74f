"""The loss of a round, as the recipe says: loss + mu R, or beta loss + (1 - beta) R."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from silo_agent.training.base.augmentation import augmentation_of
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import Comparison, LocalLoss, SampleLoss, WeightPenalty
from silo_agent.training.base.passes import Outputs, Run, frozen_copy, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.computed_parts import (
    ComputedRegularizer,
    computed_loss,
    computed_regularizers,
)
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
    method = setting.work.spec.method
    kinds = computed_regularizers(setting.work.spec) if has_regularizer else []
    augmentation = augmentation_of(setting.work) if is_augmented else None
    plain = LocalLoss(loss=loss_for(setting), augmentation=augmentation)
    if not kinds:
        return plain
    loss_weight, *weights = method.weights
    comparisons, penalties = list[Comparison](), list[tuple[float, WeightPenalty]]()
    for kind, weight in zip(kinds, weights, strict=True):
        regularizer = kind.make(setting)
        if isinstance(regularizer, WeightPenalty):
            penalties.append((weight, regularizer))
            continue
        teacher = _teacher(kind, setting, samples, is_augmented=augmentation is not None)
        if isinstance(regularizer, FeatureDistillation) and isinstance(teacher, Outputs):
            log_feature_scale(
                setting.work, teacher.features_ND, loss_weight=loss_weight, regularizer_weight=weight
            )
        comparisons.append(Comparison(regularizer=regularizer, weight=weight, teacher=teacher))
    return replace(
        plain,
        loss_weight=loss_weight,
        comparisons=tuple(comparisons),
        penalties=tuple(penalties),
        perturbation=proximal_perturbation(setting) if method.recipe.mix.is_perturbed else None,
    )


def _teacher(
    kind: ComputedRegularizer, setting: Setting, samples: Batches, *, is_augmented: bool
) -> Outputs | Run:
    """Its outputs for all samples; where each batch is another one, the teacher itself. Raises Cancelled."""
    find, privacy = kind.teacher or received_teacher, setting.work.spec.privacy
    is_one_step = privacy is not None and privacy.has_shared_noise  # which sees few of them
    if is_augmented or not samples.keeps_outputs or is_one_step:
        return torch.no_grad()(find(setting))
    answers = kind.answers(setting, samples) if kind.answers else setting.outputs_of(find(setting), samples)
    return answers.filled


def received_teacher(setting: Setting) -> Run:
    """The model as it was received."""
    return partial(run_model, frozen_copy(setting.received))
