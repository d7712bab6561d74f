"""Columns whose mean and scale, or rare categories, all silos compute together before the first round.

Until then a silo holds such a column by its plausible range: z = (x - middle) / half, from -1 to 1, and
MISSING where there is no value. The sums of strategies/phases/columns.py are of z, and so are the mean and
the scale that the state holds. A silo standardizes z by them; `with_computed` gives them in the column's own
units, for use of the model.

K = computed columns, G = counted categories of all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from strategies.base import Arrays, array_in
from strategies.phases.columns import KEPT, MEANS, SCALES

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
    return [start for start, column in _placed(spec) if column.standardize is not None]


def counted_places(spec: JobSpec) -> list[int]:
    """The same of the categories that are counted."""
    counted = [(start, column.width) for start, column in _placed(spec) if column.rare == "computed"]
    return [start + place for start, width in counted for place in range(width)]


def standard_in(state: Arrays, columns: int) -> Standard:
    """What a global state holds of so many columns. Raises ConfigError for what no sums lead to."""
    mean_K, scale_K = (array_in(state, name, (columns,), np.float64) for name in (MEANS, SCALES))
    if not ((np.abs(mean_K) <= 1).all() and (scale_K > 0).all()):
        raise ConfigError(f"state: {MEANS} and {SCALES}: expected means of -1 to 1, scales above 0")
    return Standard(mean_K=mean_K, scale_K=scale_K)


def kept_in(state: Arrays, categories: int) -> NDArray[np.bool_]:
    """Which of so many counted categories are not rare. Shapes: -> (G,). Raises ConfigError as
    `standard_in`."""
    return np.asarray(array_in(state, KEPT, (categories,), np.uint8) != 0)


def with_computed(spec: JobSpec, state: Arrays) -> JobSpec:
    """The job with what was computed in its columns, each by itself. Raises ConfigError."""
    if not spec.computes_columns:
        return spec
    places, counted = computed_places(spec), counted_places(spec)
    standard = standard_in(state, len(places)) if places else None
    kept_G = iter(kept_in(state, len(counted)).tolist() if counted else ())
    made, number = list[ColumnSpec](), 0
    for column in spec.inputs:
        update: dict[str, object] = {}
        if column.rare == "computed":
            is_kept = [next(kept_G) for _ in column.categories or ()]
            rare = [text for text, kept in zip(column.categories or (), is_kept, strict=True) if not kept]
            update = {"rare": tuple(rare)}
        if column.standardize is not None and standard is not None:
            middle, half = _range(column)
            mean = middle + half * float(standard.mean_K[number])
            scale = half * float(standard.scale_K[number])
            update = {"standardize": None, "mean": mean, "scale": scale, "fill": mean}
            number += 1
        made.append(column.model_copy(update=update))
    return spec.model_copy(update={"columns": tuple(made)})


def computed_arrays(state: Arrays) -> Arrays:
    """Those of a state that `with_computed` reads."""
    return {name: state[name] for name in (MEANS, SCALES, KEPT) if name in state}


def _placed(spec: JobSpec) -> Iterator[tuple[int, ColumnSpec]]:
    """Each column with the place of its first input."""
    start = 0
    for column in spec.inputs:
        yield start, column
        start += column.width


def _range(column: ColumnSpec) -> tuple[float, float]:
    """Middle and half of what is plausible."""
    assert column.plausible is not None  # ColumnSpec refuses a computed column without
    low, high = column.plausible
    return low + (high - low) / 2, (high - low) / 2
