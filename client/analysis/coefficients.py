"""A model's coefficients in the units of its columns, with their errors and intervals, from the last state.

States hold those of z, from -1 to 1 between a column's outermost edges.

P = columns of the design, of which not all have a coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.spec.analysis_spec import AnalysisSpec, DescribedColumn
from client.analysis.parts import Part, published_parts
from client.analysis.tails import above, above_f, beyond, reach
from crypto.errors import ConfigError
from strategies.analysis.design import NUMBER, design_of, has_coefficient, in_units
from strategies.analysis.merging import are_bins
from strategies.analysis.model_state import COEFFICIENTS, COVARIANCE, MODEL_PARTS, ROBUST, TREND
from strategies.analysis.partition import Family
from strategies.base import Arrays, array_in

Floats = NDArray[np.float64]
INTERCEPT = "intercept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """error: the model's, robust_error HC1; with errors by patient those, and the model's; NaN of Cox's. With
    ridge these and what follows from them are NaN. against: the parts that those of the term are compared
    with; empty of numbers alone. ratio: of odds, rates or hazards, with the ends of its interval; empty of a
    linear model, and of the intercept. trend: of a Cox model, chi-squared of a change with time."""

    term: str
    against: str
    is_merged: bool
    estimate: float
    error: float
    robust_error: float
    statistic: float
    p: float
    low: float
    high: float
    ratio: tuple[float, ...]
    trend: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTest:
    """Whether several coefficients are 0: chi-squared, or F where errors are Student's. term: empty of all
    but the intercept."""

    term: str
    figure: str
    statistic: float
    freedom: int
    p: float


def model_parts_in(spec: AnalysisSpec, state: Arrays) -> dict[int, tuple[int, ...]]:
    """By place of a factor, the published part of each declared one. Raises ConfigError."""
    found = {}
    for place in spec.tables.factors:
        name = f"{MODEL_PARTS}{place}"
        parts = tuple(array_in(state, name, (spec.tables.partitions[place].size,), np.int64).tolist())
        if tuple(dict.fromkeys(parts)) != tuple(range(max(parts) + 1)):
            raise ConfigError(f"{name}: expected parts that are numbered in their order")
        if place == spec.tables.time and max(parts) > 0 and not are_bins(parts):
            raise ConfigError(f"{name}: expected bins of each ending")
        found[place] = parts
    return found


def coefficients_in(
    spec: AnalysisSpec, state: Arrays, parts_of: Mapping[int, Sequence[int]], *, freedom: int | None
) -> tuple[Coefficient, ...]:
    """freedom: of Student's t; None: errors are normal. Raises ConfigError."""
    assert spec.model is not None
    design = design_of(spec.tables)
    size, has_P = len(design), has_coefficient(design, parts_of)
    units_PP = in_units(spec.tables)
    estimate_P = units_PP @ array_in(state, COEFFICIENTS, (size,), np.float64)
    is_cox, has_errors = spec.model.family is Family.COX, spec.model.ridge is None
    covariance_PP = (
        array_in(state, COVARIANCE, (size, size), np.float64) if has_errors else np.full((size, size), np.nan)
    )
    robust_PP = (
        array_in(state, ROBUST, (size, size), np.float64) if has_errors and not is_cox else covariance_PP
    )
    variance_P, robust_P = (
        np.diagonal(units_PP @ each_PP @ units_PP.T) for each_PP in (covariance_PP, robust_PP)
    )
    if ((variance_P <= 0) | (robust_P < 0))[has_P].any():
        raise ConfigError(f"{COVARIANCE}, {ROBUST}: expected no variance below 0")
    if spec.model.errors == "patient":
        variance_P, robust_P = robust_P, variance_P
        if not (variance_P > 0)[has_P].all():
            raise ConfigError(f"{ROBUST}: expected variances above 0")
    error_P, robust_P = np.sqrt(np.abs(variance_P)), np.sqrt(np.abs(robust_P))
    if is_cox and has_errors:
        robust_P = np.full(size, np.nan)
        change_P = units_PP @ covariance_PP @ array_in(state, TREND, (size,), np.float64)
    edges = next(column.edges for column in spec.columns if column.name == spec.model.outcome)
    if spec.model.family is Family.LINEAR:
        assert edges is not None
        half = (edges[-1] - edges[0]) / 2.0
        estimate_P, error_P, robust_P = half * estimate_P, half * error_P, half * robust_P
        estimate_P[0] += edges[0] + half
    elif spec.model.family is Family.POISSON:
        assert edges is not None
        estimate_P[0] += math.log(edges[-1])  # it counts in units of it, and exposures of theirs
        for column in spec.columns:
            if column.name == spec.model.offset and column.edges is not None:
                estimate_P[0] -= math.log(column.edges[-1])
    parts = {
        place: published_parts(spec.columns[place], each)
        for place, each in parts_of.items()
        if place != spec.tables.time
    }
    within, found = reach(freedom), []
    for place in np.flatnonzero(has_P).tolist():
        estimate, error = float(estimate_P[place]), float(error_P[place])
        ends = (estimate, estimate - within * error, estimate + within * error)
        factors = design[place]
        has_ratio = bool(factors) and spec.model.family is not Family.LINEAR
        levels = [(parts[column][0], parts[column][part]) for column, part in factors if part != NUMBER]
        found.append(
            Coefficient(
                term=" x ".join(_named(spec.columns[column], parts, column, part) for column, part in factors)
                or INTERCEPT,
                against=", ".join(first.label for first, _ in levels),
                is_merged=any(each.is_merged for pair in levels for each in pair),
                estimate=estimate,
                error=error,
                robust_error=float(robust_P[place]),
                statistic=estimate / error,
                p=beyond(estimate / error, freedom),
                low=ends[1],
                high=ends[2],
                ratio=tuple(_exponential(end) for end in ends) if has_ratio else (),
                trend=float(change_P[place] / error) ** 2 if is_cox and has_errors else None,
            )
        )
    return tuple(found)


