"""The results of a regression: a table of coefficients, from the figures that were published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from chorale.results import library
from chorale.spec.analyses.regression_spec import RegressionSpec
from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.coefficients import (
    Coefficient,
    JointTest,
    chi_squared_test,
    coefficients_in,
    joint_tests,
    model_parts_in,
)
from client.analysis.parts import in_words, published_parts
from client.analysis.records import Record
from client.analysis.tables import Line, Table, short
from client.analysis.tails import above
from client.analysis.text import plain_text
from crypto.errors import ConfigError
from strategies.analysis.counts import PART_COUNTS, ROW_COUNTS
from strategies.analysis.design import design_of, has_coefficient
from strategies.analysis.merging import split_bins
from strategies.analysis.model_state import (
    COEFFICIENTS,
    COVARIANCE,
    ITERATIONS,
    LIKELIHOOD,
    MODEL_PARTS,
    NULL_LIKELIHOOD,
    PREVIOUS,
    SQUARES,
    TREND,
    Status,
    status_in,
)
from strategies.analysis.model_values import least_patients
from strategies.analysis.partition import Family, Trend
from strategies.base import Arrays, array_in

if TYPE_CHECKING:
    from pandas import DataFrame

RATIOS = {Family.LOGISTIC: "odds ratio", Family.POISSON: "rate ratio", Family.COX: "hazard ratio"}
NOT_CONVERGED = "It did not converge in {steps} steps: its coefficients are not those of the best fit."
WHY = {
    Status.RUNNING: "The model is not fitted yet.",
    Status.NOT_CONVERGED: NOT_CONVERGED,
    Status.SEPARATED: "It did not converge in {steps} steps, perhaps because a term separates the outcomes: "
    "some coefficients grow from step to step, while the fit hardly changes.",
    Status.SMALL_CELLS: "Withheld: one of the two parts of the outcome holds fewer than {least} records.",
    Status.MANY_PARAMETERS: "Withheld: there are fewer than three records a coefficient, or fewer than ten "
    "more than coefficients; of patients likewise, where errors are by patient.",
    Status.DOMINATED: "Withheld: a column of numbers shows fewer than three parts, or a value may stand out "
    "of it, or of a cell of the columns with categories; where errors are by patient, a patient may, or such "
    "a cell has few of them. Parts narrower than a standard deviation help, and fewer categories.",
    Status.COLLINEAR: "Withheld: a column of the model follows from the others.",
}
WITHOUT_BINS = (
    "Withheld: no two bins of time are left that hold {least} events in each combination of the columns with "
    "categories, or one of these has fewer censored records, or no term is left."
)
BINNED = "Cox model of pooled records with times binned alike ({ties}). Bins of events: {events}. Those "
BINNED += "censored are at risk in each that begins before theirs ends: {censored}."
TREND_OF = (
    "Change: chi-squared (1) of a coefficient that changes with the {trend} of the bin; a small p speaks "
)
TREND_OF += "against proportional hazards."
MERGED = "Merged: a part or a cell of the model's columns with categories holds fewer than {least} records."
AGAINST = "Against {against}."
WHOLE = "Whole model against none of its terms"
ALL_TERMS = "All terms"
LEFT_OUT = "{name} has no {lacks}: its parts are merged into one, since a finer combination of categories, "
LEFT_OUT += "outcome and bin of time has fewer than {least} records."
BY_PATIENT = (
    "SE, p and interval allow for what records of one patient have in common (cluster-robust), by {by}. "
    "SE (model): as if they had nothing. Where fewer than {least} patients have records in the same two "
    "cells of categories, these count as of two patients; where fewer have several records, all do."
)
ERRORS = "SE, p and interval are those of the model, by {by}. SE (HC1): without its variance (White 1980)."
RIDGE = (
    "A ridge penalty of {ridge:g} on all but the intercept pulls coefficients towards 0: there are no "
    "standard errors, tests or AIC."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """coefficients: none where the model is withheld or not fitted yet. freedom: of Student's t; None where
    errors are normal. residual: standard deviation of a linear model's residuals, in the outcome's unit.
    log_likelihood: None of a Poisson model, whose constant tells how many records have each outcome. tests:
    where it converged, of terms with several coefficients, then of the whole model. left_out: columns of
    which one part is left. bins: of a Cox model's time, of those censored and of events. With ridge there are
    coefficients alone."""

    spec: AnalysisSpec
    model: RegressionSpec
    status: Status
    steps: int
    records: int
    coefficients: tuple[Coefficient, ...]
    freedom: int | None
    residual: float | None
    log_likelihood: float | None
    tests: tuple[JointTest, ...]
    left_out: tuple[str, ...]
    bins: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: AnalysisSpec, state: Arrays) -> Self:
        """Raises ConfigError for a job without a model, and a state that the job's rules cannot give."""
        if spec.model is None:
            raise ConfigError(f"job {spec.name}: expected an analysis with a model")
        status, family = status_in(state), spec.model.family
        records = int(array_in(state, ROW_COUNTS, (1,), np.int64)[0])
        parts_of = model_parts_in(spec, state)
        coefficients, tests = tuple[Coefficient, ...](), tuple[JointTest, ...]()
        freedom = residual = likelihood = None
        if not status.is_withheld and PREVIOUS in state:
            status = Status.RUNNING  # steps may have converged
        elif not status.is_withheld and spec.model.ridge is not None:
            coefficients = coefficients_in(spec, state, parts_of, freedom=None)
        elif not status.is_withheld and COVARIANCE in state:
            count = int(np.count_nonzero(has_coefficient(design_of(spec.tables), parts_of)))
            if not count:
                raise ConfigError(f"{MODEL_PARTS}: expected a coefficient of a model that is fitted")
            left = records - count
            if left < 1:
                raise ConfigError(f"{ROW_COUNTS}: expected more records than coefficients, got {records}")
            freedom = left if family is Family.LINEAR and spec.model.errors == "record" else None
            coefficients = coefficients_in(spec, state, parts_of, freedom=freedom)
            if family is Family.LINEAR:
                residual = _residual(spec, state, left)
                squares = residual * residual * left
                likelihood = -records / 2.0 * (math.log(2.0 * math.pi * squares / records) + 1.0)
            elif family in (Family.LOGISTIC, Family.COX):
                likelihood = float(array_in(state, LIKELIHOOD, (), np.float64))
            if status is Status.CONVERGED:
                tests = tuple(joint_tests(spec, state, parts_of, freedom=freedom))
                if family is Family.COX:
                    tests = (*tests, *_tests(spec, state, parts_of))
                elif spec.model.compares_likelihoods and count > 1:
                    ratio = _likelihood_ratio(spec, state, records)
                    test = chi_squared_test("", "likelihood ratio chi-squared", ratio, count - 1)
                    tests = (*tests, test)
        time = spec.tables.time
        bins = tuple[str, ...]()
        if time is not None:
            runs = split_bins(parts_of[time])
            bins = tuple(in_words(published_parts(spec.columns[time], each)) for each in runs)
        names = {place: spec.columns[place].name for place in parts_of if place != time}
        return cls(
            spec=spec,
            model=spec.model,
            status=status,
            steps=int(array_in(state, ITERATIONS, (), np.int64)),
            records=records,
            coefficients=coefficients,
            freedom=freedom,
            residual=residual,
            log_likelihood=likelihood,
            tests=tests,
            left_out=tuple(names[place] for place in names if max(parts_of[place]) == 0),
            bins=bins,
        )

    @property
    def title(self) -> str:
        terms = " + ".join(" x ".join(term) for term in self.model.terms)
        terms += "" if self.model.offset is None else f", per {self.model.offset}"
        terms += f", stratified by {' x '.join(self.model.strata)}" if self.model.strata else ""
        outcome = next(column for column in self.spec.columns if column.name == self.model.outcome)
        event = f" {outcome.categories[1]}" if outcome.categories else ""
        return (
            f"{self.model.family} model of {outcome.name}{event} by {terms}: {self.records} complete records"
        )

    @property
    def in_words(self) -> str:
        """How it ended where it is not as it should be; else empty."""
        is_binned = self.model.time is not None and self.status is Status.SMALL_CELLS
        why = WITHOUT_BINS if is_binned else WHY.get(self.status, "")
        return why.format(steps=self.steps, least=self.spec.min_cell, outcome=self.model.outcome)

    def table(self) -> Table:
        """As journals print it."""
        ratio = RATIOS.get(self.model.family)
        is_cox, has_errors = self.model.family is Family.COX, self.model.ridge is None
        heads = ["coefficient"]
        if has_errors:
            robust = [] if is_cox else [f"SE ({self._other})"]
            heads += ["95 % interval", "SE", *robust, self._statistic, "p"]
        if ratio is not None:
            heads.append(f"{ratio} (95 % interval)" if has_errors else ratio)
        if is_cox and has_errors:
            heads.append("change")
        numbers: dict[str, int] = {}
        lines = []
        for each in self.coefficients:
            notes = [AGAINST.format(against=each.against)] if each.against else []
            notes += [MERGED.format(least=self.spec.min_cell)] if each.is_merged else []
            cells = [_digits(each.estimate)]
            if has_errors:
                cells += [f"{_digits(each.low)} to {_digits(each.high)}", _digits(each.error)]
                cells += [] if is_cox else [_digits(each.robust_error)]
                cells += [f"{each.statistic:.2f}", _of_p(each.p)]
            if ratio is not None:
                cells.append(_of_ratio(each.ratio))
            if each.trend is not None:
                cells.append(f"{each.trend:.2f} (p {_of_p(above(each.trend, 1))})")
            marks = tuple(numbers.setdefault(note, len(numbers) + 1) for note in notes)
            lines.append(Line(label=each.term, level=1, cells=tuple(cells), notes=marks))
        return Table(
            title=self.title,
            heads=tuple(heads),
            lines=tuple(lines),
            notes=(*numbers, *self._notes()),
        )

    def to_text(self) -> str:
        """The table in aligned columns, for a terminal."""
        return plain_text(self.table())

    def figures(self) -> Iterator[Record]:
        """A row a figure, as of the other results: the term stands in place of the part."""
        for each in self.coefficients:
            figures = {
                "coefficient": each.estimate,
                "coefficient, lower end": each.low,
                "coefficient, upper end": each.high,
                "standard error": each.error,
                f"standard error ({self._other})": each.robust_error,
                self._statistic: each.statistic,
                "p": each.p,
            }
            if each.trend is not None:
                figures |= {"change, chi-squared": each.trend, "change, p": above(each.trend, 1)}
            if each.ratio:
                ratio = RATIOS[self.model.family]
                names = (ratio, f"{ratio}, lower end", f"{ratio}, upper end")
                figures |= dict(zip(names, each.ratio, strict=True))
            note = "; ".join([*([f"against {each.against}"] if each.against else []), *self._ended])
            for figure, value in figures.items():
                if not math.isnan(value):
                    yield self._record(
                        figure, value if math.isfinite(value) else None, part=each.term, note=note
                    )
        if not self.coefficients:
            yield self._record("coefficient", None, note=self.in_words)
        if self.residual is not None:
            yield self._record("residual standard deviation", self.residual)
        for name, value in self._of_likelihood.items():
            yield self._record(name, value)
        for test in self.tests:
            note = "" if test.term else WHOLE
            yield self._record(test.figure, test.statistic, part=test.term, note=note)
            yield self._record(f"{test.figure}, degrees of freedom", test.freedom, part=test.term, note=note)
            yield self._record(f"{test.figure}, p", test.p, part=test.term, note=note)

    @property
    def _of_likelihood(self) -> dict[str, float]:
        """Deviance of a logistic model. AIC counts the coefficients, as statsmodels does."""
        if self.log_likelihood is None:
            return {}
        twice = -2.0 * self.log_likelihood
        deviance = {"deviance": twice} if self.model.family is Family.LOGISTIC else {}
        return {
            "log-likelihood": self.log_likelihood,
            **deviance,
            "AIC": twice + 2.0 * len(self.coefficients),
        }

    @property
    def _other(self) -> str:
        """Which errors stand beside the first ones."""
        return "HC1" if self.model.errors == "record" else "model"

    def summary(self) -> DataFrame:
        """Of a model with ratios, a row a term, as lifelines' `CoxPHFitter.summary`. Raises ConfigError
        without the extra `notebook`."""
        pandas = library("pandas", "a summary")
        rows = [each for each in self.coefficients if each.ratio]
        frame: DataFrame = pandas.DataFrame(
            {
                "coef": [each.estimate for each in rows],
                "exp(coef)": [each.ratio[0] for each in rows],
                "se(coef)": [each.error for each in rows],
                "coef lower 95%": [each.low for each in rows],
                "coef upper 95%": [each.high for each in rows],
                "exp(coef) lower 95%": [each.ratio[1] for each in rows],
                "exp(coef) upper 95%": [each.ratio[2] for each in rows],
                "cmp to": [0.0] * len(rows),
                "z": [each.statistic for each in rows],
                "p": [each.p for each in rows],
                "-log2(p)": [-math.log2(each.p) if each.p else math.inf for each in rows],
            },
            index=pandas.Index([each.term for each in rows], name="covariate"),
        )
        return frame

    @property
    def _statistic(self) -> str:
        return "z" if self.freedom is None else "t"

    @property
    def _ended(self) -> list[str]:
        return [self.in_words] if self.in_words else []

    def _record(self, figure: str, value: float | None, *, part: str = "", note: str = "") -> Record:
        return {
            "column": self.model.outcome,
            "figure": figure,
            "part": part,
            "group": "model",
            "value": value,
            "unit": "",
            "note": note,
        }

    def _notes(self) -> Iterator[str]:
        yield from self._ended
        if self.coefficients and self.model.time is not None:
            censored, events = self.bins
            yield BINNED.format(ties=self.model.ties.capitalize(), events=events, censored=censored)
        if self.coefficients and self.model.ridge is not None:
            yield RIDGE.format(ridge=self.model.ridge)
        elif self.coefficients and self.model.time is not None:
            yield TREND_OF.format(trend="mean rank" if self.model.trend is Trend.RANK else "place")
        elif self.coefficients:
            freedom = f"Student's t with {self.freedom} degrees of freedom"
            errors = ERRORS if self.model.errors == "record" else BY_PATIENT
            by, least = (
                "the normal distribution" if self.freedom is None else freedom,
                least_patients(self.spec.tables),
            )
            yield errors.format(by=by, least=least)
        if self.residual is not None:
            yield f"Residual standard deviation: {_digits(self.residual)}."
        if found := self._of_likelihood:
            said = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            yield f"{said[0].upper()}{said[1:]}."
        for test in self.tests:
            within = f"{test.freedom}, {self.freedom}" if test.figure == "F" else f"{test.freedom}"
            said = f"{test.figure} ({within}) {test.statistic:.2f}, p {_of_p(test.p)}"
            yield f"{test.term or WHOLE}: {said}."
        for name in self.left_out:
            lacks = "baselines of its own" if name in self.model.strata else "coefficient"
            yield LEFT_OUT.format(name=name, lacks=lacks, least=self.spec.min_cell)


