"""A model by Newton's steps: linear, logistic, Poisson or Cox regression over all records.

Each round sums, at the state's coefficients, the information X'WX and the gradient of the log-likelihood; the
step follows from them, and is halved where the log-likelihood fell. After the rounds a last sum, at the final
coefficients, gives their covariance, and the outer products of the records' gradients the one that does not
presume the variance (HC1; White, "A Heteroskedasticity-Consistent Covariance Matrix Estimator", 1980). By
patient they are those of each patient's sum of gradients (Liang and Zeger, "Longitudinal data analysis using
generalized linear models", 1986), and the sums of their fourth powers say whether one patient stands out.

Columns are z, from -1 to 1. A Poisson outcome counts in units of its highest edge, so that no sum exceeds the
number of records by more than a few times; its first step is from the outcomes themselves (McCullagh and
Nelder, "Generalized Linear Models", 1989, 2.5), for from zeros it takes ten. Of a Cox model information and
gradient follow from other sums (cox.py), and there is no HC1.

With a ridge penalty (Hoerl and Kennard, "Ridge Regression: Biased Estimation for Nonorthogonal Problems",
1970; le Cessie and van Houwelingen, "Ridge Estimators in Logistic Regression", 1992) all of this is of the
penalized log-likelihood; coefficients are all that is published, and no outer products are summed.

P = columns of the design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import IMPLAUSIBLE, ROW_COUNTS
from strategies.analysis.cox import cox_fit, cox_quantities
from strategies.analysis.design import design_of, has_coefficient, in_units
from strategies.analysis.model_state import (
    COEFFICIENTS,
    COVARIANCE,
    DECREMENT,
    ITERATIONS,
    LIKELIHOOD,
    NULL_LIKELIHOOD,
    PREVIOUS,
    ROBUST,
    SQUARES,
    TREND,
    Status,
    bears,
    parts_in,
    status_in,
    used_in,
    with_status,
)
from strategies.analysis.model_sums import (
    BEYOND,
    Fit,
    beyond_quantity,
    is_of_squares,
    model_quantity,
    room_of,
    rounding_error,
)
from strategies.analysis.partition import Family, Model, Tables
from strategies.analysis.values import SHARE
from strategies.base import Array, Arrays, FloatArray, Phase, PhaseContext, PhaseResult, total_of
from strategies.exact import cholesky, product, solved

MODEL, MODEL_FIT = "analysis-model", "analysis-model-fit"
INFORMATION, GRADIENT, LIKELIHOODS = "model_information", "model_gradient", "model_likelihoods"
OUTER = "model_outer_products"
POWERS, PATIENTS = "model_powers", "model_patients"

CONVERGED_AT = 1e-8  # squared length in standard errors: the step after it is one of 1e-8 errors
STEADY = 1e-3  # of the largest coefficient: a step of a separated model is longer
COLLINEAR_AT = 1e-9  # what the other columns leave of a column, as a share
ROUNDED = 1e-11  # of a log-likelihood
LN_8 = 2.0794415416798357
REACH = 8.0  # of a patient's sum of gradients, which bounds what is summed; beyond it the model is withheld
SLOW = 0.1  # times the last step's squared length: Newton's steps near a solution shrink much faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of a record, with columns from -1 to 1. lowest, highest: linear predictors that are not cut off."""

    lowest: float
    highest: float
    weight: float
    residual: float
    likelihood: float