def joint_tests(
    spec: AnalysisSpec, state: Arrays, parts_of: Mapping[int, Sequence[int]], *, freedom: int | None
) -> Iterator[JointTest]:
    """Wald tests of the terms that have several coefficients; then of all, where that is the test against the
    intercept alone and likelihoods are not. Raises ConfigError."""
    design = design_of(spec.tables)
    units_PP, size = in_units(spec.tables), len(design)
    estimate_P = units_PP @ array_in(state, COEFFICIENTS, (size,), np.float64)
    assert spec.model is not None
    name = ROBUST if spec.model.errors == "patient" else COVARIANCE
    covariance_PP = units_PP @ array_in(state, name, (size, size), np.float64) @ units_PP.T
    used = [place for place in np.flatnonzero(has_coefficient(design, parts_of)).tolist() if design[place]]
    of_term: dict[str, list[int]] = {}
    for place in used:
        of_term.setdefault(" x ".join(spec.columns[column].name for column, _ in design[place]), []).append(
            place
        )
    for term, places in (*of_term.items(), ("", used)):
        if (len(places) < 2) if term else not used or spec.model.compares_likelihoods:
            continue
        try:
            scaled_T = np.linalg.solve(covariance_PP[np.ix_(places, places)], estimate_P[places])
        except np.linalg.LinAlgError:
            raise ConfigError(f"{name}: expected one that has an inverse") from None
        found = float(estimate_P[places] @ scaled_T)
        if freedom is None:
            yield chi_squared_test(term, "Wald chi-squared", found, len(places))
            continue
        ratio = max(found, 0.0) / len(places)
        p = above_f(ratio, len(places), freedom)
        yield JointTest(term=term, figure="F", statistic=ratio, freedom=len(places), p=p)


def chi_squared_test(term: str, figure: str, statistic: float, freedom: int) -> JointTest:
    p = above(statistic, freedom)
    return JointTest(term=term, figure=figure, statistic=max(statistic, 0.0), freedom=freedom, p=p)


def _named(column: DescribedColumn, parts: Mapping[int, Sequence[Part]], place: int, part: int) -> str:
    if part != NUMBER:
        return f"{column.name} {parts[place][part].label}"
    return column.name if column.unit is None else f"{column.name} ({column.unit})"


def _exponential(value: float) -> float:
    return math.inf if value >= 700.0 else math.exp(value)
