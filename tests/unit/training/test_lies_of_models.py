"""Silos that lie together about a model's sums, each of which passes by itself: numbers or nothing follow.

Words of a sum are no number that is infinite or none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.analysis.regression import FittedModel
from crypto.errors import ConfigError
from strategies.analysis.counts import IMPLAUSIBLE
from strategies.analysis.design import design_of
from strategies.analysis.model_state import ITERATIONS, status_in
from strategies.analysis.model_sums import BEYOND
from strategies.analysis.regression import (
    GRADIENT,
    INFORMATION,
    LIKELIHOODS,
    OUTER,
    PATIENTS,
    POWERS,
    ModelFitPhase,
    ModelPhase,
)
from strategies.base import Array, Arrays, PhaseContext
from tests.support.analyses import read, states_of, unevenly
from tests.unit.training.test_regression import EXPOSED, job_of, of_patients

LIES, STEPS, SEED = 100, 4, 5
MODELS: dict[str, tuple[tuple[str, str, list[list[str]]], dict[str, Any]]] = {
    "linear": (("linear", "pressure", [["age"], ["sex"], ["age", "sex"]]), {}),
    "logistic": (("logistic", "died", [["age"], ["sex"]]), {}),
    "poisson": (("poisson", "stays", [["age"], ["sex"]]), {}),
    "offset": (("poisson", "stays", [["age"]]), {"columns": EXPOSED, "offset": "days"}),
    "patient": (("linear", "pressure", [["age"], ["sex"]]), {"errors": "patient"}),
    "patient, logistic": (("logistic", "died", [["age"], ["sex"], ["age", "sex"]]), {"errors": "patient"}),
}


def begun(folder: Path, name: str) -> tuple[Any, Arrays]:
    """A job, and the state before its first step."""
    model, fields = MODELS[name]
    job = job_of(*model, iterations=2, **fields)
    rows = [{**row, "days": 1 + 364 * (place % 89) / 88} for place, row in enumerate(of_patients(400))]
    states = states_of(job, read(folder, job, unevenly(rows), unit="patient"))
    return job, next(state for kind, state in states if kind == "analysis-values")


def size_of(rng: np.random.Generator, bound: float) -> float:
    """Near what records give, as mostly, or from far below rounding to beyond the bound, or 0."""
    orders = rng.uniform(-4, 0) if rng.random() < 0.9 else rng.uniform(-30, 4)
    return 0.0 if rng.random() < 0.02 else bound * 10.0 ** float(orders)


def squares(rng: np.random.Generator, size: int, bound: float) -> Array:
    """A sum of outer products, mostly of full rank, whose columns differ in size; rarely less than none."""
    factor = rng.normal(size=(size, size if rng.random() < 0.9 else int(rng.integers(1, size + 1))))
    factor *= np.sqrt([size_of(rng, bound) for _ in range(size)])[:, None]
    return np.asarray(factor @ factor.T) * (-1.0 if rng.random() < 0.01 else 1.0)


def lied(
    rng: np.random.Generator, phase: ModelPhase | ModelFitPhase, context: PhaseContext
) -> dict[str, Array]:
    size = len(design_of(phase.tables))
    found: dict[str, Array] = {}
    for each in phase.quantities(context):
        numbers = rng.normal(size=each.shape)
        if each.name in (INFORMATION, OUTER):
            found[each.name] = squares(rng, size, each.bound)
        elif each.name == LIKELIHOODS:
            found[each.name] = -np.abs(numbers) * size_of(rng, each.bound)
        elif each.name == BEYOND:
            found[each.name] = rng.integers(0, 2, each.shape)
        elif each.name == PATIENTS:
            found[each.name] = np.array([rng.integers(0, 500), rng.random() < 0.1])
        elif each.name == POWERS:
            found[each.name] = np.abs(numbers) * [[size_of(rng, each.bound)], [size_of(rng, each.bound)]]
        else:
            assert each.name == GRADIENT
            found[each.name] = numbers * size_of(rng, each.bound)
    return found


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", MODELS)
def test_sums_that_silos_agreed_on_leave_numbers_or_nothing(name: str, tmp_path: Path) -> None:
    job, first = begun(tmp_path, name)
    rng, ended = np.random.default_rng(SEED), set[str]()
    for _ in range(LIES):
        state: Arrays | None = first
        for step in range(1, STEPS + 2):
            assert state is not None
            phase = (ModelPhase if step <= STEPS else ModelFitPhase)(tables=job.spec.tables)
            context = PhaseContext(round=step, members=4, classes=0, state=state, trained=())
            result = phase.next_state(context, lied(rng, phase, context))
            state = result.state
            if state is None:
                ended.add(result.reason)
                break
            assert int(state[ITERATIONS]) <= step
            for array in state.values():
                assert np.isfinite(array).all()
        if state is None:
            continue
        ended.add(status_in(state).name)
        try:
            assert "nan" not in FittedModel.of(job.spec, state).to_text()
        except ConfigError as error:
            if "expected one that has an inverse" not in str(error):
                raise
    assert ended >= {"CONVERGED", "NOT_CONVERGED", "SEPARATED", "COLLINEAR", IMPLAUSIBLE}
