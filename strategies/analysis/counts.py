"""How many records each cell has: parts are merged until none that is published is small.

A published part is a set of declared ones. Source: docs/decisions/0041-analysis.md.

G = parts of the group, P = parts of a column, missing values the last of each; R = published parts of the
group, Q = of a column by itself, T = of a column in its table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.joint import PartsOf, margins
from strategies.analysis.merging import added, chained, finest_bins, finest_parts
from strategies.analysis.model_state import model_begun
from strategies.analysis.partition import Partition, Tables
from strategies.analysis.survival import survival_state
from strategies.base import Array, Arrays, Phase, PhaseContext, PhaseResult, total_of

COUNTS = "analysis-counts"
CELLS = "cell_counts"
FEW_RECORDS, IMPLAUSIBLE = "few-records", "implausible"
TOO_FEW_RECORDS = "all silos together hold fewer records than min_cell"

# in the state; of a column, followed by its place
ROWS = "method/group_parts"  # (G,) int64: the published part that each part of the group is in; (1,) without
ROW_COUNTS = "method/group_counts"  # (R,) int64
PARTS = "method/parts/"  # (P,) int64: as ROWS, of a column by itself
PART_COUNTS = "method/part_counts/"  # (Q,) int64
CELL_PARTS = "method/cell_parts/"  # (P,) int64: as ROWS, of a column in its table
CELL_COUNTS = "method/cell_counts/"  # (R, T) int64


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsPhase(Phase):
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
                sensitivity_l2=math.sqrt(self.tables.summed),
                is_tagged=True,
                discloses=Disclosure.CELL,
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write the published parts and their counts; the cells that were summed are dropped.

        A silo can send cells of other records table by table: what does not fit together is not applied.
        """
        cells = np.asarray(sums[CELLS], np.int64)
        table_of, joint_J = self._tables(cells)
        rows_of = [added(table_GP.T, [0] * table_GP.shape[1])[0] for table_GP in table_of.values()]
        if (cells < 0).any() or any((rows_G != rows_of[0]).any() for rows_G in rows_of):
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        if self.tables.model is not None and not _is_joint(self.tables, joint_J, table_of):
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        rows_G, least = rows_of[0], self.tables.min_cell
        if int(added(rows_G, [0] * len(rows_G))[0]) < least:
            return PhaseResult(state=None, reason=FEW_RECORDS)
        rows = [0]
        if self.tables.group is not None:
            rows = by_itself(rows_G, self.tables.partitions[self.tables.group], least)
        state = {**context.state, ROWS: np.array(rows, np.int64), ROW_COUNTS: added(rows_G, rows)}
        for place, table_GP in table_of.items():
            partition = self.tables.partitions[place]
            table_RP = added(table_GP, rows)
            counts_P = added(table_RP, [0] * len(table_RP))[0]
            parts = by_itself(counts_P, partition, least)
            cell_parts = chained(table_RP, parts, partition, least)
            state[PARTS + str(place)] = np.array(parts, np.int64)
            state[PART_COUNTS + str(place)] = added(counts_P, parts)
            state[CELL_PARTS + str(place)] = np.array(cell_parts, np.int64)
            state[CELL_COUNTS + str(place)] = np.ascontiguousarray(added(table_RP.T, cell_parts).T)
        if self.tables.model is not None:
            state |= self._model_begun(state, joint_J)
        if self.tables.survival is not None:
            state |= survival_state(self.tables, joint_J, *_by_themselves(state, self.tables.factors))
        return PhaseResult(state=state)

    def _model_begun(self, state: Arrays, joint_J: Array) -> dict[str, Array]:
        finest, counts = _by_themselves(state, self.tables.factors)
        return model_begun(
            self.tables, joint_J, records=int(state[ROW_COUNTS][0]), finest=finest, counts=counts
        )

    def _tables(self, cells: Array) -> tuple[dict[int, Array], Array]:
        """By place of the column, (G, P); and the joint table of a model or a survival curve, (J,), or ()."""
        if self.tables.survival is not None:
            return {place: count_P[None] for place, count_P in margins(self.tables, cells).items()}, cells
        found, end = dict[int, Array](), 0
        for place in self.tables.described:
            shape = (self.tables.group_size, self.tables.partitions[place].size)
            first, end = end, end + shape[0] * shape[1]
            found[place] = cells[first:end].reshape(shape)
        return found, cells[end:]


def _by_themselves(state: Arrays, places: Sequence[int]) -> tuple[PartsOf, PartsOf]:
    """Finest parts of columns, and their counts."""
    return (
        {place: state[PARTS + str(place)].tolist() for place in places},
        {place: state[PART_COUNTS + str(place)].tolist() for place in places},
    )


def by_itself(counts_P: Array, partition: Partition, least: int) -> list[int]:
    if partition.by_ending:
        return finest_bins(counts_P.tolist(), least)
    return finest_parts(
        counts_P.tolist(),
        is_ordered=partition.is_ordered,
        least=least,
        has_missing=partition.has_missing,
    )


def _is_joint(tables: Tables, joint_J: Array, table_of: Mapping[int, Array]) -> bool:
    """Whether the joint table is of the same records as the others."""
    return all(
        (counts_P == added(table_of[place][0], _in_joint(tables, place, len(counts_P)))).all()
        for place, counts_P in margins(tables, joint_J).items()
    )


def _in_joint(tables: Tables, place: int, size: int) -> list[int]:
    """The part of the joint table that each declared one is in."""
    return [min(part, size - 1) for part in range(tables.partitions[place].size)]