BOUNDS = {
    # squares of all residuals are at most those of the outcomes, which are one a record
    Family.LINEAR: Bounds(lowest=-1e3, highest=1e3, weight=1.0, residual=1.0, likelihood=1.0),
    Family.LOGISTIC: Bounds(lowest=-30.0, highest=30.0, weight=0.25, residual=1.0, likelihood=32.0),
    # a mean of 8 times the highest outcome is none that fits: ln 8
    Family.POISSON: Bounds(lowest=-30.0, highest=LN_8, weight=8.0, residual=8.0, likelihood=64.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPhase(Phase):
    """A step."""

    tables: Tables
    kind: str = MODEL

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (P, P), (P,), () and (), or those of a Cox model."""
        return _quantities(self.tables, context)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write the next coefficients; nothing new once there are none that are better. Nothing, too, of sums
        that no records give."""
        state = context.state
        if status_in(state) is not Status.RUNNING:
            return PhaseResult(state=state)
        fit = _fit(self.tables, self.quantities(context), context, sums)
        if fit is None:
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        taken = int(state[ITERATIONS])
        present_P, before_P = state[COEFFICIENTS], state[PREVIOUS]
        least = float(state[LIKELIHOOD])
        least -= ROUNDED * (1.0 + abs(least)) + fit.likelihood_error
        state = {**state, ITERATIONS: np.array(taken + 1, np.int64)}
        if taken and (fit.is_beyond or fit.likelihood < least):
            return PhaseResult(state={**state, COEFFICIENTS: before_P + (present_P - before_P) / 2.0})
        if taken == 0 and fit.trend_P is not None:
            state[NULL_LIKELIHOOD] = np.array(fit.likelihood)
        used_P = used_in(self.tables, state)
        inverse_PP = _inverse(fit.information_PP, used_P, fit.information_error)
        if inverse_PP is None:
            return PhaseResult(state=with_status(state, Status.SEPARATED if taken else Status.COLLINEAR))
        gradient_P = np.where(used_P, fit.gradient_P, 0.0)
        step_P = product(inverse_PP, gradient_P[:, None])[:, 0]
        decrement = _decrement(self.tables, state, gradient_P, step_P, fit.likelihood, used_P)
        after_P = present_P + step_P
        state = {
            **state,
            PREVIOUS: present_P,
            COEFFICIENTS: after_P,
            LIKELIHOOD: np.array(fit.likelihood),
            DECREMENT: np.array(decrement),
        }
        if taken and _is_last(decrement, step_P, after_P):
            state = with_status(state, Status.CONVERGED)
        return PhaseResult(state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFitPhase(Phase):
    """Covariances at the last coefficients."""

    tables: Tables
    kind: str = MODEL_FIT

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: as of a step, and (P, P); by patient (2, L), of columns of all parts the second and fourth
        powers, and (2,): all, and those beyond REACH. Of a Cox model and with ridge those of a step alone."""
        found, model = _quantities(self.tables, context), _model(self.tables)
        if model.family is Family.COX or model.ridge is not None:
            return found
        size, residual = len(design_of(self.tables)), BOUNDS[model.family].residual
        if not model.by_patient:
            return (*found, model_quantity(OUTER, (size, size), residual * residual, context))
        # squares of sums are at most REACH times the sums, which are at most those of the residuals
        parts = len(design_of(self.tables, first=0))
        powers = model_quantity(POWERS, (2, parts), REACH * REACH * REACH * residual, context)
        count = Quantity(
            name=PATIENTS,
            shape=(2,),
            bound=2.0 * total_of(context.state),
            is_count=True,
            is_tagged=True,
            discloses=Disclosure.CELL,
        )
        return (*found, model_quantity(OUTER, (size, size), REACH * residual, context), powers, count)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write covariances, and how the fit ended. Nothing of sums that no records give."""
        state, status, model = {**context.state}, status_in(context.state), _model(self.tables)
        before_P, last, _ = (state.pop(name) for name in (PREVIOUS, DECREMENT, LIKELIHOOD))
        if status.is_withheld:
            return PhaseResult(state={**state, COEFFICIENTS: np.zeros(len(before_P))})
        quantities = self.quantities(context)
        fit = _fit(self.tables, quantities, context, sums)
        if fit is None:
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        used_P = used_in(self.tables, state)
        inverse_PP = _inverse(fit.information_PP, used_P, fit.information_error)
        if inverse_PP is None:
            return PhaseResult(state=with_status(state, Status.SEPARATED))
        likelihood, present_P = fit.likelihood, state[COEFFICIENTS]
        if status is Status.RUNNING:
            gradient_P = np.where(used_P, fit.gradient_P, 0.0)
            step_P = product(inverse_PP, gradient_P[:, None])[:, 0]
            now = _decrement(self.tables, state, gradient_P, step_P, likelihood, used_P)
            status = Status.NOT_CONVERGED
            if not fit.is_beyond and _is_last(now, step_P, present_P):
                status = Status.CONVERGED
            elif SLOW * float(last) < now < 1.0:
                status = Status.SEPARATED
        if model.ridge is not None:
            return PhaseResult(state=with_status(state, status))
        if fit.trend_P is not None:
            state |= {LIKELIHOOD: np.array(likelihood), COVARIANCE: inverse_PP}
            state[TREND] = np.where(used_P, fit.trend_P, 0.0)
            return PhaseResult(state=with_status(state, status))
        records = float(state[ROW_COUNTS][0])
        freedom = records - float(np.count_nonzero(used_P))
        variance = 1.0 / _outcome_unit(self.tables)
        if model.family is Family.LINEAR:
            # of an exact fit there are none but for rounding
            squares = max(-2.0 * likelihood, fit.likelihood_error)
            state[SQUARES] = np.array(squares)
            variance = squares / freedom
        outer_PP = np.where(used_P & used_P[:, None], sums[OUTER], 0.0)
        correction = records / freedom
        if model.by_patient:
            patients, large = (int(each) for each in sums[PATIENTS])
            error = rounding_error(quantities[-2], context.members)
            is_used_L = has_coefficient(design_of(self.tables, first=0), parts_in(self.tables, state))
            square_U, fourth_U = np.asarray(sums[POWERS], np.float64)[:, is_used_L]
            if not 0 <= large <= patients <= records:
                return PhaseResult(state=None, reason=IMPLAUSIBLE)
            withheld = None
            if not bears(patients, int(np.count_nonzero(used_P))):
                withheld = Status.MANY_PARAMETERS
            elif large or _has_large_patient(square_U - error, fourth_U + error):
                withheld = Status.DOMINATED
            if withheld is not None:
                state.pop(SQUARES, None)
                return PhaseResult(
                    state=with_status({**state, COEFFICIENTS: np.zeros(len(used_P))}, withheld)
                )
            correction = patients / (patients - 1.0) * (records - 1.0) / freedom
        robust_PP = product(product(inverse_PP, outer_PP), inverse_PP)
        places = np.arange(len(robust_PP))
        robust_PP[places, places] = np.maximum(robust_PP[places, places], 0.0)  # below by rounding, or a lie
        state |= {
            LIKELIHOOD: np.array(likelihood),
            COVARIANCE: variance * inverse_PP,
            ROBUST: correction * robust_PP,
        }
        return PhaseResult(state=with_status(state, status))


def _has_large_patient(square_U: FloatArray, fourth_U: FloatArray) -> bool:
    """Whether a patient may make more than SHARE of the squares that another leaves. Their squares a and b
    have a^2 + b^2 <= the fourth powers, so b + SHARE a <= sqrt((1 + SHARE^2) fourth powers)."""
    most_U = SHARE * square_U
    is_of_many_U = (1.0 + SHARE * SHARE) * fourth_U <= most_U * most_U
    return not (is_of_many_U & (square_U > 0.0)).all()


def _model(tables: Tables) -> Model:
    assert tables.model is not None
    return tables.model


def _outcome_unit(tables: Tables) -> float:
    """By which log-likelihoods are divided."""
    model = _model(tables)
    return tables.partitions[model.outcome].edges[-1] if model.family is Family.POISSON else 1.0


def _quantities(tables: Tables, context: PhaseContext) -> tuple[Quantity, ...]:
    family = _model(tables).family
    if family is Family.COX:
        return cox_quantities(tables, context)
    size, bounds = len(design_of(tables)), BOUNDS[family]
    return (
        model_quantity(INFORMATION, (size, size), bounds.weight, context),
        model_quantity(GRADIENT, (size,), bounds.residual, context),
        model_quantity(LIKELIHOODS, (), bounds.likelihood, context),
        beyond_quantity(),
    )


def _fit(
    tables: Tables, quantities: Sequence[Quantity], context: PhaseContext, sums: Mapping[str, Array]
) -> Fit | None:
    """None of sums that no records give: matrices are those of squares, and no log-likelihood is above 0, as
    a Poisson outcome is at most 1 here. A silo can send others, with which no variance would be one."""
    if _model(tables).family is Family.COX:
        fit = cox_fit(tables, quantities, context, sums)
        return None if fit is None else _penalized(fit, tables, context.state[COEFFICIENTS])
    for each in quantities:
        room = room_of(each, context.members)
        if each.name == LIKELIHOODS and float(sums[each.name]) > room:
            return None
        if each.name in (INFORMATION, OUTER) and not is_of_squares(
            np.asarray(sums[each.name], np.float64), room
        ):
            return None
    fit = Fit(
        information_PP=np.asarray(sums[INFORMATION], np.float64),
        gradient_P=np.asarray(sums[GRADIENT], np.float64),
        likelihood=float(sums[LIKELIHOODS]),
        is_beyond=int(sums[BEYOND]) > 0,
        information_error=rounding_error(quantities[0], context.members),
        likelihood_error=rounding_error(quantities[2], context.members),
    )
    return _penalized(fit, tables, context.state[COEFFICIENTS])


def _penalized(fit: Fit, tables: Tables, coefficient_P: FloatArray) -> Fit:
    """By the coefficients in the columns' units, but for the outcome's and the intercept."""
    ridge = _model(tables).ridge
    if ridge is None:
        return fit
    units_PP = in_units(tables)[[bool(factors) for factors in design_of(tables)]]
    penalty_PP = ridge / _outcome_unit(tables) * product(units_PP.T, units_PP)
    slope_P = product(penalty_PP, coefficient_P[:, None])[:, 0]
    return replace(
        fit,
        information_PP=fit.information_PP + penalty_PP,
        gradient_P=fit.gradient_P - slope_P,
        likelihood=fit.likelihood - float(product(coefficient_P[None], slope_P[:, None])[0, 0]) / 2.0,
        trend_P=None,
    )


def _inverse(information_PP: FloatArray, used_P: Array, error: float) -> FloatArray | None:
    """Zeros where there is no coefficient; None where a column follows from others. Shapes: -> (P, P)."""
    places = np.flatnonzero(used_P)
    system_UU = information_PP[np.ix_(places, places)]
    system_UU = (system_UU + system_UU.T) / 2.0
    diagonal_U = np.diagonal(system_UU)
    if not (diagonal_U > error).all():
        return None
    root_U = np.sqrt(diagonal_U)
    scaled_UU = system_UU / (root_U * root_U[:, None])
    least = max(COLLINEAR_AT, len(places) * error / float(diagonal_U.min()))
    if cholesky(scaled_UU, least_pivot=least)[0].shape[1] < len(places):
        return None
    inverse_UU = solved(scaled_UU, np.eye(len(places)), least_pivot=0.0) / (root_U * root_U[:, None])
    inverse_PP = np.zeros((len(used_P), len(used_P)))
    inverse_PP[np.ix_(places, places)] = (inverse_UU + inverse_UU.T) / 2.0
    return inverse_PP


def _decrement(
    tables: Tables,
    state: Arrays,
    gradient_P: FloatArray,
    step_P: FloatArray,
    likelihood: float,
    used_P: Array,
) -> float:
    """Squared length of a step, in standard errors."""
    squared = float(product(gradient_P[None], step_P[:, None])[0, 0])
    if _model(tables).family is not Family.LINEAR:
        return squared * _outcome_unit(tables)
    freedom = float(state[ROW_COUNTS][0]) - float(np.count_nonzero(used_P))
    squares = -2.0 * likelihood
    return squared * freedom / squares if squares > 0.0 else 0.0


def _is_last(decrement: float, step_P: FloatArray, after_P: FloatArray) -> bool:
    longest = float(np.abs(step_P).max())
    return decrement <= CONVERGED_AT and longest <= STEADY * (1.0 + float(np.abs(after_P).max()))
