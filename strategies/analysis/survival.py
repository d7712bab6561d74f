"""The table of survival curves: time by ending and group.

All figures of the curves follow from its cells, which are those of a model's joint table (joint.py).
Source: docs/decisions/0041-analysis.md.

T = published bins, of those censored, then of events; R = published parts of the group, 1 without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from strategies.analysis.joint import PartsOf, held_in, model_parts
from strategies.analysis.model_state import MODEL_PARTS
from strategies.analysis.partition import Tables
from strategies.base import Array

IS_SHOWN = "method/survival_shown"  # () uint8: 1 where the table is published
# only there, beside the parts of its columns (MODEL_PARTS)
SURVIVAL_COUNTS = "method/survival_counts"  # (T, R) int64


def survival_state(
    tables: Tables, count_J: Array, finest: PartsOf, counts: Mapping[int, Sequence[int]]
) -> dict[str, Array]:
    """finest, counts: of time by ending and the group, each by itself, as published."""
    parts_of = model_parts(tables, count_J, finest, counts)
    if parts_of is None:
        return {IS_SHOWN: np.array(0, np.uint8)}
    held = held_in(tables, count_J, parts_of)
    return {
        IS_SHOWN: np.array(1, np.uint8),
        SURVIVAL_COUNTS: held.reshape(max(parts_of[tables.joint[0]]) + 1, -1),
        **{MODEL_PARTS + str(place): np.array(parts, np.int64) for place, parts in parts_of.items()},
    }
