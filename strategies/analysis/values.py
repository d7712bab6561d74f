"""Mean and standard deviation of measured columns, over all records and by published part of the group.

Values are z, from -1 to 1 between a column's outermost edges. Source: docs/decisions/0041-analysis.md.
K = measured columns, R = published parts of the group, H = R + 1: all records, then by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.partition import Tables
from strategies.base import Array, PhaseContext, PhaseResult, total_of

VALUES = "analysis-values"
NUMBERS, SUMS, SQUARES = "value_counts", "value_sums", "value_squares"

# in the state, followed by the column's place: of all records and of each published part of the group
MEANS = "method/means/"  # (H,) float64, in the column's units, rounded; 0 where none is shown
DEVIATIONS = "method/deviations/"  # (H,) float64, likewise
SHOWN = "method/means_shown/"  # (H,) uint8: 1 where mean and deviation are published


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesPhase:
    """Sums by measured column and published part of the group how many values there are, the values, and
    their squares."""

    tables: Tables
    kind: str = VALUES

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K, G), of which the first R are used: no size follows from what was counted."""
        shape = (len(self.tables.measured), self.tables.group_size)
        bound = 2.0 * total_of(context.state)
        return (
            Quantity(
                name=NUMBERS,
                shape=shape,
                bound=bound,
                is_count=True,
                is_tagged=True,
                discloses=Disclosure.CELL,
            ),
            *(
                Quantity(name=name, shape=shape, bound=bound, is_tagged=True, discloses=Disclosure.CELL)
                for name in (SUMS, SQUARES)
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        raise NotImplementedError

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {}
