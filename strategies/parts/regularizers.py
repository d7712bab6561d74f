"""What is added to the loss: the regularizers, and how loss and regularizer join.

silo_agent/training/parts/regularizers/ computes them and names their papers. Two are declared elsewhere: csd
with its teacher, in csd.py, and soft-labels with its statistic, in statistics/soft_labels.py.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from pydantic import Field

from strategies.base import PartOptions, options_of
from strategies.parts.heads import NO_DATA
from strategies.parts.losses import OF_A_BATCH
from strategies.recipe import ADDS_NOTHING, Mix, Need, Options, Part, Regularizer, UnderPrivacy, always

GLOBAL_TEACHER = UnderPrivacy(
    why="compares each sample with the received model, which is post-processing of sums paid for before"
)
WEIGHTS_ALONE = UnderPrivacy(
    why="of the weights alone, so its exact gradient is added after clipping and noise"
)
FROM_THE_RECEIVED = (
    "compares the trained model with the received one, which a step's gradient is taken of: it adds nothing"
)


class AdditiveWeight(PartOptions):
    """loss + mu R."""

    mu: float = Field(default=1.0, ge=0, le=1e6, description="mu: weight of the regularizer")


class SecondWeight(PartOptions):
    """The joined loss + second_mu R of a second regularizer."""

    second_mu: float = Field(default=1.0, ge=0, le=1e6, description="weight of the second regularizer")


class ConvexWeight(PartOptions):
    """beta loss + (1 - beta) R."""

    beta: float = Field(default=0.9, ge=0, le=1, description="beta: share of the loss")


class Radius(StrEnum):
    """How far each number is perturbed: all alike, or as it has moved from the received one."""

    FIXED = "fixed"
    ADAPTIVE = "adaptive"


class PerturbedOptions(PartOptions):
    """The loss at weights moved along the regularizer's gradient."""

    rho: float = Field(
        default=1.0, ge=0, le=1e3, description="rho of FedSOL: length of the perturbation; 0 is none"
    )
    radius: Radius = Field(
        default=Radius.ADAPTIVE,
        description="fixed: the perturbation has length rho; adaptive: less where weights moved less",
    )


class TemperatureOptions(PartOptions):
    """Softened softmax of teacher and student."""

    tau: float = Field(default=3.0, gt=0, le=1e3, description="tau: temperature of both softmaxes")


class NotTrueOptions(TemperatureOptions):
    """FedNTD's distillation."""

    tau_squared: bool = Field(
        default=False,
        description="whether the divergence is multiplied by tau squared, as FedNTD's code does",
    )


class MoonOptions(PartOptions):
    """How sharply MOON separates its two models."""

    contrast_tau: float = Field(
        default=0.5, gt=0, le=1e3, description="tau of MOON: temperature of the two cosines"
    )


NO_REGULARIZER = Regularizer(word="none", under_privacy=ADDS_NOTHING)
PROX = Regularizer(word="prox", under_privacy=replace(WEIGHTS_ALONE, shared=FROM_THE_RECEIVED))
MOON = Regularizer(
    word="moon",
    options=MoonOptions,
    under_privacy=UnderPrivacy(
        why="compares each sample with the received model and with the one that the silo sent last, "
        "which came out of DP-SGD; in a silo-level job the whole update is clipped",
        shared="compares with the model that the silo sent last, and silos train none",
    ),
    keeps_local_state=True,
)
RECEIVED_TEACHER = replace(GLOBAL_TEACHER, shared=FROM_THE_RECEIVED)
KD = Regularizer(word="kd", options=TemperatureOptions, under_privacy=RECEIVED_TEACHER, needs_classes=True)
NTD = Regularizer(
    word="ntd", options=NotTrueOptions, under_privacy=RECEIVED_TEACHER, min_classes=3, needs_classes=True
)
LD = Regularizer(word="ld", under_privacy=RECEIVED_TEACHER, needs_classes=True)
FD = Regularizer(word="fd", under_privacy=RECEIVED_TEACHER, needs_head=always)


def given_regularizer(word: str, *, is_mean: bool) -> Regularizer:
    """One of an installed distribution, where the method has none. is_mean: of values of single records."""
    return Regularizer(word=word, under_privacy=GLOBAL_TEACHER if is_mean else OF_A_BATCH)


def _convex_weights(options: Options) -> tuple[float, float]:
    beta = options_of(ConvexWeight, options).beta
    return beta, 1.0 - beta


ADDITIVE = Mix(
    word="additive",
    options=AdditiveWeight,
    weights=lambda options: (1.0, options_of(AdditiveWeight, options).mu),
    under_privacy=NO_DATA,
)
CONVEX = Mix(
    word="convex",
    options=ConvexWeight,
    weights=_convex_weights,
    needs=(
        Need(
            holds=lambda recipe: recipe.regularizer is not NO_REGULARIZER,
            reason="a convex mix shares weight between loss and regularizer, and there is no regularizer",
        ),
    ),
    under_privacy=NO_DATA,
)

OF_WHOLE_BATCHES = (
    "moves the weights by a gradient of the whole batch, so one record changes the gradients of all the "
    "others and no clip of single gradients bounds it"
)
PERTURBED = Mix(
    word="perturbed",
    options=PerturbedOptions,
    weights=lambda options: (1.0, 1.0),
    is_perturbed=True,
    needs=(
        Need(
            holds=lambda recipe: (
                recipe.regularizer in (KD, NTD, LD, FD) and recipe.second_regularizer is None
            ),
            reason="a perturbed mix moves the weights by the gradient of a distance from the received "
            "model's answers: it needs regularizer kd, ntd, ld or fd, and no second one",
        ),
    ),
    under_privacy=UnderPrivacy(
        why="in a silo-level job the whole update is clipped",
        records=OF_WHOLE_BATCHES,
        shared=FROM_THE_RECEIVED,
    ),
)

SECOND_WEIGHT = Part(word="second-weight", options=SecondWeight, under_privacy=NO_DATA)
REGULARIZERS = (NO_REGULARIZER, PROX, MOON, KD, NTD, LD, FD)
MIXES = (ADDITIVE, CONVEX, PERTURBED)
