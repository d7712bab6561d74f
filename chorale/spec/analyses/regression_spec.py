"""A regression over an analysis's columns, as its operator writes it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from chorale.spec.fields import Number, SpecPart
from chorale.spec.samples.column_specs import Heading
from strategies.analysis.partition import Family, Model, Ties, Trend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strategies.analysis.partition import Partition

MOST_TERMS = 100
MOST_FACTORS = 3  # columns of a term
MOST_ITERATIONS = 50
MOST_RIDGE = 1e12  # of records in the millions and numbers in the thousands
MOST_EXPOSURE = 1_000.0  # times the least: a logarithm of it stays within what a record adds to a sum


class RegressionSpec(SpecPart):
    """Of one column on others: a generalized linear model with an intercept, or a Cox model."""

    outcome: Heading = Field(
        description="one of the columns. logistic and cox: with two categories, the second is the event, the "
        "first of a cox model censored; linear and poisson: with edges, of a poisson model from 0 on"
    )
    family: Family = Field(description="linear, logistic or poisson, each with its usual link, or cox")
    terms: tuple[tuple[Heading, ...], ...] = Field(
        min_length=1,
        max_length=MOST_TERMS,
        description="each a column or a product of several, whose parts are terms, too; of a column with "
        "categories each but the first counts against the first, one with edges counts as its values",
    )
    offset: Heading | None = Field(
        default=None,
        description="of a poisson model one of the columns, the exposure, such as days under observation: "
        "the outcome is counted per unit of it; with edges above 0, the highest at most 1,000 times the "
        "lowest; null: all records have the same",
    )
    errors: Literal["record", "patient"] = Field(
        default="record",
        description="record: standard errors as if records were independent; patient: they allow for what "
        "the records of one patient at a silo have in common (cluster-robust), and a silo whose settings do "
        "not say whose a record is (data.unit) refuses the job",
    )
    ridge: Number | None = Field(
        default=None,
        gt=0,
        le=MOST_RIDGE,
        description="a penalty: half of it times the sum of the squared coefficients, in the units of the "
        "results and without the intercept's, is taken from the log-likelihood, of a linear model from half "
        "the squares of its residuals; results have coefficients alone, for no errors are valid; null: none",
    )
    iterations: int = Field(
        default=10, ge=2, le=MOST_ITERATIONS, description="steps at most; each is one sum over all silos"
    )

    time: Heading | None = Field(
        default=None,
        description="of a cox model, which needs it: one of the columns, with edges from 0 on, which are its "
        "bins; all events of a bin are tied, and records with a longer time are left out",
    )
    strata: tuple[Heading, ...] = Field(
        default=(),
        max_length=MOST_FACTORS,
        description="of a cox model: columns with categories, each combination of which has a baseline of "
        "its own, and no coefficient",
    )
    ties: Ties = Field(default=Ties.EFRON, description="of a cox model: how events of a bin count")
    trend: Trend = Field(
        default=Trend.RANK,
        description="of a cox model: with what of a bin the test of proportional hazards compares, the mean "
        "rank of its events or its place (identity)",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Outcome first, each once."""
        time = () if self.time is None else (self.time,)
        terms = (name for term in self.terms for name in term)
        return tuple(dict.fromkeys((self.outcome, *time, *terms, *self.strata, *self._exposure)))

    @property
    def _exposure(self) -> tuple[str, ...]:
        return () if self.offset is None else (self.offset,)

    @property
    def compares_likelihoods(self) -> bool:
        """Whether the whole model's test is of likelihoods, where that of the intercept alone is known."""
        return self.family is not Family.LINEAR and self.errors == "record" and self.offset is None

    @property
    def in_words(self) -> str:
        terms = ", ".join(" x ".join(term) for term in self.terms)
        errors = ", with errors by patient" if self.errors == "patient" else ""
        per = "".join(f" per {name}" for name in self._exposure)
        over = "" if self.time is None else f" over bins of {self.time}"
        over += f", with a baseline each of {', '.join(self.strata)}" if self.strata else ""
        ridge = "" if self.ridge is None else f", with a ridge penalty of {self.ridge:g}"
        model = f"{self.family} model of {self.outcome}{per} by {terms}{over}{errors}{ridge}"
        return f"fits a {model} in {self.iterations} steps at most"

    def placed(self, names: Mapping[str, int]) -> Model:
        """names: places of the columns."""
        return Model(
            outcome=names[self.outcome],
            family=self.family,
            terms=tuple(tuple(names[name] for name in term) for term in self.terms),
            by_patient=self.errors == "patient",
            offset=None if self.offset is None else names[self.offset],
            ridge=self.ridge,
            time=None if self.time is None else names[self.time],
            strata=tuple(names[name] for name in self.strata),
            ties=self.ties,
            trend=self.trend,
        )

    def check(self, partitions: Mapping[str, Partition]) -> None:
        """Raises ValueError for columns that are others than the model's, or that do not fit it."""
        for name in self.columns:
            if name not in partitions:
                raise ValueError(f"model: expected columns of the job, got {name!r}")
        for name in partitions:
            if name not in self.columns:
                raise ValueError(
                    f"columns: {name} is none of the model's, and the job describes the records that are "
                    "complete in these; describe it in another analysis"
                )
        outcome = partitions[self.outcome]
        if self.time is not None:
            time = partitions[self.time]
            if not time.is_ordered or time.edges[0] != 0 or time.has_mean:
                raise ValueError(
                    f"model.time: expected a column with edges from 0 on and no mean: {self.time}"
                )
        for name in self.strata:
            if partitions[name].is_ordered:
                raise ValueError(f"model.strata: expected columns with categories, {name} has none")
        if self.family in (Family.LOGISTIC, Family.COX):
            if outcome.is_ordered or outcome.parts != 2:
                raise ValueError(
                    f"model.outcome: expected a column with two categories, {self.outcome} has not"
                )
        elif not outcome.is_ordered:
            raise ValueError(f"model.outcome: expected a column with edges, {self.outcome} has none")
        elif self.family is Family.POISSON and not 0 <= outcome.edges[0] < outcome.edges[-1]:
            raise ValueError(f"model.outcome: expected edges from 0 on, got {outcome.edges[0]:g}")
        if self.errors == "patient" and not any(
            partitions[name].is_ordered and (name != self.outcome or self.family is Family.LINEAR)
            for term in self.terms
            for name in (*term, self.outcome)
        ):
            raise ValueError(
                "model.errors: expected a column of numbers for errors by patient: those of categories alone "
                "tell how many patients have records in two cells"
            )
        for name in self._exposure:
            edges = partitions[name].edges
            if not edges or edges[-1] > MOST_EXPOSURE * edges[0]:  # also if that is 0
                raise ValueError(
                    "model.offset: expected a column with edges above 0, the highest at most "
                    f"{MOST_EXPOSURE:,.0f} times the lowest, {name} has not"
                )
        for name in self.columns:
            if not partitions[name].is_ordered and partitions[name].parts < 2:
                raise ValueError(f"model: {name} has one category alone, and nothing differs by it")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.offset is not None and self.family is not Family.POISSON:
            raise ValueError(f"offset: expected a poisson model, got {self.family}")
        for term in (*self.terms, (self.outcome,)):
            if self.offset in term:
                raise ValueError(f"offset: {self.offset} is a term or the outcome")
        if (self.time is None) == (self.family is Family.COX):
            raise ValueError("time: expected with a cox model, and with no other one")
        if self.strata and self.time is None:
            raise ValueError("strata: expected with a cox model alone")
        if self.time is not None and self.errors == "patient":
            raise ValueError("errors: expected record with a cox model")
        if self.ridge is not None and self.errors == "patient":
            raise ValueError("errors: not allowed with ridge, whose coefficients have none")
        alone = [name for name in (self.outcome, self.time, *self.strata) if name is not None]
        if both := [name for name, times in Counter(alone).items() if times > 1]:
            raise ValueError(f"model: {both[0]} is two of outcome, time and strata")
        found = Counter(frozenset(term) for term in self.terms)
        for term in self.terms:
            if not 1 <= len(term) <= MOST_FACTORS:
                raise ValueError(f"terms: expected 1 to {MOST_FACTORS} columns in each, got {len(term)}")
            if len(set(term)) != len(term):
                raise ValueError(f"terms: {' x '.join(term)} has a column twice")
            for name in set(alone) & {*term}:
                what = "the outcome" if name == self.outcome else "time or stratum"
                raise ValueError(f"terms: {name} is {what}")
            for size in range(1, len(term)):
                for part in combinations(term, size):
                    if frozenset(part) not in found:
                        raise ValueError(
                            f"terms: {' x '.join(term)} needs {' x '.join(part)} as a term beside it"
                        )
        if twice := [term for term, times in found.items() if times > 1]:
            raise ValueError(f"terms: {' x '.join(sorted(twice[0]))} is named twice")
        return self
