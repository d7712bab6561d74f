"""Personalization: what of the model is each silo's own in every round, and how good the own models are.

FedPer (Arivazhagan et al. 2019, arXiv 1912.00818): body together, head at home, trained together.
FedRep (Collins et al., ICML 2021, arXiv 2102.07078): the head alone for some epochs, then the body alone.
LG-FedAvg (Liang et al. 2020, arXiv 2001.01523): head together, body at home, trained together.
FedBN (Li et al., ICLR 2021, arXiv 2102.07623): batch normalization at home, its running means too; all
else together.
Ditto (Li et al., ICML 2021, arXiv 2012.04221): FedAvg, and in addition a model at each silo, kept near it.
Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv 2002.07948): a model that is good after a step at the silo;
here the first-order variant.
FedALA (Zhang et al., AAAI 2023, arXiv 2212.01197): FedAvg, begun at each silo from a mixture of the received
model and its own last one, weighed number by number.
Alone: the whole model at home. By itself that is training without a federation, which every other method is
compared with; with the statistic feature-prototypes it is FedProto.
Own parameters are no part of the layout: they are the silo's local state and leave it in no sum. What leaves
besides FedAvg's sums is how good the own models are: of a silo whose own model has accuracy a on its hold-out
a, a^2 and 1, before each round's training and at the end (closing/fine_tuning.py says what that tells).
`accuracy` is the global model's as it was received; with an own head that is the initial one on the
common body, with an own body the common head on the initial one, with own normalization the common rest
around the initial one, and says little. A silo alone has the
initial model for a global one. That never moves, so it is tested once, at the end: a test of one model in
every round, each time by other silos, would tell single silos' answers. Rounds in which silos train alone
sum p, which tells how many samples they have, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from strategies.base import PartOptions
from strategies.parts.heads import HEAD_PREFIX
from strategies.parts.regularizers import NO_REGULARIZER
from strategies.parts.server_updates.mean import WEIGHTED_MEAN
from strategies.parts.statistics.feature_prototypes import FEATURE_PROTOTYPE_SUMS, FEATURE_PROTOTYPES
from strategies.phases.evaluation import PersonalAccuracy
from strategies.recipe import ADDS_NOTHING, Need, Personalization, Recipe, UnderPrivacy, always


class HeadFirstOptions(PartOptions):
    """FedRep."""

    head_epochs: int = Field(
        default=10,
        ge=1,
        le=1_000,
        description="tau of FedRep: passes that train the own head alone, first",
    )


class OwnModelOptions(PartOptions):
    """Ditto."""

    personal_pull: float = Field(
        default=0.1, ge=0, le=1e3, description="lambda of Ditto: pull of the own model to the received one"
    )


class AdaptedOptions(PartOptions):
    """Per-FedAvg."""

    inner_rate: float = Field(
        default=0.01, gt=0, le=100, description="alpha of Per-FedAvg: rate of the step that adapts the model"
    )


class LocalAggregationOptions(PartOptions):
    """FedALA."""

    ala_layers: int = Field(
        default=1,
        ge=1,
        le=1_000,
        description="p of FedALA: last layers of which a silo takes over a part; as many as the model has, "
        "or more: all",
    )
    ala_share: float = Field(
        default=0.8, gt=0, le=1, description="s of FedALA: share of the samples that its weights learn from"
    )
    ala_rate: float = Field(default=1.0, gt=0, le=1e3, description="eta of FedALA: rate of its weights")


def head_of(parameters: Sequence[str], buffers: Sequence[str]) -> set[str]:
    return {name for name in parameters if name.startswith(HEAD_PREFIX)}


def body_of(parameters: Sequence[str], buffers: Sequence[str]) -> set[str]:
    """With its running means."""
    return whole_of(parameters, buffers) - head_of(parameters, buffers)


def whole_of(parameters: Sequence[str], buffers: Sequence[str]) -> set[str]:
    return {*parameters, *buffers}


def normalization_of(parameters: Sequence[str], buffers: Sequence[str]) -> set[str]:
    """Layers that keep running means: group and layer normalization keep none."""
    layers = {name.rpartition(".")[0] for name in buffers}
    return {name for name in (*parameters, *buffers) if name.rpartition(".")[0] in layers}


def _is_plain(recipe: Recipe) -> bool:
    """Nothing else reads or tunes the model that a silo trains."""
    has_reader = recipe.regularizer is not NO_REGULARIZER or recipe.statistic is not None
    has_closing = recipe.closing.before_evaluation is not None or bool(recipe.closing.after_evaluation)
    return not (has_reader or has_closing or recipe.server_update.counts_steps)


def _is_alone_or_by_prototypes(recipe: Recipe) -> bool:
    """Nothing reads or moves a common model."""
    has_closing = recipe.closing.before_evaluation is not None or bool(recipe.closing.after_evaluation)
    is_by_prototypes = recipe.statistic is FEATURE_PROTOTYPE_SUMS
    regularizer = FEATURE_PROTOTYPES if is_by_prototypes else NO_REGULARIZER
    has_others = recipe.statistic is not None and not is_by_prototypes
    return (
        recipe.regularizers == (regularizer,)
        and recipe.server_update is WEIGHTED_MEAN
        and not (has_closing or has_others)
    )


PLAIN = Need(
    holds=_is_plain,
    reason="personalization trains in its own way: it needs regularizer, statistic and closing none, and a "
    "server update that does not count local steps",
)
TRAINED_HEAD = Need(
    holds=lambda recipe: not recipe.head.is_frozen,
    reason="a head of the silo's own is one that each silo trains: it needs head trained or trained-unbiased",
)
TRAINED_TOGETHER = Need(
    holds=lambda recipe: not recipe.head.is_frozen,
    reason="a body of the silo's own leaves the head alone to be summed: it needs head trained or "
    "trained-unbiased",
)
ALONE_OR_BY_PROTOTYPES = Need(
    holds=_is_alone_or_by_prototypes,
    reason="personalization alone sums nothing of the model: it needs server_update weighted-mean, closing "
    "none, and regularizer and statistic none, or feature-prototypes both",
)
NOT_NOISED = (
    "trains parameters of each silo's own without any noise and sums how good they are, so one record may "
    "change the silo's accuracy from 0 to 1"
)
REFUSED = UnderPrivacy(records=NOT_NOISED, sums=NOT_NOISED)
SUMMED = (PersonalAccuracy(),)

NO_PERSONALIZATION = Personalization(word="none", under_privacy=ADDS_NOTHING)
OWN_HEAD = Personalization(
    word="head",
    needs=(TRAINED_HEAD, PLAIN),
    under_privacy=REFUSED,
    keeps_local_state=True,
    own=head_of,
    needs_head=always,
    beside_evaluation=SUMMED,
)
OWN_HEAD_FIRST = Personalization(
    word="head-first",
    options=HeadFirstOptions,
    needs=(TRAINED_HEAD, PLAIN),
    under_privacy=REFUSED,
    keeps_local_state=True,
    own=head_of,
    needs_head=always,
    beside_evaluation=SUMMED,
)
OWN_BODY = Personalization(
    word="body",
    needs=(TRAINED_TOGETHER, PLAIN),
    under_privacy=REFUSED,
    keeps_local_state=True,
    own=body_of,
    needs_head=always,
    beside_evaluation=SUMMED,
)
OWN_NORMALIZATION = Personalization(
    word="normalization",
    needs=(PLAIN,),
    under_privacy=REFUSED,
    keeps_local_state=True,
    own=normalization_of,
    needs_running_means=True,
    beside_evaluation=SUMMED,
)
ALONE = Personalization(
    word="alone",
    needs=(ALONE_OR_BY_PROTOTYPES,),
    under_privacy=REFUSED,
    keeps_local_state=True,
    own=whole_of,
    shares_nothing=True,
    beside_evaluation=SUMMED,
)
OWN_MODEL = Personalization(
    word="model",
    options=OwnModelOptions,
    needs=(PLAIN,),
    under_privacy=REFUSED,
    keeps_local_state=True,
    beside_evaluation=SUMMED,
)
# follows from the received model in each round, so nothing is kept
ADAPTED = Personalization(
    word="adapted", options=AdaptedOptions, needs=(PLAIN,), under_privacy=REFUSED, beside_evaluation=SUMMED
)

LOCAL_AGGREGATION = Personalization(
    word="local-aggregation",
    options=LocalAggregationOptions,
    needs=(PLAIN,),
    under_privacy=REFUSED,
    keeps_local_state=True,
    beside_evaluation=SUMMED,
)

PERSONALIZATIONS = (
    NO_PERSONALIZATION,
    OWN_HEAD,
    OWN_HEAD_FIRST,
    OWN_BODY,
    OWN_NORMALIZATION,
    ALONE,
    OWN_MODEL,
    ADAPTED,
    LOCAL_AGGREGATION,
)
