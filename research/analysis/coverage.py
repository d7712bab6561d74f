"""How often 95 % intervals of an analysis hold what they are about, over seeded draws of four uneven silos.

    python -m research.analysis.coverage            # 1,000 draws a row

The truth is that of the law that records are drawn from; of binned survival also that of the same law with
times binned as published. Every draw goes through the phases of the product.

N = records.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.options import Parser, ended, whole
from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.columns import ColumnFigures
from client.analysis.described import DescribedResults
from client.analysis.regression import FittedModel
from client.analysis.survival import Bin, SurvivalCurves
from client.analysis.tails import reach
from research.analysis.records import Columns, job, last_state
from strategies.analysis.model_state import Status

RECORDS, DRAWS = (100, 300, 1_000), 1_000
AGE, SEX = "age", "sex"
EDGES: Mapping[str, Sequence[float]] = {
    AGE: (18, 40, 50, 55, 60, 65, 70, 110),
    "pressure": (20, 100, 110, 115, 120, 125, 130, 135, 140, 150, 160, 260),
    "stays": (0, 1, 2, 3, 5, 8, 60),
}
CATEGORIES: Mapping[str, Sequence[str]] = {
    SEX: ("f", "m"),
    "died": ("no", "yes"),
}
TRUE = {AGE: 0.04, SEX: 0.5}  # of each model
HAZARD, LONGEST = 1 / 20, 40.0  # events a month; records are censored evenly up to LONGEST
Held = Iterator[tuple[str, bool]]  # what was stated, and whether it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """columns: of the job. held: what one draw's results state."""

    name: str
    spec: AnalysisSpec
    drawn: Callable[[np.random.Generator, int], Columns]
    held: Callable[[AnalysisSpec, Mapping[str, Any], Columns], Held]


def settings() -> tuple[Setting, ...]:
    """In the order of the table."""
    return (
        _model("linear", "pressure"),
        _model("linear", "pressure", is_misspecified=True),
        _model("logistic", "died"),
        _model("poisson", "stays"),
        _model("poisson", "stays", is_misspecified=True),
        _survival("survival", (0, 3, 6, 12, 18, 24, 36, 200)),
        _survival("survival, bins of a month", (*range(37), 200)),
        Setting(
            name="quartiles",
            spec=job([{"name": AGE, "edges": EDGES[AGE], "show": ["median"]}]),
            drawn=lambda rng, records: {AGE: _ages(rng, records)},
            held=_quartiles_held,
        ),
    )


def coverage(setting: Setting, records: int, *, draws: int) -> dict[str, tuple[int, int]]:
    """By statement, in how many draws it is made, or how often, and how often it holds."""
    made, held = defaultdict[str, int](int), defaultdict[str, int](int)
    for draw in range(draws):
        columns = setting.drawn(np.random.default_rng((records, draw)), records)
        for name, holds in setting.held(setting.spec, last_state(setting.spec, columns), columns):
            made[name] += 1
            held[name] += holds
    return {name: (made[name], held[name]) for name in made}


def main(arguments: Sequence[str] | None = None) -> int:
    """A row a statement, a column a number of records."""
    parser = Parser("analysis.coverage", __doc__, package="research")
    parser.add_argument("--draws", type=whole(1, 100_000), default=DRAWS)
    options = parser.parse_args(arguments)
    print("| statement | " + " | ".join(f"n = {records:,}" for records in RECORDS) + " |")
    print("|---|" + "---|" * len(RECORDS))
    for setting in settings():
        found = [coverage(setting, records, draws=options.draws) for records in RECORDS]
        for name in dict.fromkeys(name for each in found for name in each):
            print(
                f"| {setting.name}: {name} | " + " | ".join(_share(each.get(name)) for each in found) + " |"
            )
        sys.stdout.flush()
    return 0


def _share(found: tuple[int, int] | None) -> str:
    return "none" if found is None else f"{100 * found[1] / found[0]:.1f} of {found[0]:,}"


