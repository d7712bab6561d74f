"""How this silo computes each part that strategies/ declares: the only list of them on this side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import torch

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss, SampleRegularizer, TaskLoss, WeightPenalty
from silo_agent.training.base.passes import Outputs, Run
from silo_agent.training.base.setting import Setting
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_loss, build_regularizer
from silo_agent.training.models.state import FloatArray
from silo_agent.training.objective import Work
from silo_agent.training.parts.closing.ccvr import class_moments
from silo_agent.training.parts.closing.ffc import calibrate
from silo_agent.training.parts.given import GivenLoss, GivenRegularizer
from silo_agent.training.parts.losses.cosine import SphereMse, dot_regression
from silo_agent.training.parts.losses.softmax import balanced_softmax, client_adapted, scaled_softmax
from silo_agent.training.parts.personalization.adapted_model import adapted_model, train_for_adaptation
from silo_agent.training.parts.personalization.local_aggregation import aggregated_model, train_aggregated
from silo_agent.training.parts.personalization.own_model import own_model, train_beside_own_model
from silo_agent.training.parts.personalization.own_part import (
    model_with_own_part,
    train_head_first,
    train_with_own_part,
)
from silo_agent.training.parts.regularizers.csd import (
    class_similarity_distillation,
    ema_teacher,
    teacher_answers,
)
from silo_agent.training.parts.regularizers.distillation import (
    FeatureDistillation,
    LogitDistillation,
    knowledge_distillation,
    not_true_distillation,
)
from silo_agent.training.parts.regularizers.moon import ModelContrast, both_models, keep_trained
from silo_agent.training.parts.regularizers.prox import prox
from silo_agent.training.parts.server_updates import (
    control_change,
    direction,
    drift_correction,
    squared_length,
)
from silo_agent.training.parts.statistics.feature_prototypes import (
    feature_prototypes,
    no_answers,
    no_teacher,
    prototype_pull,
)
from silo_agent.training.parts.statistics.logit_prototypes import logit_prototypes
from silo_agent.training.parts.statistics.soft_labels import class_distillation, class_relations, soft_labels
from strategies.base import Array
from strategies.parts import losses, personalization, regularizers
from strategies.parts.closing.ccvr import CCVR
from strategies.parts.closing.ffc import CALIBRATE, FFC
from strategies.parts.closing.fine_tuning import FFC_FINE_TUNING
from strategies.parts.csd import CSD
from strategies.parts.gkd import GKD
from strategies.parts.regularizers import MoonOptions
from strategies.parts.server_updates.fedexp import FEDEXP
from strategies.parts.server_updates.fedopt import FEDOPT
from strategies.parts.server_updates.mean import FEDNOVA, WEIGHTED_MEAN
from strategies.parts.server_updates.scaffold import SCAFFOLD
from strategies.parts.statistics.feature_prototypes import FEATURE_PROTOTYPE_SUMS, FEATURE_PROTOTYPES
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES, PROTOTYPES_KIND
from strategies.parts.statistics.soft_labels import CLASS_DISTILLATION, CLASS_RELATIONS, SOFT_LABEL_SUMS
from strategies.recipe import Closing, Loss, Part, Personalization, Regularizer, ServerUpdate, Statistic

Values: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedLoss:
    """test: in its place where a model is tested, because a loss that depends on the silo's own classes says
    nothing about a hold-out."""

    train: Callable[[Setting], SampleLoss]
    test: Callable[[Setting], SampleLoss] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRegularizer:
    """teacher: another one than the received model, and what it gives for a batch. answers: of that one,
    for all samples, where another phase may have asked already. keep: what stays of the trained model for
    the next round."""

    make: Callable[[Setting], SampleRegularizer | WeightPenalty]
    teacher: Callable[[Setting], Run] | None = None
    answers: Callable[[Setting, Batches], Outputs] | None = None
    keep: Callable[[Setting], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedServerUpdate:
    """summed: quantities that replace or join delta and weight, from the delta and the number of steps.
    correction: added to the gradient of every local step; no mix weighs it."""

    summed: Callable[[Work, FloatArray, int], Values] | None = None
    correction: Callable[[Work], WeightPenalty] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPersonalization:
    """train: the received model, in place, and what else is kept; how many steps the sums are of.
    model: the silo's own, from the received one before it is trained and the local state."""

    train: Callable[[Setting, Batches, torch.Generator, LocalLoss], int]
    model: Callable[[Setting, Batches, SampleLoss], FederatedModel] | None = None


def plain(setting: Setting) -> TaskLoss:
    return TaskLoss(setting.task)


