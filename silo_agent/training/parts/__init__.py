"""What a silo minimizes and what it computes beside, one file a part; a recipe names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crypto.errors import ConfigError
from silo_agent.training.parts.balanced_softmax import BalancedSoftmax
from silo_agent.training.parts.base import (
    LossFactory,
    RegularizerFactory,
    SampleLoss,
    SampleRegularizer,
    Setting,
    WeightPenalty,
)
from silo_agent.training.parts.class_relations import class_relations
from silo_agent.training.parts.client_adapted import ClientAdapted
from silo_agent.training.parts.cross_entropy import CrossEntropy
from silo_agent.training.parts.csd import class_similarity_distillation
from silo_agent.training.parts.dot_regression import dot_regression
from silo_agent.training.parts.fd import FeatureDistillation
from silo_agent.training.parts.kd import KnowledgeDistillation
from silo_agent.training.parts.ld import LogitDistillation
from silo_agent.training.parts.moon import ModelContrast
from silo_agent.training.parts.ntd import NotTrueDistillation
from silo_agent.training.parts.prox import prox
from silo_agent.training.parts.sphere_mse import SphereMse
from strategies.parts.losses import BalancedSoftmaxOptions
from strategies.parts.moon import MoonOptions
from strategies.parts.regularizers import TemperatureOptions
from strategies.recipe import Loss, Regularizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """How a loss is made. test: in its place where a model is tested, because a loss that depends on the
    silo's own classes says nothing about a hold-out."""

    train: LossFactory
    test: LossFactory | None = None


def plain(setting: Setting) -> CrossEntropy:
    return CrossEntropy()


LOSSES: Mapping[Loss, LossKind] = MappingProxyType(
    {
        Loss.CROSS_ENTROPY: LossKind(train=plain),
        Loss.SPHERE_MSE: LossKind(train=lambda _: SphereMse()),
        Loss.DOT_REGRESSION: LossKind(train=dot_regression),
        Loss.BALANCED_SOFTMAX: LossKind(
            train=lambda setting: BalancedSoftmax(
                setting.class_counts_C, balance=setting.options(BalancedSoftmaxOptions).balance
            ),
            test=plain,
        ),
        Loss.CLIENT_ADAPTED: LossKind(
            train=lambda setting: ClientAdapted(setting.class_counts_C), test=plain
        ),
    }
)
REGULARIZERS: Mapping[Regularizer, RegularizerFactory] = MappingProxyType(
    {
        Regularizer.PROX: prox,
        Regularizer.MOON: lambda setting: ModelContrast(tau=setting.options(MoonOptions).contrast_tau),
        Regularizer.KD: lambda setting: KnowledgeDistillation(tau=setting.options(TemperatureOptions).tau),
        Regularizer.NTD: lambda setting: NotTrueDistillation(tau=setting.options(TemperatureOptions).tau),
        Regularizer.LD: lambda _: LogitDistillation(),
        Regularizer.FD: lambda _: FeatureDistillation(),
        Regularizer.CSD: class_similarity_distillation,
        Regularizer.SOFT_LABELS: class_relations,
    }
)


def loss_for(setting: Setting) -> SampleLoss:
    """The loss that the job's recipe names. Raises ConfigError if this silo has none of that name."""
    return _kind(setting).train(setting)


def evaluation_loss_for(setting: Setting) -> SampleLoss:
    """The loss that a model is tested by: the recipe's, or another in its place. Raises ConfigError."""
    kind = _kind(setting)
    return (kind.test or kind.train)(setting)


def regularizer_for(setting: Setting) -> SampleRegularizer | WeightPenalty | None:
    """The regularizer that the job's recipe names. Raises ConfigError if this silo has none of that name."""
    name = setting.work.spec.method.recipe.regularizer
    if name is Regularizer.NONE:
        return None
    if name not in REGULARIZERS:
        known = ", ".join(["none", *REGULARIZERS])
        raise ConfigError(f"strategy: this silo has the regularizers {known}, got {name}")
    return REGULARIZERS[name](setting)


def _kind(setting: Setting) -> LossKind:
    name = setting.work.spec.method.recipe.loss
    if name not in LOSSES:
        raise ConfigError(f"strategy: this silo has the losses {', '.join(LOSSES)}, got {name}")
    return LOSSES[name]
