"""Feature prototypes: the mean feature of each class, over all silos; and the regularizer that pulls there.

Source: FedProto, Tan et al., AAAI 2022 (arXiv 2105.00243). Silo k sends F_k[c], the sum of its
trained model's features over its samples of class c, and their number n_k[c]; the prototype of class c is
sum_k F_k[c] / sum_k n_k[c], the mean feature of all samples of the class. So Eq. 6 weighs silos, too; its
further factor 1/|N_c|, by which prototypes would shrink with the number of silos, is left out. The authors'
code gives every silo the same weight. A class of which no silo sent a sample keeps the prototype of the round
before; where there never was one the class is not pulled.

Leaks by class how many samples took part and what the silos' models of the round answer to them on average,
as features: D numbers a class, from which more of an average sample can be told than from C soft labels. Of a
class that one silo holds it would be that silo's mean feature and count: rows below min_class_holders are
never sent. In FedProto the silos' models are their own and stay at home, so who sees the sum lacks the model
that the features are of.

C = classes, D = feature width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.errors import Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import METHOD, Array, Arrays, FloatArray, PhaseContext
from strategies.parts.heads import HEAD
from strategies.parts.statistics.class_counts import class_counts
from strategies.recipe import Need, Recipe, Regularizer, Statistic, UnderPrivacy, always

PROTOTYPES = METHOD + "feature_prototypes"  # (C, D) float64
KNOWN = METHOD + "feature_prototypes_valid"  # (C,) uint8: 1 where the prototype is known
FEATURE_SUM_BOUND = float(1 << 28)  # of a class's summed features at one silo


@dataclass(frozen=True, slots=True, kw_only=True)
class Prototypes:
    """Shapes: rows (C, D) float64, is_known (C,) bool."""

    rows_CD: FloatArray
    is_known_C: NDArray[np.bool_]


def prototypes_in(state: Arrays, *, classes: int, width: int) -> Prototypes:
    """What a round pulls towards. Raises RemoteProtocolError for arrays of another shape."""
    if PROTOTYPES not in state or KNOWN not in state:
        return Prototypes(rows_CD=np.zeros((classes, width)), is_known_C=np.zeros(classes, np.bool_))
    rows_CD, known_C = state[PROTOTYPES], state[KNOWN]
    if rows_CD.shape != (classes, width) or known_C.shape != (classes,):
        raise RemoteProtocolError(
            f"global state: {PROTOTYPES} is {rows_CD.shape}, expected {(classes, width)}",
            code=Refusal.STATE,
        )
    return Prototypes(rows_CD=rows_CD.astype(np.float64), is_known_C=known_C.astype(bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturePrototypes:
    """The statistic that rides in the train phase: sums by class, and the next round's prototypes."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: feature_sums (C, D), class_counts (C,)."""
        classes, width = context.state[HEAD].shape
        return (
            Quantity(
                name="feature_sums",
                shape=(classes, width),
                bound=FEATURE_SUM_BOUND,
                is_tagged=True,
                discloses=Disclosure.TRAINED_CLASS_STATISTIC,
                side=Side.TRAIN,
            ),
            class_counts(classes),
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """prototype_rows: classes with samples in this sum."""
        return {"prototype_rows": float(np.count_nonzero(sums["class_counts"] > 0))}

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        """F / n where there is a count, else the prototype as it was."""
        classes, width = context.state[HEAD].shape
        before = prototypes_in(context.state, classes=classes, width=width)
        counts_C = sums["class_counts"]
        has_samples_C = counts_C > 0
        means_CD = sums["feature_sums"] / np.maximum(counts_C, 1)[:, None]
        return {
            PROTOTYPES: np.where(has_samples_C[:, None], means_CD, before.rows_CD),
            KNOWN: (has_samples_C | before.is_known_C).astype(np.uint8),
        }


SUMS = FeaturePrototypes()
NO_BOUND = "sums features, which have no bound of their own, so no noise covers what one record changes"
UNBOUNDED_FEATURES = UnderPrivacy(records=NO_BOUND, sums=NO_BOUND)


def _has_sums(recipe: Recipe) -> bool:
    return recipe.statistic is not None and recipe.statistic.beside_training == (SUMS,)


FEATURE_PROTOTYPES = Regularizer(
    word="feature-prototypes",
    needs_classes=True,
    needs_head=always,
    reads=(PROTOTYPES, KNOWN),
    needs=(
        Need(
            holds=_has_sums,
            reason="the regularizer feature-prototypes pulls towards what the statistic of that name sums: "
            "it needs that statistic",
        ),
    ),
    under_privacy=UNBOUNDED_FEATURES,
)

FEATURE_PROTOTYPE_SUMS = Statistic(
    word="feature-prototypes",
    needs_classes=True,
    needs_head=always,
    beside_training=(SUMS,),
    least_rows=lambda options: 1,
    needs=(
        Need(
            holds=lambda recipe: FEATURE_PROTOTYPES in recipe.regularizers,
            reason="the statistic feature-prototypes is what the regularizer of that name pulls towards, and "
            "nothing else uses it: it needs that regularizer",
        ),
    ),
    under_privacy=UNBOUNDED_FEATURES,
)
