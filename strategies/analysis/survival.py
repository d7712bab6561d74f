"""The table of a survival curve: records by bin of time, how they ended, and group.

All figures of the curve follow from its cells. Until each holds enough records, bins are merged by the counts
of time alone, which are published, too. Source: docs/decisions/0041-analysis.md.

B = declared parts of time; in the state T = published bins, R = published parts of the group, 1 without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from strategies.analysis.joint import PartsOf, joint_rows
from strategies.analysis.merging import coarser_parts
from strategies.analysis.partition import Tables
from strategies.base import Array

IS_SHOWN = "method/survival_shown"  # () uint8: 1 where the table is published
# only there
BINS = "method/survival_bins"  # (B,) int64: the published bin that each part of time is in
SURVIVAL_COUNTS = "method/survival_counts"  # (T, 2, R) int64, of censored records and of events
ENDINGS = 2


def survival_state(
    tables: Tables, count_J: Array, *, finest: PartsOf, counts: Mapping[int, Sequence[int]]
) -> dict[str, Array]:
    """finest, counts: of each column by itself, as published. Parts of the group stay as they are: where one
    holds few events or few censored records in all, there is no curve."""
    survival = tables.survival
    assert survival is not None
    fixed = {} if survival.group is None else {survival.group: finest[survival.group]}
    for bins in coarser_parts(finest[survival.time], counts[survival.time], is_ordered=True, missing=None):
        row_J = joint_rows(tables, {survival.time: bins, **fixed})
        held = np.zeros(int(row_J.max()) + 1, np.int64)
        np.add.at(held, row_J, count_J)
        if (held >= tables.min_cell).all():
            return {
                IS_SHOWN: np.array(1, np.uint8),
                BINS: np.array(bins, np.int64),
                SURVIVAL_COUNTS: held.reshape(max(bins) + 1, ENDINGS, -1),
            }
    return {IS_SHOWN: np.array(0, np.uint8)}
