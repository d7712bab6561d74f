"""Fast Federated Calibration: the head becomes the least-squares head of all silos' features.

SphereFed (Dong, Zhang, Li, Kung 2022), Eqs. 9, 10 and 12, once after the last round, over all silos:
V_k = sum_i z_i z_i^T and U_k = sum_i z_i onehot(y_i)^T over silo k's samples with unit features z_i;
W* = (sum_k V_k + lambda I)^-1 (sum_k U_k), and the head is (W*)^T, at whatever length its rows have.
Sums, not means: the mean of the silos' own solutions is another matrix.
Leaks sum_k V_k and sum_k U_k: the exact number of samples (the trace of V), about how many each class
has, and of a class with a single sample in all silos that sample's feature. One silo's V_k and U_k
would tell the same of the silo, which is why they only leave it under masks.
Under noise V is no Gram matrix any more: its eigenvalues are off by up to 2 sigma sqrt(D), with sigma the
noise's standard deviation in an entry (a symmetric random matrix, Wigner 1958), and the small ones may be
negative. A ridge of that size makes the system definite again (docs/privacy-proofs.md, "FFC under noise").

D = feature width, C = classes, T = D(D+1)/2 values of an upper triangle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import (
    TOTAL,
    Array,
    FloatArray,
    PartOptions,
    Phase,
    PhaseContext,
    PhaseResult,
    options_of,
    total_of,
)
from strategies.exact import product, solved, total
from strategies.figure import Figure, flat_figures
from strategies.parts.heads import HEAD, UNIT
from strategies.recipe import Closing, Need, Options, UnderPrivacy, always

CALIBRATE = "calibrate"
RIDGE = 0.1  # of sums without noise
LEAST_PIVOT = 1e-12  # relative to the largest: what lies below is rounding, not data
LEAST_OF_RIDGE = 1.0 / 16.0  # of samples every pivot is at least the ridge; under noise most are half of it
BELOW_ZERO = 1e-6  # of the samples: what rounding may leave of a squared error of zero
UNIT_ROUNDING = 1e-6  # in a private job lengths are taken in float64, which leaves less at any width


class FfcOptions(PartOptions):
    """How far the solution is held back."""

    ridge: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="lambda of Eq. 12: added to the summed Gram matrix's diagonal; null: 0.1, and "
        "2 sigma sqrt(D) in a private job, whose noise in an entry has the standard deviation sigma",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratePhase(Phase):
    """Closing phase: sums V's upper triangle and U, installs (W*)^T. No other array changes.

    The features stay at unit length, and the head is calibrated for those. ridge: None for the one that
    the noise asks for.
    """

    kind: str = CALIBRATE
    ridge: float | None = None

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: gram (T,), moment (D, C). Units: samples, because features have unit length; so no
        silo's value is above the number of samples that enrollment counted.

        Raises ConfigError for a state without a head or a total.
        """
        classes, width = _head(context).shape
        bound, change = _total(context), 1.0 + UNIT_ROUNDING
        triangle = (width * (width + 1) // 2,)
        return (
            Quantity(
                name="gram",
                shape=triangle,
                bound=bound,
                sensitivity_l2=change,
                is_tagged=True,
                discloses=Disclosure.STATISTIC,
                side=Side.TRAIN,
            ),
            Quantity(
                name="moment",
                shape=(width, classes),
                bound=bound,
                sensitivity_l2=change,
                is_tagged=True,
                discloses=Disclosure.CLASS_STATISTIC,
                side=Side.TRAIN,
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Install the solution where it lowers the squared error; under a large ridge it may not.

        Security: without noise no head has an error below zero. One that has comes of a false moment, which
        could make it as long as the ridge is small, and is not installed.
        Figures: squared error of the head before and after, mean over the silos' training samples.
        """
        before_CD = _head(context)
        gram_DD = unpacked(sums["gram"], before_CD.shape[1])
        moment_DC = np.asarray(sums["moment"], dtype=np.float64)
        ridge, resolution = self.ridge_under(context), self._resolution(context)
        after_DC = least_squares(gram_DD, moment_DC, ridge=ridge, resolution=resolution)
        after_CD = after_DC.T.astype(np.float32)
        before = squared_error(before_CD, gram_DD, moment_DC)
        after = squared_error(after_CD, gram_DD, moment_DC)
        samples = max(float(total(np.diagonal(gram_DD))), 1.0)
        is_possible = "gram" in context.noise or after >= -BELOW_ZERO * samples
        is_better = is_possible and after < before
        state = {**context.state, HEAD: np.ascontiguousarray(after_CD)} if is_better else context.state
        errors = {
            "squared_error_before": before / samples,
            "squared_error_after": (after if is_better else before) / samples,
        }
        noise = (0.0, math.inf) if "gram" in context.noise else None
        figures = {name: Figure(value=error, noise=noise) for name, error in errors.items()}
        return PhaseResult(state=state, figures=flat_figures(figures))

    def ridge_under(self, context: PhaseContext) -> float:
        """lambda: the job's own, else what is as large as the noise's largest eigenvalue."""
        if self.ridge is not None:
            return self.ridge
        deviation = context.noise.get("gram", 0.0)
        return 2.0 * deviation * math.sqrt(_head(context).shape[1]) if deviation else RIDGE

    def _resolution(self, context: PhaseContext) -> float:
        """How far the silos' rounding may move an eigenvalue of the sum."""
        gram, moment = self.quantities(context)
        return moment.shape[0] * context.members / gram.scale(context.members)


def packed(gram_DD: FloatArray) -> FloatArray:
    """The upper triangle with the diagonal, row by row. Shapes: (D, D) -> (T,)."""
    return gram_DD[np.triu_indices(len(gram_DD))]


def unpacked(gram_T: Array, width: int) -> FloatArray:
    """The symmetric matrix of an upper triangle. Shapes: (T,) -> (D, D)."""
    upper_DD = np.zeros((width, width))
    upper_DD[np.triu_indices(width)] = gram_T
    return upper_DD + np.triu(upper_DD, 1).T


def least_squares(
    gram_DD: FloatArray, moment_DC: FloatArray, *, ridge: float, resolution: float = 0.0
) -> FloatArray:
    """W with (V + lambda I) W = U, the one of least norm where there are many. Shapes: -> (D, C).

    Features that are zero in every sample get zero rows. A direction counts as one that the samples do not
    have where its pivot is at most 1e-12 of the largest, a sixteenth of the ridge, or the resolution.
    """
    solution_DC = np.zeros_like(moment_DC)
    is_live_D = np.diagonal(gram_DD) > 0
    if is_live_D.any():
        live_LL = gram_DD[np.ix_(is_live_D, is_live_D)]
        system_LL = (live_LL + live_LL.T) / 2 + ridge * np.eye(len(live_LL))
        largest = float(np.max(np.diagonal(system_LL)))
        least_pivot = max(LEAST_PIVOT * largest, LEAST_OF_RIDGE * ridge, resolution)
        solution_DC[is_live_D] = solved(system_LL, moment_DC[is_live_D], least_pivot=least_pivot)
    return solution_DC


def squared_error(head_CD: Array, gram_DD: FloatArray, moment_DC: FloatArray) -> float:
    """sum_i ||W z_i - onehot(y_i)||^2 from the sums alone, over the samples whose feature is not zero:
    tr V - 2 tr(W U) + tr(W V W^T)."""
    weight_CD = head_CD.astype(np.float64)
    explained_CD = 2.0 * (weight_CD * moment_DC.T) - product(weight_CD, gram_DD) * weight_CD
    return float(total(np.diagonal(gram_DD)) - total(explained_CD.reshape(-1)))


def _head(context: PhaseContext) -> Array:
    if HEAD not in context.state:
        raise ConfigError(
            f"calibrate: expected the array {HEAD} in the global state: it is what ffc replaces"
        )
    head_CD = context.state[HEAD]
    if head_CD.ndim != 2:
        raise ConfigError(f"calibrate: {HEAD}: expected a matrix, got an array of shape {head_CD.shape}")
    return head_CD


def _total(context: PhaseContext) -> float:
    if TOTAL not in context.state:
        raise ConfigError(
            f"calibrate: expected the array {TOTAL} in the global state: enrollment comes first"
        )
    return float(total_of(context.state))


def calibration(options: Options) -> tuple[CalibratePhase]:
    """What calibrates the head, before the final evaluation."""
    return (CalibratePhase(ridge=options_of(FfcOptions, options).ridge),)


FFC_NEEDS = (
    Need(
        holds=lambda recipe: recipe.features is UNIT,
        reason="ffc sums products of features at unit length, because others have no bound, and fits the "
        "head to these: it needs features unit",
        is_advice=True,
    ),
    Need(
        holds=lambda recipe: not recipe.head.has_bias,
        reason="ffc fits a head without a bias, which head trained has: it needs head trained-unbiased or a "
        "frozen one",
    ),
)
FFC = Closing(
    word="ffc",
    options=FfcOptions,
    needs=FFC_NEEDS,
    under_privacy=UnderPrivacy(why="sums products of unit features of the global model"),
    before_evaluation=calibration,
    needs_classes=True,
    needs_head=always,
)
