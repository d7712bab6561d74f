"""An analysis under noise: all declared cells, and sums of values by declared part of the group.

No count decides anything: nothing is merged or withheld, and what noise leaves of a figure follows from its
deviation, which is public. All is summed at once, so every figure is of the same silos. Leaks each number
with its noise. Source: docs/decisions/0041-analysis.md.

G = parts of the group, 1 without one; P = parts of a column, missing values the last of each; K = measured
columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import CELLS
from strategies.analysis.partition import Tables
from strategies.analysis.values import SQUARES, SUMS
from strategies.base import Array, Phase, PhaseContext, PhaseResult
from strategies.phases.enrollment import MAX_SAMPLES

NOISED = "analysis-noised"

# in the state; of a column, followed by its place: as summed, also below 0
NOISED_CELLS = "method/noised_cells/"  # (G, P) float64
NOISED_VALUES = "method/noised_values/"  # (2, G) float64: sums of z and of its squares
NOISE = "method/noise"  # (3,) float64: deviation of the noise in a cell, a sum and a sum of squares; or (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedPhase(Phase):
    """Sums one count a cell, and values and their squares by part of the group."""

    tables: Tables
    kind: str = NOISED

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (cells,), (K, G). A record is in one cell of each table, and adds one z, from -1 to 1, to
        each column's sums. The bounds follow from no count."""
        tables = self.tables
        shape = (len(tables.measured), tables.group_size)
        numbers: list[tuple[str, tuple[int, ...], int]] = [(CELLS, (tables.cells,), tables.summed)]
        numbers += [(name, shape, shape[0]) for name in (SUMS, SQUARES) if shape[0]]
        return tuple(
            Quantity(
                name=name,
                shape=shape,
                bound=MAX_SAMPLES,
                is_count=name == CELLS,
                sensitivity_l2=math.sqrt(moved),
                is_tagged=True,
                discloses=Disclosure.CELL,
            )
            for name, shape, moved in numbers
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write what was summed, and the deviations of its noise: of the silos that are in the sum."""
        tables, noise = self.tables, context.noise_of_survivors
        deviations = [noise[name] for name in (CELLS, SUMS, SQUARES) if name in sums]
        state = {**context.state, NOISE: np.array(deviations)}
        cells, end = np.asarray(sums[CELLS], np.float64), 0
        for place in tables.described:
            shape = (tables.group_size, tables.partitions[place].size)
            first, end = end, end + shape[0] * shape[1]
            state[NOISED_CELLS + str(place)] = cells[first:end].reshape(shape)
        for row, place in enumerate(tables.measured):
            state[NOISED_VALUES + str(place)] = np.stack([sums[SUMS][row], sums[SQUARES][row]])
        return PhaseResult(state=state)
