"""Figures of four uneven silos against certified ones, and from where on lost digits withhold them.

Each data set is there several times, for its parts hold too few records: estimates stay, squares of residuals
are as many times as large. Powers of a number are columns of their own, for a term has no column twice.
Source: National Institute of Standards and Technology, Statistical Reference Datasets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import statsmodels.datasets

from client.analysis.regression import FittedModel
from strategies.analysis.model_state import Status
from strategies.analysis.values import DEVIATIONS, MEANS, SHOWN
from tests.support.analyses import analysis_job, read, states_of, unevenly

TIMES = 12
Rows = Sequence[Sequence[float]]
# x and y
NORRIS = (
    (0.2, 0.1), (337.4, 338.8), (118.2, 118.1), (884.6, 888.0), (10.1, 9.2), (226.5, 228.1), (666.3, 668.5),
    (996.3, 998.5), (448.6, 449.1), (777.0, 778.9), (558.2, 559.2), (0.4, 0.3), (0.6, 0.1), (775.5, 778.1),
    (666.9, 668.8), (338.0, 339.3), (447.5, 448.9), (11.6, 10.8), (556.0, 557.7), (228.1, 228.3),
    (995.8, 998.0), (887.6, 888.8), (120.2, 119.6), (0.3, 0.3), (0.3, 0.6), (556.8, 557.6), (339.1, 339.3),
    (887.2, 888.0), (999.0, 998.5), (779.0, 778.9), (11.1, 10.2), (118.3, 117.6), (229.2, 228.9),
    (669.1, 668.4), (448.9, 449.2), (0.5, 0.2),
)  # fmt: skip
PONTIUS = (  # deflection at 20 loads, twice
    0.11019, 0.21956, 0.32949, 0.43899, 0.54803, 0.65694, 0.76562, 0.87487, 0.98292, 1.09146,
    1.20001, 1.30822, 1.41599, 1.52399, 1.63194, 1.73947, 1.84646, 1.95392, 2.06128, 2.16844,
    0.11052, 0.22018, 0.32939, 0.43886, 0.54798, 0.65739, 0.76596, 0.87474, 0.98300, 1.09150,
    1.20004, 1.30818, 1.41613, 1.52408, 1.63159, 1.73965, 1.84696, 1.95445, 2.06177, 2.16829,
)  # fmt: skip
WAMPLER_3 = (  # at 0 to 20
    760, -2042, 2111, -1684, 3888, 1858, 11379, 17560, 39287, 64382, 113159, 175108, 273291, 400186, 581243,
    811568, 1121004, 1506550, 2002767, 2611612, 3369180,
)  # fmt: skip
# thousandths above 299
MICHELSON = (
    850, 740, 900, 1070, 930, 850, 950, 980, 980, 880, 1000, 980, 930, 650, 760, 810, 1000, 1000, 960, 960,
    960, 940, 960, 940, 880, 800, 850, 880, 900, 840, 830, 790, 810, 880, 880, 830, 800, 790, 760, 800, 880,
    880, 880, 860, 720, 720, 620, 860, 970, 950, 880, 910, 850, 870, 840, 840, 850, 840, 840, 840, 890, 810,
    810, 820, 800, 770, 760, 740, 750, 760, 910, 920, 890, 860, 880, 720, 840, 850, 850, 780, 890, 840, 780,
    810, 760, 810, 790, 810, 820, 850, 870, 870, 810, 740, 810, 940, 950, 800, 810, 870,
)  # fmt: skip
WAMPLER_ERRORS = (2152.32624678170, 2363.55173469681, 779.343524331583, 101.475507550350, 5.64566512170752,
                  0.112324854679312)  # fmt: skip


def powers(x_N: Sequence[float], most: int) -> Rows:
    return [[x**power for power in range(1, most + 1)] for x in x_N]


def wampler(residuals: float) -> tuple[Rows, list[float]]:
    """A sum of powers, with residuals so many times those of the third set."""
    x_NP = powers(range(21), 5)
    return x_NP, [
        1 + sum(x_P) + residuals * (y - 1 - sum(x_P)) for x_P, y in zip(x_NP, WAMPLER_3, strict=True)
    ]


def fitted(folder: Path, x_NP: Rows, y_N: Sequence[float]) -> FittedModel:
    columns = []
    names = [f"x{place}" for place in range(len(x_NP[0]))]
    for name, value_N in (*zip(names, zip(*x_NP, strict=True), strict=True), ("y", y_N)):
        low, *quarters, high = np.quantile(value_N, [0, 0.25, 0.5, 0.75, 1]).tolist()
        room = (high - low) / 100
        columns.append({"name": name, "edges": [low - room, *dict.fromkeys(quarters), high + room]})
    rows = [{**dict(zip(names, x_P, strict=True)), "y": y} for x_P, y in zip(x_NP, y_N, strict=True)] * TIMES
    model = {"outcome": "y", "family": "linear", "terms": [[name] for name in names]}
    job = analysis_job(columns=columns, model=model)
    return FittedModel.of(job.spec, states_of(job, read(folder, job, unevenly(rows)))[-1][1])


def longley() -> tuple[Rows, list[float]]:
    value_NC = statsmodels.datasets.longley.load_pandas().data.to_numpy()
    return value_NC[:, 1:].tolist(), value_NC[:, 0].tolist()


LOADS = [150_000.0 * place for place in range(1, 21)] * 2
# coefficients, their standard errors and the residual deviation, as certified; then by how much of an error
# coefficients may be off, and errors by which share
CERTIFIED = [
    (
        ([[x] for x, _ in NORRIS], [y for _, y in NORRIS]),
        (-0.262323073774029, 1.00211681802045),
        (0.232818234301152, 0.429796848199937e-3),
        0.884796396144373,
        1e-7,
    ),
    (
        (powers(LOADS, 2), PONTIUS),
        (0.673565789473684e-3, 0.732059160401003e-6, -0.316081871345029e-14),
        (0.107938612033077e-3, 0.157817399981659e-9, 0.486652849992036e-16),
        0.205177424076185e-3,
        1e-6,
    ),
    (
        longley(),
        (-3482258.63459582, 15.0618722713733, -0.0358191792925910, -2.02022980381683, -1.03322686717359,
         -0.0511041056535807, 1829.15146461355),
        (890420.383607373, 84.9149257747669, 0.0334910077722432, 0.488399681651699, 0.214274163161675,
         0.226073200069370, 455.478499142212),
        304.854073561965,
        1e-8,
    ),
    (wampler(1), (1.0,) * 6, WAMPLER_ERRORS, 2360.14502379268, 1e-5),
    (wampler(100), (1.0,) * 6, tuple(100 * each for each in WAMPLER_ERRORS), 236014.502379268, 1e-7),
    (wampler(10_000), (1.0,) * 6, tuple(10_000 * each for each in WAMPLER_ERRORS), 23601450.2379268, 1e-7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "coefficients", "errors", "residual", "digits"),
    CERTIFIED,
    ids=["norris", "pontius", "longley", "wampler 3", "wampler 4", "wampler 5"],
)
def test_published_models_are_found_to_certified_digits(
    data: tuple[Rows, Sequence[float]],
    coefficients: Sequence[float],
    errors: Sequence[float],
    residual: float,
    digits: float,
    tmp_path: Path,
) -> None:
    found = fitted(tmp_path, *data)
    assert found.status is Status.CONVERGED
    records, size = len(data[1]), len(coefficients)
    assert found.freedom == TIMES * records - size
    narrower = math.sqrt((records - size) / found.freedom)
    for each, coefficient, error in zip(found.coefficients, coefficients, errors, strict=True):
        assert each.estimate == pytest.approx(coefficient, abs=digits * error)
        assert each.error == pytest.approx(error * narrower, rel=digits)
    assert found.residual == pytest.approx(residual * narrower * math.sqrt(TIMES), rel=digits)


@pytest.mark.parametrize("slopes", [1.0, 0.1])
def test_an_exact_polynomial_is_found_within_its_errors(slopes: float, tmp_path: Path) -> None:
    """Wampler 1 and 2. Certified errors are 0; those that are shown are of rounding."""
    x_NP = powers(range(21), 5)
    y_N = [1 + sum(slopes**power * x for power, x in enumerate(x_P, 1)) for x_P in x_NP]
    found = fitted(tmp_path, x_NP, y_N)
    assert found.status is Status.CONVERGED
    for power, each in enumerate(found.coefficients):
        assert abs(each.estimate - slopes**power) < each.error
    assert found.residual is not None
    assert found.residual < 1e-6 * max(y_N)


@pytest.mark.parametrize(
    ("most", "status"), [(5, Status.CONVERGED), (6, Status.COLLINEAR), (10, Status.COLLINEAR)]
)
def test_powers_that_hardly_differ_are_refused(most: int, status: Status, tmp_path: Path) -> None:
    """Filip has the first ten of 82 numbers from -8.8 to -3.1; its certified figures took 500 digits."""
    x_N = np.linspace(-8.781464495, -3.132002490, 82).tolist()
    assert fitted(tmp_path, powers(x_N, most), np.sin(x_N).tolist()).status is status


def around(middle: str) -> list[str]:
    """NumAcc 2 to 4: .2 once, .1 and .3 five hundred times."""
    return [f"{middle}.2", *([f"{middle}.1", f"{middle}.3"] * 500)]


def edges(middle: float, reach: float) -> list[float]:
    return [middle - reach, middle + 0.15, middle + 0.25, middle + reach]


MICHELSON_VALUES = [f"{299 + each / 1000:.3f}" for each in MICHELSON]
MEASURED = [
    (MICHELSON_VALUES, 1, [299.5, 299.78, 299.82, 299.86, 299.9, 300.2], 299.852, 0.079),  # ...4, and 0105
    (["10000001", "10000003", "10000002"], TIMES, [1e7 + at for at in (0.5, 1.5, 2.5, 3.5)], 1e7 + 2, 0.83),
    (around("1"), TIMES, edges(1.0, 0.4), 1.2, 0.1),
    (around("1000000"), TIMES, edges(1e6, 0.4), 1_000_000.2, 0.1),
    (around("10000000"), TIMES, edges(1e7, 0.4), 10_000_000.2, 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("values", "times", "edges", "mean", "deviation"), MEASURED)
def test_published_means_and_deviations_are_found(
    values: list[str], times: int, edges: list[float], mean: float, deviation: float, tmp_path: Path
) -> None:
    """As certified, to the digits that are shown; of 36 in place of three values the deviation is 0.83."""
    job = analysis_job(columns=[{"name": "y", "edges": edges, "show": ["mean"]}])
    rows = [{"y": value} for value in values * times]
    state = states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1]
    assert (state[f"{MEANS}0"][0], state[f"{DEVIATIONS}0"][0]) == (mean, deviation)


def test_a_deviation_that_rounding_of_sums_changes_is_not_shown(tmp_path: Path) -> None:
    """Within a million times its size the deviation of 0.09995 was shown as 0.0981."""
    for reach in (1e5, 1e7):
        job = analysis_job(columns=[{"name": "y", "edges": edges(1e7, reach), "show": ["mean"]}])
        rows = [{"y": value} for value in around("10000000") * TIMES]
        state = states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1]
        assert not state[f"{SHOWN}0"].any()
