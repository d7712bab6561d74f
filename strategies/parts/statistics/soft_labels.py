"""FedDW's soft-label matrix: by true class, the mean softmax output of the freshly trained models; and the
regularizers that pull towards it: FedDW's of the head, and federated distillation's of the outputs.

Liu, Wang, Wang, Yang, Tao, "FedDW: Distilling Weights through Consistency Optimization in Heterogeneous
Federated Learning", Eqs. 4 to 7. Silo k sends A_k[i, :], the sum of its trained model's softmax outputs
over its samples of class i, and their number c_k[i]; Omega[i, :] = sum_k A_k[i, :] / sum_k c_k[i]. The
sums run over the revealed cohort. A class of which no silo sent a sample keeps the row of the round
before; where there never was one it is not known and drops out of the loss.
The authors' code (liuvvvvv1/FedDW at 4e69f24, main.py, lines 465 to 529) starts from the identity, keeps half
of the old Omega, sums over all rounds so far, because its lists are never emptied, and divides mu by ten in
rounds 9, 18 and so on: `init_slm: identity`, `slm_share: 0.5`, `slm_sums: all`, `mu_decay_rounds: 9`.

Federated distillation (Jeong et al. 2018, arXiv 1811.11479; FedDistill in FedDW's Table IV, FedDistill+ where
the model is averaged, too) takes a row for the teacher's output for samples of that class. There a silo's
teacher is the mean over the other silos, each with the same weight, of outputs along the way of a round.

Leaks by class how many samples took part and what the models of the round answer to them on average.
Of a class that one silo holds it would be that silo's answers and count: rows below min_class_holders
are never sent. sum_j A[i, j] = c[i], so the counts tell nothing that the sums do not.

C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import METHOD, Array, Arrays, FloatArray, PartOptions, PhaseContext, options_of
from strategies.exact import total
from strategies.parts.regularizers import WEIGHTS_ALONE
from strategies.parts.statistics.class_counts import MAX_CLASS_SAMPLES, class_counts
from strategies.recipe import Need, Options, Recipe, Regularizer, Statistic, UnderPrivacy, always

SOFT_LABELS = METHOD + "soft_labels"  # (C, C) float64: row = true class, column = predicted class
KNOWN_ROWS = METHOD + "soft_labels_valid"  # (C,) uint8: 1 where the row is known
# (C, C) and (C,) float64: A and c of all rounds so far, where the job asks for those
ALL_SUMS, ALL_COUNTS = METHOD + "soft_label_sums", METHOD + "soft_label_counts"


class InitialSoftLabels(StrEnum):
    """The matrix of the first round, which the paper leaves open."""

    SKIP = "skip"
    IDENTITY = "identity"
    UNIFORM = "uniform"


class SoftLabelRounds(StrEnum):
    """Whose sums Omega is made of."""

    LAST = "last"
    ALL = "all"


class MatrixOptions(PartOptions):
    """How Omega follows from the sums."""

    init_slm: InitialSoftLabels = Field(
        default=InitialSoftLabels.SKIP,
        description="Omega of round 1: skip (a class is left out until its first sum), identity or uniform",
    )
    slm_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the newly summed soft labels in the next Omega; the rest is the old Omega's",
    )
    slm_sums: SoftLabelRounds = Field(
        default=SoftLabelRounds.LAST,
        description="which rounds' sums make the new soft labels: last, or all so far",
    )


class SoftLabelOptions(MatrixOptions):
    """The same, and how much it pulls."""

    mu_decay_rounds: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="mu is a tenth after each so many rounds, counted from round 1; null: it stays",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLabelMatrix:
    """Shapes: rows (C, C) float64, each a distribution where is_known (C,) bool."""

    rows_CC: FloatArray
    is_known_C: NDArray[np.bool_]


def soft_labels_in(state: Arrays, *, classes: int, options: MatrixOptions) -> SoftLabelMatrix:
    """The matrix that a round trains against. Raises RemoteProtocolError for arrays of another shape."""
    if SOFT_LABELS not in state or KNOWN_ROWS not in state:
        return _initial(classes, options.init_slm)
    rows_CC, known_C = state[SOFT_LABELS], state[KNOWN_ROWS]
    if rows_CC.shape != (classes, classes) or known_C.shape != (classes,):
        raise RemoteProtocolError(
            f"global state: {SOFT_LABELS} is {rows_CC.shape}, expected {(classes, classes)}",
            code=Refusal.STATE,
        )
    return SoftLabelMatrix(rows_CC=rows_CC.astype(np.float64), is_known_C=known_C.astype(bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLabels:
    """The statistic that rides in the train phase: sums by class, and the next round's matrix."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: soft_labels (C, C), class_counts (C,). One record moves each by at most 1 in L2."""
        classes = context.classes
        return (
            Quantity(
                name="soft_labels",
                shape=(classes, classes),
                bound=MAX_CLASS_SAMPLES,
                sensitivity_l2=1.0,
                is_tagged=True,
                discloses=Disclosure.TRAINED_CLASS_STATISTIC,
                side=Side.TRAIN,
            ),
            class_counts(classes),
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """soft_label_rows: classes with samples in this sum. soft_label_row_error: how far a row's sum is
        from its count; beyond the ring's rounding a silo sent sums and counts that do not belong together."""
        counts_C = sums["class_counts"]
        errors_C = np.abs(total(sums["soft_labels"].T) - counts_C)
        return {
            "soft_label_rows": float(np.count_nonzero(counts_C > 0)),
            "soft_label_row_error": float(errors_C.max()),
        }

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        """Omega = A / c where there is a count, else the row as it was."""
        options = options_of(MatrixOptions, context.options)
        before = soft_labels_in(context.state, classes=context.classes, options=options)
        is_noised = sums["class_counts"].dtype.kind == "f"  # a noised count is no whole number
        sums_CC, counts_C, kept = _summed(context, sums, options.slm_sums)
        has_samples_C = counts_C > 0
        means_CC = _distributions(sums_CC) if is_noised else sums_CC / np.maximum(counts_C, 1)[:, None]
        share_C1 = np.where(before.is_known_C, options.slm_share, 1.0)[:, None]
        mixed_CC = share_C1 * means_CC + (1.0 - share_C1) * before.rows_CC
        return {
            SOFT_LABELS: np.where(has_samples_C[:, None], mixed_CC, before.rows_CC),
            KNOWN_ROWS: (has_samples_C | before.is_known_C).astype(np.uint8),
            **kept,
        }


def _summed(
    context: PhaseContext, sums: Mapping[str, Array], rounds: SoftLabelRounds
) -> tuple[FloatArray, Array, dict[str, Array]]:
    """A and c, and the arrays that keep them where those of all rounds are asked for."""
    sums_CC, counts_C = np.asarray(sums["soft_labels"], dtype=np.float64), sums["class_counts"]
    if rounds is SoftLabelRounds.LAST:
        return sums_CC, counts_C, {}
    state, zeros_CC = context.state, np.zeros((context.classes, context.classes))
    sums_CC = state.get(ALL_SUMS, zeros_CC) + sums_CC
    counts_C = state.get(ALL_COUNTS, zeros_CC[0]) + counts_C
    return sums_CC, counts_C, {ALL_SUMS: sums_CC, ALL_COUNTS: counts_C}


def _distributions(noised_CC: FloatArray) -> FloatArray:
    """Rows without what noise took below zero, at sum 1; even where nothing is left. Shapes: -> (C, C)."""
    positive_CC = np.maximum(noised_CC, 0.0)
    totals_C1 = total(positive_CC.T)[:, None]
    has_left_C1 = totals_C1 > 0
    return np.where(has_left_C1, positive_CC / np.where(has_left_C1, totals_C1, 1.0), 1.0 / len(noised_CC))


def _initial(classes: int, initial: InitialSoftLabels) -> SoftLabelMatrix:
    rows_CC = {
        InitialSoftLabels.SKIP: np.zeros((classes, classes)),
        InitialSoftLabels.IDENTITY: np.eye(classes),
        InitialSoftLabels.UNIFORM: np.full((classes, classes), 1.0 / classes),
    }[initial]
    is_known_C = np.full(classes, initial is not InitialSoftLabels.SKIP)
    return SoftLabelMatrix(rows_CC=rows_CC, is_known_C=is_known_C)


def _check_first_matrix(recipe: Recipe, options: Options) -> None:
    is_skipped = options_of(MatrixOptions, options).init_slm is InitialSoftLabels.SKIP
    if recipe.statistic is not SOFT_LABEL_SUMS and is_skipped:
        raise ConfigError(
            "strategy.options.init_slm: without the statistic soft-labels its matrix is the target of every "
            "round: expected identity or uniform, got skip"
        )


def _least_rows(options: Options) -> int:
    """None where a row that was never summed is known, as the job's public one."""
    return int(options_of(MatrixOptions, options).init_slm is InitialSoftLabels.SKIP)


CLASS_RELATIONS = Regularizer(
    word="soft-labels",
    needs_classes=True,
    needs_head=always,
    options=SoftLabelOptions,
    needs=(
        Need(
            holds=lambda recipe: not recipe.head.is_frozen,
            reason="the regularizer soft-labels moves the head's rows: it needs head trained-unbiased, or "
            "trained as FedDW's code has it",
        ),
    ),
    under_privacy=replace(
        WEIGHTS_ALONE, shared="pulls at the weights alone, which the server's steps do not compute"
    ),
    check_options=_check_first_matrix,
    reads=(SOFT_LABELS, KNOWN_ROWS),
)

CLASS_DISTILLATION = Regularizer(
    word="class-distillation",
    needs_classes=True,
    needs=(
        Need(
            holds=lambda recipe: recipe.statistic is SOFT_LABEL_SUMS,
            reason="the regularizer class-distillation pulls towards what the statistic soft-labels sums: it "
            "needs that statistic",
        ),
    ),
    under_privacy=UnderPrivacy(
        why="compares each sample with noised sums of its class, which is post-processing of sums paid for "
        "before"
    ),
    reads=(SOFT_LABELS, KNOWN_ROWS),
)

SOFT_LABEL_SUMS: Statistic = Statistic(
    word="soft-labels",
    needs_classes=True,
    options=MatrixOptions,
    beside_training=(SoftLabels(),),
    least_rows=_least_rows,
    public_rows="init_slm: identity",
    needs=(
        Need(
            holds=lambda recipe: bool({CLASS_RELATIONS, CLASS_DISTILLATION} & {*recipe.regularizers}),
            reason="the statistic soft-labels is what the regularizers soft-labels and class-distillation "
            "pull towards, and nothing else uses it: it needs one of them",
        ),
    ),
    under_privacy=UnderPrivacy(
        why="in a record-level job the trained model is post-processing of DP-SGD, and one record moves the "
        "sums of its answers by 1",
        shared="sums what the model answers that a silo has trained, and silos train none",
        sums="sums what the silo's own trained model answers, and no clip bounds what one record, or one "
        "silo, changes of that",
    ),
)
