"""Columns of a table by the mean, scale and rare categories that all silos compute: what a silo adds to their
sums, and its samples once they are known.

N = samples, K = computed columns, G = counted categories of all columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.computed_columns import computed_places, counted_places, kept_in, standard_in
from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples, SampleSet, SiloData
from silo_agent.training.data.private import FARTHEST
from silo_agent.training.data.units import WEIGHT_STEPS
from strategies.base import Array, Arrays
from strategies.phases.columns import CATEGORY_COUNTS
from strategies.phases.trees import MISSING_INPUT

NO_VALUE = -2.0  # z below it is missing
ROOM = 1e-5  # beyond 1, of rounding to float32


def column_sums(samples: SampleSet, spec: JobSpec) -> Mapping[str, Array]:
    """What this silo adds to the sums of columns. samples: as they were read. Each unit counts once.

    Shapes: (K,) and (G,) float64. Raises ConfigError for data that were not read by the columns' ranges; in a
    private job they are cut to them.
    """
    places, counted = computed_places(spec), counted_places(spec)
    weight_N1 = samples.units.weights_N(WEIGHT_STEPS)[:, np.newaxis]
    sums: dict[str, Array] = {}
    if counted:
        sums[CATEGORY_COUNTS] = (weight_N1 * (samples.features[:, counted] > 0)).sum(axis=0)
    if not places:
        return sums
    value_NK, has_value_NK = _values(samples, places)
    if spec.privacy is None and (np.abs(value_NK) > 1.0 + ROOM).any():
        raise ConfigError(
            "columns: standardize: computed needs a table that Chorale reads, these data have other values"
        )
    value_NK = np.clip(value_NK, -1.0, 1.0)
    weight_NK = weight_N1 * has_value_NK
    return sums | {
        "column_counts": weight_NK.sum(axis=0),
        "column_sums": (weight_NK * value_NK).sum(axis=0),
        "column_squares": (weight_NK * value_NK**2).sum(axis=0),
    }


def standardized(data: SiloData, spec: JobSpec, state: Arrays) -> SiloData:
    """The data as the job's model takes them, in arrays of their own. Raises ConfigError for a state without
    what was computed."""
    if not spec.computes_columns:
        return data
    places, counted = computed_places(spec), counted_places(spec)
    standard = standard_in(state, len(places)) if places else None
    rare = np.array(counted)[~kept_in(state, len(counted))] if counted else ()

    def of(samples: SampleSet) -> SampleSet:
        features_ND = samples.features.copy()
        features_ND[:, rare] = 0.0
        if standard is not None:
            value_NK, has_value_NK = _values(samples, places)
            with np.errstate(over="ignore"):
                made_NK = (value_NK - standard.mean_K) / standard.scale_K
            missing = 0.0 if spec.method.recipe.growth is None else MISSING_INPUT
            features_ND[:, places] = np.where(has_value_NK, np.clip(made_NK, -FARTHEST, FARTHEST), missing)
        assert isinstance(samples, Samples)  # what is read by place has no features
        return replace(samples, features=features_ND)

    return data.mapped(of)


def _values(samples: SampleSet, places: list[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """z, 0 where there is no value, and where there is one. Shapes: (N, K)."""
    value_NK = samples.features[:, places].astype(np.float64)
    has_value_NK = value_NK > NO_VALUE
    return np.where(has_value_NK, value_NK, 0.0), has_value_NK
