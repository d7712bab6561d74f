"""What a silo minimizes; silo_agent/training/parts/losses/ computes it and names the papers."""

from __future__ import annotations

from pydantic import Field

from strategies.base import PartOptions
from strategies.parts.heads import UNIT
from strategies.recipe import Loss, Need, UnderPrivacy, always

PER_SAMPLE = UnderPrivacy(why="a mean of losses of single samples")
BY_CLASS_COUNTS = UnderPrivacy(
    why="in a silo-level job the whole update is clipped",
    records="weighs every sample by the silo's class counts, so one record changes the gradients of all the "
    "others and no clip of single gradients bounds it",
)
NO_CLIP_BOUNDS = (
    "is no mean of values of single records (is_mean is False), so no clip bounds what one record changes"
)
OF_A_BATCH = UnderPrivacy(records=NO_CLIP_BOUNDS, sums=NO_CLIP_BOUNDS)
NO_COSINES = Need(
    holds=lambda recipe: not (recipe.features is UNIT and recipe.head.has_unit_rows),
    reason="a softmax of cosines stays nearly even, because nothing here can lengthen features or head: "
    "it needs features raw or projected-unit, or a head of another kind",
    is_advice=True,
)

# of the job's task: cross-entropy where that is classification
TASK_LOSS = Loss(word="task", needs=(NO_COSINES,), under_privacy=PER_SAMPLE)


class ScaledSoftmaxOptions(PartOptions):
    """SphereFed's cross-entropy on cosines."""

    score_scale: float = Field(
        default=16.0,
        gt=0,
        le=1e4,
        description="tau of SphereFed's cross-entropy ablation, a factor on the scores; the paper gives no "
        "value",
    )


SCALED_SOFTMAX = Loss(
    word="scaled-softmax",
    options=ScaledSoftmaxOptions,
    needs=(
        Need(
            holds=lambda recipe: recipe.features is UNIT,
            reason="scaled-softmax multiplies cosines, which nothing else lengthens: it needs features unit",
            is_advice=True,
        ),
    ),
    under_privacy=PER_SAMPLE,
    needs_classes=True,
    needs_head=always,
)

SPHERE_MSE = Loss(
    word="sphere-mse",
    needs=(
        Need(
            holds=lambda recipe: recipe.features is UNIT,
            reason="sphere-mse takes scores for cosines, and only before features unit are they: longer "
            "features or a learned scale would be trained to no end",
            is_advice=True,
        ),
        Need(
            holds=lambda recipe: not recipe.head.has_bias,
            reason="sphere-mse takes scores for cosines, which have no bias: it needs head trained-unbiased "
            "or a frozen one",
            is_advice=True,
        ),
    ),
    under_privacy=PER_SAMPLE,
    needs_classes=True,
    needs_head=always,
)

DOT_REGRESSION = Loss(
    word="dot-regression",
    needs=(
        Need(
            holds=lambda recipe: recipe.head.has_unit_rows,
            reason="dot-regression is of cosines: it needs head frozen-etf or frozen-orthonormal",
        ),
        Need(
            holds=lambda recipe: recipe.features is UNIT,
            reason="dot-regression is of cosines: it needs features unit",
            is_advice=True,
        ),
    ),
    under_privacy=PER_SAMPLE,
    needs_classes=True,
    needs_head=always,
)


class BalancedSoftmaxOptions(PartOptions):
    """FedETF's loss."""

    balance: float = Field(
        default=1.0, gt=0, le=10, description="beta of FedETF: exponent of the silo's class counts"
    )


BALANCED_SOFTMAX = Loss(
    word="balanced-softmax",
    options=BalancedSoftmaxOptions,
    needs=(NO_COSINES,),
    under_privacy=BY_CLASS_COUNTS,
    needs_classes=True,
)


class ClientAdaptedOptions(PartOptions):
    """FedGELA's loss."""

    adapted_tau: float = Field(
        default=1.0,
        ge=1e-6,
        le=1e4,
        description="temperature of FedGELA: its scores times the silo's class shares are divided by it",
    )


CLIENT_ADAPTED = Loss(
    word="client-adapted",
    options=ClientAdaptedOptions,
    needs=(
        Need(
            holds=lambda recipe: recipe.head.is_frozen,
            reason="client-adapted scales a frozen head by the silo's class counts: a trained head would "
            "learn the scale away",
            is_advice=True,
        ),
    ),
    under_privacy=BY_CLASS_COUNTS,
    needs_classes=True,
)


def given_loss(word: str, *, is_mean: bool) -> Loss:
    """One of an installed distribution, in place of the task's own. is_mean: of losses of single records."""
    return Loss(word=word, under_privacy=PER_SAMPLE if is_mean else OF_A_BATCH)


LOSSES = (
    TASK_LOSS,
    SCALED_SOFTMAX,
    SPHERE_MSE,
    DOT_REGRESSION,
    BALANCED_SOFTMAX,
    CLIENT_ADAPTED,
)
