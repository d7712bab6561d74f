"""What a state holds of a model: the parts and coefficients that it uses, or why it is withheld.

P = columns of the design; those without a coefficient have zeros everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from strategies.analysis.design import design_of, has_coefficient
from strategies.analysis.joint import PartsOf, model_parts
from strategies.analysis.partition import Tables
from strategies.base import Array, Arrays, array_in

STATUS = "method/model_status"  # () uint8, of Status
MODEL_PARTS = "method/model_parts/"  # (parts,) int64, followed by the place of a factor
# (F,) int64, by patient, of each published cell of the factors: records of a patient in cells with the same
# number count together; -1: none do
BLOCKS = "method/model_blocks"
COEFFICIENTS = "method/model_coefficients"  # (P,) float64, of z
ITERATIONS = "method/model_iterations"  # () int64: steps taken so far
# while steps are taken
PREVIOUS = "method/model_previous"  # (P,) float64: where the last step began
LIKELIHOOD = "method/model_likelihood"  # () float64: there, and at the coefficients in the end
DECREMENT = "method/model_decrement"  # () float64: the last step's squared length in standard errors
NULL_LIKELIHOOD = "method/model_null_likelihood"  # () float64, of a Cox model, without any term: stays
# in the end
COVARIANCE = "method/model_covariance"  # (P, P) float64, of the coefficients of z
ROBUST = "method/model_robust"  # (P, P) float64, likewise: HC1, or by patient; not of a Cox model
SQUARES = "method/model_squares"  # () float64, of a linear model: of the residuals, in z of the outcome

# of a Cox model (P,) float64: the score for coefficients that change with time, in roots of its scale
TREND = "method/model_trend"

PARAMETER_SHARE = 3  # records, of a Cox model events, of each parameter at least
LEAST_FREEDOM = 10  # more of them than parameters


class Status(IntEnum):
    """A model that is withheld stays so: silos send zeros."""

    RUNNING = 0
    CONVERGED = 1
    NOT_CONVERGED = 2
    SEPARATED = 3  # perhaps: some coefficients grow from step to step, while the fit hardly changes
    SMALL_CELLS = 4  # the outcome has a small part, events of a Cox model one bin, or no term is left
    MANY_PARAMETERS = 5
    DOMINATED = 6  # a value may stand out of its column, or of a joint cell
    COLLINEAR = 7

    @property
    def is_withheld(self) -> bool:
        return self >= Status.SMALL_CELLS


def status_in(state: Arrays) -> Status:
    """Raises ConfigError for no status: the state may come from outside."""
    found = state.get(STATUS)
    if found is None or found.shape != () or found.dtype != np.uint8 or int(found) not in [*Status]:
        raise ConfigError(f"state: {STATUS}: expected 0 to {max(Status)}, got {found}")
    return Status(int(found))


def with_status(state: Arrays, status: Status) -> dict[str, Array]:
    return {**state, STATUS: np.array(status, np.uint8)}


def used_in(tables: Tables, state: Arrays) -> NDArray[np.bool_]:
    """Which columns of the design have a coefficient. Shapes: -> (P,)."""
    return has_coefficient(design_of(tables), parts_in(tables, state))


def events_in(bins: Sequence[int], counts: Sequence[int]) -> int:
    """Of a time by ending, by itself; all records where either ending is too rare."""
    found = 0
    for count in counts[bins[len(bins) // 2] :]:
        found += count
    return found


def bears(records: int, parameters: int) -> bool:
    """Whether so many records, or patients, are enough."""
    return PARAMETER_SHARE * parameters <= records and parameters + LEAST_FREEDOM <= records


def parts_in(tables: Tables, state: Arrays) -> PartsOf:
    """Of the factors. Raises ConfigError for no parts: the state may come from outside."""
    found = {}
    for place in tables.factors:
        name, size = f"{MODEL_PARTS}{place}", tables.partitions[place].size
        found[place] = array_in(state, name, (size,), np.int64).tolist()
        if not 0 <= min(found[place]) <= max(found[place]) < size:
            raise ConfigError(f"state: {name}: expected parts from 0 to {size - 1}")
    return found


def model_begun(
    tables: Tables,
    count_J: Array,
    records: int,
    finest: PartsOf,
    counts: Mapping[int, Sequence[int]],
) -> dict[str, Array]:
    """The arrays of a model before its first step. finest, counts: of each column by itself, as published."""
    design = design_of(tables)
    found = model_parts(tables, count_J, finest, counts)
    in_one = {place: [0] * tables.partitions[place].size for place in tables.factors}
    parts_of = in_one if found is None else found
    parameters = int(np.count_nonzero(has_coefficient(design, parts_of)))
    status = Status.SMALL_CELLS if found is None or not parameters else Status.RUNNING
    if tables.time is not None:
        records = events_in(finest[tables.time], counts[tables.time])
    if status is Status.RUNNING and not bears(records, parameters):
        status = Status.MANY_PARAMETERS
    if status.is_withheld:
        parts_of = in_one  # others would tell which cells are large, of a table that is not published
    state: dict[str, Array] = {
        MODEL_PARTS + str(place): np.array(parts, np.int64) for place, parts in parts_of.items()
    }
    state |= {name: np.zeros(len(design)) for name in (COEFFICIENTS, PREVIOUS)}
    state |= {name: np.zeros(()) for name in (LIKELIHOOD, DECREMENT)}
    return with_status({**state, ITERATIONS: np.zeros((), np.int64)}, status)
