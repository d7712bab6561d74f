"""Which parts do not go together, and why: a job with such a combination is refused at submission."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from crypto.errors import ConfigError
from strategies.parts.soft_labels import InitialSoftLabels, SoftLabelOptions
from strategies.recipe import (
    Closing,
    Features,
    Head,
    Loss,
    Mix,
    OptionValue,
    Own,
    Recipe,
    Regularizer,
    ServerUpdate,
    StatisticName,
    options_of,
)

UNIT_HEADS = (Head.FROZEN_ETF, Head.FROZEN_ORTHONORMAL)  # one vector of unit length for each class

BY_STEPS = (ServerUpdate.FEDNOVA, ServerUpdate.SCAFFOLD)  # read the local steps out of a delta

SOFTMAX_LOSSES = (Loss.CROSS_ENTROPY, Loss.BALANCED_SOFTMAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A combination that makes no sense. reason: reads on after `strategy: `."""

    refuses: Callable[[Recipe], bool]
    reason: str


def _is_plain(recipe: Recipe) -> bool:
    """Beside an own part: nothing else that reads or tunes the model that a silo trains."""
    has_reader = recipe.regularizer is not Regularizer.NONE or recipe.statistic is not None
    return not has_reader and recipe.closing is Closing.NONE and recipe.server_update not in BY_STEPS


def _has_unit_head(recipe: Recipe) -> bool:
    return recipe.head in UNIT_HEADS


RULES = (
    Rule(
        refuses=lambda recipe: (
            recipe.loss is Loss.DOT_REGRESSION
            and not (recipe.features is Features.UNIT and _has_unit_head(recipe))
        ),
        reason="dot-regression is of cosines: it needs features unit and head frozen-etf or "
        "frozen-orthonormal",
    ),
    Rule(
        refuses=lambda recipe: recipe.features is Features.PROJECTED_UNIT and not _has_unit_head(recipe),
        reason="projected-unit features need head frozen-etf or frozen-orthonormal: before a head of "
        "another length or one that learns, projection and scale change nothing",
    ),
    Rule(
        refuses=lambda recipe: recipe.loss is Loss.CLIENT_ADAPTED and not recipe.head.is_frozen,
        reason="client-adapted scales a frozen head by the silo's class counts: a trained head would "
        "learn the scale away",
    ),
    Rule(
        refuses=lambda recipe: recipe.loss is Loss.SPHERE_MSE and recipe.features is not Features.UNIT,
        reason="sphere-mse takes scores for cosines, and only before features unit are they: longer "
        "features or a learned scale would be trained to no end",
    ),
    Rule(
        refuses=lambda recipe: recipe.loss is Loss.SPHERE_MSE and recipe.head is Head.TRAINED,
        reason="sphere-mse takes scores for cosines, which have no bias: it needs head trained-unbiased or "
        "a frozen one",
    ),
    Rule(
        refuses=lambda recipe: (
            recipe.loss in SOFTMAX_LOSSES and recipe.features is Features.UNIT and _has_unit_head(recipe)
        ),
        reason="a softmax of cosines stays nearly even, because nothing here can lengthen features or head: "
        "it needs features raw or projected-unit, or a head of another kind",
    ),
    Rule(
        refuses=lambda recipe: recipe.closing.has_ffc and recipe.features is not Features.UNIT,
        reason="ffc sums products of features, which have a bound only at unit length and fit a head that "
        "nothing scales: it needs features unit",
    ),
    Rule(
        refuses=lambda recipe: recipe.closing.has_ffc and recipe.head is Head.TRAINED,
        reason="ffc fits a head without a bias, which head trained has: it needs head trained-unbiased or a "
        "frozen one",
    ),
    Rule(
        refuses=lambda recipe: recipe.mix is Mix.CONVEX and recipe.regularizer is Regularizer.NONE,
        reason="a convex mix shares weight between loss and regularizer, and there is no regularizer",
    ),
    Rule(
        refuses=lambda recipe: (
            recipe.statistic is StatisticName.SOFT_LABELS
            and recipe.regularizer is not Regularizer.SOFT_LABELS
        ),
        reason="the statistic soft-labels is what the regularizer soft-labels pulls towards, and nothing "
        "else uses it: it needs that regularizer",
    ),
    Rule(
        refuses=lambda recipe: (
            recipe.regularizer is Regularizer.SOFT_LABELS and recipe.head is not Head.TRAINED_UNBIASED
        ),
        reason="the regularizer soft-labels moves the head's rows alone: it needs head trained-unbiased",
    ),
    Rule(
        refuses=lambda recipe: (
            recipe.statistic is StatisticName.LOGIT_PROTOTYPES and recipe.regularizer is not Regularizer.CSD
        ),
        reason="the statistic logit-prototypes is what the regularizer csd compares with, and nothing "
        "else uses it: it needs that regularizer",
    ),
    Rule(
        refuses=lambda recipe: recipe.own.has_head and recipe.head.is_frozen,
        reason="an own head is one that each silo trains: it needs head trained or trained-unbiased",
    ),
    Rule(
        refuses=lambda recipe: recipe.own is not Own.NONE and not _is_plain(recipe),
        reason="an own part trains in its own way: it needs regularizer, statistic and closing none, and a "
        "server update that does not count local steps",
    ),
)


def check_recipe(recipe: Recipe) -> None:
    """Raises ConfigError for a combination of parts that makes no sense, with the reason."""
    for rule in RULES:
        if rule.refuses(recipe):
            raise ConfigError(f"strategy: {rule.reason}; got {_named(recipe)}")


def check_options(recipe: Recipe, options: Mapping[str, OptionValue]) -> None:
    """Raises ConfigError for options with which a part would do nothing."""
    is_fixed = recipe.regularizer is Regularizer.SOFT_LABELS and recipe.statistic is None
    if is_fixed and options_of(SoftLabelOptions, options).init_slm is InitialSoftLabels.SKIP:
        raise ConfigError(
            "strategy.options.init_slm: without the statistic soft-labels its matrix is the target of every "
            "round: expected identity or uniform, got skip"
        )


def check_classes(recipe: Recipe, classes: int) -> None:
    """Raises ConfigError for a recipe that has nothing to do with so few classes."""
    if recipe.regularizer is Regularizer.NTD and classes < 3:
        raise ConfigError(
            f"strategy.regularizer: ntd compares the other classes and needs 3 or more, the job has {classes}"
        )


def check_optimizer(recipe: Recipe, optimizer: str) -> None:
    """Raises ConfigError where the server update needs another local optimizer than the job's."""
    if recipe.server_update in BY_STEPS and optimizer != "sgd":
        raise ConfigError(
            f"training.optimizer: {recipe.server_update} knows the weights of gradients under sgd alone, "
            f"got {optimizer}"
        )


def _named(recipe: Recipe) -> str:
    parts = {
        "head": recipe.head,
        "features": recipe.features,
        "loss": recipe.loss,
        "regularizer": recipe.regularizer,
        "mix": recipe.mix,
        "server_update": recipe.server_update,
        "statistic": recipe.statistic or "none",
        "own": recipe.own,
        "closing": recipe.closing,
    }
    return ", ".join(f"{part} {value}" for part, value in parts.items())