def _ages(rng: np.random.Generator, records: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return rng.normal(58, 9, records).clip(19, 109)


# models


def _model(family: str, outcome: str, *, is_misspecified: bool = False) -> Setting:
    """is_misspecified: the variance is not the model's: it grows with the distance from the mean age, or a
    record's rate varies."""

    def drawn(rng: np.random.Generator, records: int) -> Columns:
        """By the true coefficients."""
        age_N, sex_N = _ages(rng, records), rng.integers(0, 2, records)
        linear_N = TRUE[AGE] * (age_N - 58) + TRUE[SEX] * sex_N
        if family == "linear":
            spread_N = 0.3 + np.abs(age_N - 58) / 9 if is_misspecified else np.ones(records)
            value_N: Any = 125 + 10 * (linear_N + spread_N * rng.normal(size=records))
        elif family == "logistic":
            value_N = (rng.random(records) < 1 / (1 + np.exp(-linear_N))).astype(np.int64)
        else:
            varies_N = rng.gamma(2.0, 0.5, records) if is_misspecified else 1.0
            value_N = rng.poisson(np.exp(0.3 + linear_N) * varies_N).clip(0, 60).astype(np.float64)
        return {AGE: age_N, SEX: sex_N, outcome: value_N}

    unit = 10.0 if family == "linear" else 1.0
    columns: list[dict[str, Any]] = [
        {"name": name, "edges": EDGES[name]}
        if name in EDGES
        else {"name": name, "categories": CATEGORIES[name]}
        for name in (AGE, SEX, outcome)
    ]
    model = {"outcome": outcome, "family": family, "terms": [[AGE], [SEX]]}
    return Setting(
        name=family + (", other variance" if is_misspecified else ""),
        spec=job(columns, model=model),
        drawn=drawn,
        held=lambda spec, state, columns: _model_held(spec, state, unit),
    )


def _model_held(spec: AnalysisSpec, state: Mapping[str, Any], unit: float) -> Held:
    found = FittedModel.of(spec, dict(state))
    if found.status is not Status.CONVERGED:
        return
    within = reach(found.freedom)
    for each in found.coefficients[1:]:
        name = each.term.split()[0]
        truth = unit * TRUE[name]
        yield f"{name}, model", each.low <= truth <= each.high
        yield f"{name}, HC1", abs(each.estimate - truth) <= within * each.robust_error


# survival


def _survival(name: str, edges: Sequence[float]) -> Setting:
    columns: list[dict[str, Any]] = [
        {"name": "months", "edges": edges},
        {"name": "state", "categories": ["alive", "dead"]},
    ]
    return Setting(
        name=name,
        spec=job(columns, survival={"time": "months", "status": "state"}),
        drawn=_survival_drawn,
        held=_survival_held,
    )


def _survival_drawn(rng: np.random.Generator, records: int) -> Columns:
    event_N, censored_N = rng.exponential(1 / HAZARD, records), rng.uniform(0, LONGEST, records)
    return {
        "months": np.minimum(event_N, censored_N),
        "state": (event_N <= censored_N).astype(np.int64),
    }


def _survival_held(spec: AnalysisSpec, state: Mapping[str, Any], columns: Columns) -> Held:
    found = SurvivalCurves.of(spec, dict(state))
    ended = [0.0, *(each.high or 0.0 for each in found.censored)]
    for curve in found.curves:
        binned = 1.0
        for each in curve.bins[:-1]:  # the last one ends where nobody is left
            low, high = _ends(each)
            gone = max(end for end in ended if end <= low)  # those censored until then count no more
            binned *= 1 - _events(low, high) / (_left(gone) - _events(gone, low))
            yield "of times binned alike", each.low <= binned <= each.high
            yield "of exact times", each.low <= math.exp(-HAZARD * high) <= each.high


def _ends(each: Bin) -> tuple[float, float]:
    assert each.part.low is not None
    assert each.part.high is not None
    return each.part.low, each.part.high


def _left(time: float) -> float:
    """Share of records that are at risk."""
    return math.exp(-HAZARD * time) * (1 - time / LONGEST)


def _events(low: float, high: float) -> float:
    """Share of records with an event between: of HAZARD exp(-HAZARD t) (1 - t / LONGEST)."""

    def until(time: float) -> float:
        gone = math.exp(-HAZARD * time)
        return 1 - gone - (1 - gone * (1 + HAZARD * time)) / HAZARD / LONGEST

    return until(min(high, LONGEST)) - until(low)


# quartiles


def _quartiles_held(spec: AnalysisSpec, state: Mapping[str, Any], columns: Columns) -> Held:
    (column,) = DescribedResults.of(spec, dict(state)).columns
    yield from _stated(column, np.asarray(columns[AGE]))


def _stated(column: ColumnFigures, value_N: np.ndarray[Any, np.dtype[np.float64]]) -> Held:
    """Of the records themselves, of which quartiles are no estimate."""
    assert column.quartiles_H is not None
    found = column.quartiles_H[0]
    if found is None:
        return
    for name, each, share in zip(("lower", "median", "upper"), found.all, (0.25, 0.5, 0.75), strict=True):
        truth = float(np.quantile(value_N, share, method="inverted_cdf"))
        yield f"{name}, part that holds it", each.start <= truth <= each.end
        if each.value is not None:
            yield f"{name}, within the part's width", abs(each.value - truth) <= each.width


if __name__ == "__main__":
    sys.exit(ended(main))