def _tests(spec: AnalysisSpec, state: Arrays, parts_of: Mapping[int, Sequence[int]]) -> Iterator[JointTest]:
    """Of all coefficients of a Cox model. Raises ConfigError for a covariance that is none."""
    used = np.flatnonzero(has_coefficient(design_of(spec.tables), parts_of))
    size = len(design_of(spec.tables))
    covariance = array_in(state, COVARIANCE, (size, size), np.float64)[np.ix_(used, used)]
    beta, trend = (array_in(state, name, (size,), np.float64)[used] for name in (COEFFICIENTS, TREND))
    best, null = (float(array_in(state, name, (), np.float64)) for name in (LIKELIHOOD, NULL_LIKELIHOOD))
    try:
        wald = float(beta @ np.linalg.solve(covariance, beta))
    except np.linalg.LinAlgError:
        raise ConfigError(f"{COVARIANCE}: expected one that has an inverse") from None
    for term, name, statistic in (
        ("", "likelihood ratio chi-squared", 2.0 * (best - null)),
        ("", "Wald chi-squared", wald),
        (ALL_TERMS, "change with time chi-squared", float(trend @ covariance @ trend)),
    ):
        yield chi_squared_test(term, name, statistic, len(used))


def _residual(spec: AnalysisSpec, state: Arrays, freedom: int) -> float:
    assert spec.model is not None
    edges = next(column.edges for column in spec.columns if column.name == spec.model.outcome)
    assert edges is not None
    squares = float(array_in(state, SQUARES, (), np.float64))
    return (edges[-1] - edges[0]) / 2.0 * math.sqrt(max(squares, 0.0) / freedom)


