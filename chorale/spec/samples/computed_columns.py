"""Columns whose mean and scale all silos compute together, before the first round.

Until then a silo holds such a column by its plausible range: z = (x - middle) / half, from -1 to 1, and
MISSING where there is no value. The sums of strategies/phases/columns.py are of z, and so are the mean and
the scale that the state holds. A silo standardizes z by them; `with_computed` gives them in the column's own
units, for use of the model.

K = computed columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from strategies.base import Arrays
from strategies.phases.columns import MEANS, SCALES

MISSING = -3.0  # of z, which is from -1 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """Shapes: mean, scale (K,), of z."""

    mean_K: NDArray[np.float64]
    scale_K: NDArray[np.float64]


def as_read(column: ColumnSpec) -> ColumnSpec:
    """The column with the numbers by which it is read: of a computed one those of z."""
    if column.standardize is None:
        return column
    middle, half = _range(column)
    numbers = {"mean": middle, "scale": half, "fill": middle + MISSING * half}
    return column.model_copy(update=numbers)


def computed_places(spec: JobSpec) -> list[int]:
    """Where the computed columns stand among a record's inputs."""
    places, start = list[int](), 0
    for column in spec.inputs:
        if column.standardize is not None:
            places.append(start)
        start += column.width
    return places


def standard_in(state: Arrays, columns: int) -> Standard:
    """What a global state holds of so many columns. Raises ConfigError for another kind of array: it came
    from outside."""
    found = [state.get(name) for name in (MEANS, SCALES)]
    for name, array in zip((MEANS, SCALES), found, strict=True):
        if array is None or array.shape != (columns,) or array.dtype != np.float64:
            got = "none" if array is None else f"{array.dtype} of shape {array.shape}"
            raise ConfigError(f"state: {name}: expected {columns} numbers of float64, got {got}")
    mean_K, scale_K = (np.asarray(array) for array in found)
    if not ((np.abs(mean_K) <= 1).all() and np.isfinite(scale_K).all() and (scale_K > 0).all()):
        raise ConfigError(f"state: {MEANS} and {SCALES}: expected means of -1 to 1, scales above 0")
    return Standard(mean_K=mean_K, scale_K=scale_K)


def with_computed(spec: JobSpec, state: Arrays) -> JobSpec:
    """The job with what was computed in its columns, each by itself. Raises ConfigError."""
    if not (places := computed_places(spec)):
        return spec
    standard, made, number = standard_in(state, len(places)), list[ColumnSpec](), 0
    for column in spec.inputs:
        if column.standardize is None:
            made.append(column)
            continue
        middle, half = _range(column)
        mean = middle + half * float(standard.mean_K[number])
        scale = half * float(standard.scale_K[number])
        numbers = {"standardize": None, "mean": mean, "scale": scale, "fill": mean}
        made.append(column.model_copy(update=numbers))
        number += 1
    return spec.model_copy(update={"columns": tuple(made)})


def computed_arrays(state: Arrays) -> Arrays:
    """Those of a state that `with_computed` reads."""
    return {name: state[name] for name in (MEANS, SCALES) if name in state}


def _range(column: ColumnSpec) -> tuple[float, float]:
    """Middle and half of what is plausible."""
    assert column.plausible is not None  # ColumnSpec refuses a computed column without
    low, high = column.plausible
    return low + (high - low) / 2, (high - low) / 2