LOSSES: Mapping[Loss, ComputedLoss] = MappingProxyType(
    {
        losses.TASK_LOSS: ComputedLoss(train=plain),
        losses.SCALED_SOFTMAX: ComputedLoss(train=scaled_softmax),
        losses.SPHERE_MSE: ComputedLoss(train=lambda _: SphereMse()),
        losses.DOT_REGRESSION: ComputedLoss(train=dot_regression),
        losses.BALANCED_SOFTMAX: ComputedLoss(train=balanced_softmax, test=plain),
        losses.CLIENT_ADAPTED: ComputedLoss(train=client_adapted, test=plain),
    }
)
REGULARIZERS: Mapping[Regularizer, ComputedRegularizer | None] = MappingProxyType(
    {
        regularizers.NO_REGULARIZER: None,
        regularizers.PROX: ComputedRegularizer(make=prox),
        regularizers.MOON: ComputedRegularizer(
            make=lambda setting: ModelContrast(tau=setting.options(MoonOptions).contrast_tau),
            teacher=both_models,
            keep=keep_trained,
        ),
        regularizers.KD: ComputedRegularizer(make=knowledge_distillation),
        regularizers.NTD: ComputedRegularizer(make=not_true_distillation),
        regularizers.LD: ComputedRegularizer(make=lambda _: LogitDistillation()),
        regularizers.FD: ComputedRegularizer(make=lambda _: FeatureDistillation()),
        CSD: ComputedRegularizer(
            make=class_similarity_distillation, teacher=ema_teacher, answers=teacher_answers
        ),
        GKD: ComputedRegularizer(make=knowledge_distillation, teacher=ema_teacher, answers=teacher_answers),
        CLASS_RELATIONS: ComputedRegularizer(make=class_relations),
        CLASS_DISTILLATION: ComputedRegularizer(
            make=class_distillation, teacher=no_teacher, answers=no_answers
        ),
        FEATURE_PROTOTYPES: ComputedRegularizer(make=prototype_pull, teacher=no_teacher, answers=no_answers),
    }
)
SERVER_UPDATES: Mapping[ServerUpdate, ComputedServerUpdate] = MappingProxyType(
    {
        WEIGHTED_MEAN: ComputedServerUpdate(),
        FEDEXP: ComputedServerUpdate(summed=squared_length),
        FEDOPT: ComputedServerUpdate(),
        FEDNOVA: ComputedServerUpdate(summed=direction),
        SCAFFOLD: ComputedServerUpdate(summed=control_change, correction=drift_correction),
    }
)
# with training; called after it, when setting.received is the trained model
STATISTICS: Mapping[Statistic, Callable[[Setting, Batches], Values] | None] = MappingProxyType(
    {SOFT_LABEL_SUMS: soft_labels, LOGIT_PROTOTYPES: None, FEATURE_PROTOTYPE_SUMS: feature_prototypes}
)
OWN_PART = ComputedPersonalization(train=train_with_own_part, model=model_with_own_part)
PERSONALIZATIONS: Mapping[Personalization, ComputedPersonalization] = MappingProxyType(
    {
        personalization.NO_PERSONALIZATION: ComputedPersonalization(train=train_received),
        personalization.OWN_HEAD: OWN_PART,
        personalization.OWN_HEAD_FIRST: replace(OWN_PART, train=train_head_first),
        personalization.OWN_BODY: OWN_PART,
        personalization.OWN_NORMALIZATION: OWN_PART,
        personalization.ALONE: OWN_PART,
        personalization.OWN_MODEL: ComputedPersonalization(train=train_beside_own_model, model=own_model),
        personalization.ADAPTED: ComputedPersonalization(train=train_for_adaptation, model=adapted_model),
        personalization.LOCAL_AGGREGATION: ComputedPersonalization(
            train=train_aggregated, model=aggregated_model
        ),
    }
)
# what the phase `calibrate` sums
CALIBRATIONS: Mapping[Closing, Callable[[Setting], Values]] = MappingProxyType(
    {FFC: calibrate, FFC_FINE_TUNING: calibrate, CCVR: class_moments}
)
# phases of a part's own, by kind
PHASES: Mapping[str, Callable[[Setting], Values]] = MappingProxyType(
    {
        PROTOTYPES_KIND: logit_prototypes,
        CALIBRATE: lambda setting: computed(setting.work.spec.method.recipe.closing, CALIBRATIONS)(setting),
    }
)

P = TypeVar("P", bound=Part)
T = TypeVar("T")


def computed(part: P, table: Mapping[P, T]) -> T:
    """How this silo computes a part. Raises ConfigError if it does not."""
    if part not in table:
        kind = type(part).__name__
        raise ConfigError(f"strategy: of {kind} this silo has {', '.join(map(str, table))}, got {part}")
    return table[part]


def computed_loss(spec: JobSpec) -> ComputedLoss:
    """The job's loss, of a distribution where it names one. Raises ConfigError."""
    given = spec.strategy.loss
    if given is None:
        return computed(spec.method.recipe.loss, LOSSES)
    loss = GivenLoss(build_loss(spec, given))
    return ComputedLoss(train=lambda _: loss)


def computed_regularizers(spec: JobSpec) -> list[ComputedRegularizer]:
    """The job's regularizers, the first of a distribution where it names one. Raises ConfigError."""
    given, (first, *others) = spec.strategy.regularizer, spec.method.recipe.regularizers
    if given is None:
        found = [computed(first, REGULARIZERS)]
    else:
        regularizer = GivenRegularizer(build_regularizer(spec, given))
        found = [ComputedRegularizer(make=lambda _: regularizer)]
    found += [computed(each, REGULARIZERS) for each in others]
    return [each for each in found if each is not None]