def _likelihood_ratio(spec: AnalysisSpec, state: Arrays, records: int) -> float:
    """Twice the log-likelihood above that of the intercept alone, which follows from the outcomes' counts, or
    their sum: at the best fit that of the means, the first of the information."""
    model, likelihood = spec.tables.model, float(array_in(state, LIKELIHOOD, (), np.float64))
    assert model is not None
    partition = spec.tables.partitions[model.outcome]
    if model.family is Family.LOGISTIC:
        counts = array_in(state, f"{PART_COUNTS}{model.outcome}", (partition.size,), np.int64)
        alone = math.fsum(count * math.log(count / records) for count in counts.tolist() if count > 0)
        return 2.0 * (likelihood - alone)
    design = design_of(spec.tables)
    has_P, size = has_coefficient(design, model_parts_in(spec, state)), len(design)
    covariance_UU = array_in(state, COVARIANCE, (size, size), np.float64)[np.ix_(has_P, has_P)]
    first_U = np.zeros(len(covariance_UU))
    first_U[0] = 1.0
    try:
        outcomes = float(np.linalg.solve(covariance_UU, first_U)[0])
    except np.linalg.LinAlgError:
        raise ConfigError(f"{COVARIANCE}: expected one that has an inverse") from None
    if outcomes <= 0.0:
        raise ConfigError(f"{COVARIANCE}: expected that of a sum of outcomes above 0")
    unit = partition.edges[-1]
    return 2.0 * (unit * likelihood - outcomes * (math.log(outcomes / unit / records) - 1.0))


def _digits(value: float) -> str:
    """Four of them."""
    return short(float(f"{value:.4g}"))


def _of_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _of_ratio(ratio: tuple[float, ...]) -> str:
    if not ratio:
        return ""
    estimate, low, high = (f"{each:.3g}" for each in ratio)
    return estimate if math.isnan(ratio[1]) else f"{estimate} ({low} to {high})"
