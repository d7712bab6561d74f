"""How many records each cell has: parts are merged until none that is published is small.

A published part is a set of declared ones. Source: docs/decisions/0041-analysis.md.

G = parts of the group, P = parts of a column, missing values the last of each; R = published parts of the
group, Q = of a column by itself, T = of a column in its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.partition import Tables
from strategies.base import Array, PhaseContext, PhaseResult, total_of

COUNTS = "analysis-counts"
CELLS = "cell_counts"

# in the state; of a column, followed by its place
ROWS = "method/group_parts"  # (G,) int64: the published part that each part of the group is in; (1,) without
ROW_COUNTS = "method/group_counts"  # (R,) int64
PARTS = "method/parts/"  # (P,) int64: as ROWS, of a column by itself
PART_COUNTS = "method/part_counts/"  # (Q,) int64
CELL_PARTS = "method/cell_parts/"  # (P,) int64: as ROWS, of a column in its table
CELL_COUNTS = "method/cell_counts/"  # (R, T) int64


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsPhase:
    """Sums one count a cell."""

    tables: Tables
    kind: str = COUNTS

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (cells,). A silo has at most twice as many records as it counted: counts are rounded
        down."""
        return (
            Quantity(
                name=CELLS,
                shape=(self.tables.cells,),
                bound=2.0 * total_of(context.state),
                is_count=True,
                is_tagged=True,
                discloses=Disclosure.CELL,
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        raise NotImplementedError

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {}
