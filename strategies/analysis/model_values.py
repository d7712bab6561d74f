"""Values of a model's columns of numbers, summed by cell of its joint table: whether one may stand out.

A model's coefficients and errors give the sums of its columns in each joint cell away. So beside the rule of
all records (values.py), within no published cell the values are spread far more than they are in all, but for
a spread that no value within the outermost edges makes by itself: among ten of which nine are near 100, one
of 87,000 is such a spread.

Errors by patient are made of products of two records' gradients. Those of two cells of the factors can be
solved for, so they are counted only where `least_patients` have records in both, and any only where as many
have several records. Source: docs/decisions/0041-analysis.md.

K = columns of numbers, J = cells of the joint table, F = of the factors alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import IMPLAUSIBLE, ROW_COUNTS
from strategies.analysis.design import NUMBER, design_of
from strategies.analysis.joint import factor_rows, joint_rows
from strategies.analysis.model_state import BLOCKS, Status, bears, parts_in, status_in, used_in, with_status
from strategies.analysis.partition import Tables
from strategies.analysis.values import NUMBERS, SHARE, SHOWN, SQUARES, SUMS, VALUES, ValuesPhase
from strategies.base import Array, Arrays, FloatArray, Phase, PhaseContext, PhaseResult, total_of
from strategies.exact import total

PAIRS = "model_patients_in_both"  # of two cells of the factors; beside a cell itself, in it
SEVERAL = "model_patients_of_several"  # records
FAR = 4.0  # times the variance of all: ten values of a normal column exceed it in one cell of 130,000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelValuesPhase(Phase):
    """As `ValuesPhase`, by cell of the joint table."""

    tables: Tables
    kind: str = VALUES

    @property
    def _of_all(self) -> ValuesPhase:
        return ValuesPhase(tables=self.tables, addends=self.tables.joint_cells)

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K, J); by patient (F, F), of which the first published cells are used, and ()."""
        shape, cells = (len(self.tables.measured), self.tables.joint_cells), self.tables.factor_cells
        found = tuple(replace(each, shape=shape) for each in self._of_all.quantities(context))
        if self.tables.model is None or not self.tables.model.by_patient:
            return found
        return (
            *found,
            *(
                Quantity(
                    name=name,
                    shape=shape,
                    bound=2.0 * total_of(context.state),
                    is_count=True,
                    is_tagged=True,
                    discloses=Disclosure.CELL,
                )
                for name, shape in ((PAIRS, (cells, cells)), (SEVERAL, ()))
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write means and deviations, and withhold the model where a value may dominate."""
        number_KJ, sum_KJ, square_KJ = (
            np.asarray(sums[name], np.float64) for name in (NUMBERS, SUMS, SQUARES)
        )
        all_records = {
            name: total(value_KJ.T)[:, None]
            for name, value_KJ in ((NUMBERS, number_KJ), (SUMS, sum_KJ), (SQUARES, square_KJ))
        }
        result = self._of_all.next_state(context, all_records)
        if result.state is None:
            return result
        state = result.state
        hidden = any(not state[SHOWN + str(place)][0] for place in self.tables.measured)
        if (hidden or self._stands_out(state, number_KJ, sum_KJ, square_KJ)) and not status_in(
            state
        ).is_withheld:
            state = with_status(state, Status.DOMINATED)
        if PAIRS in sums:
            held_F = np.zeros(self.tables.factor_cells, np.int64)
            np.add.at(
                held_F, factor_rows(self.tables, parts_in(self.tables, state)), number_KJ[0].astype(np.int64)
            )
            return self._in_blocks(state, held_F, np.asarray(sums[PAIRS], np.int64), int(sums[SEVERAL]))
        return replace(result, state=state)

    def _in_blocks(self, state: Arrays, held_F: Array, pairs_FF: Array, several: int) -> PhaseResult:
        """held_F: records of each cell. A cell has `least_patients`, or the model is withheld; by published
        counts they may be min_cell more."""
        records, most_FF = int(state[ROW_COUNTS][0]), np.minimum(held_F[:, None], held_F)
        is_possible = (pairs_FF == pairs_FF.T).all() and 0 <= several <= records // 2
        if not is_possible or not ((pairs_FF >= 0) & (pairs_FF <= most_FF)).all():
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        least, used_F = least_patients(self.tables), held_F > 0
        is_joined_FF = pairs_FF >= least
        block_F = np.argmax(is_joined_FF, axis=1)
        is_alright_FF = is_joined_FF == (block_F[:, None] == block_F)  # cells of one block are all joined
        is_alright_FF &= ~is_joined_FF | (most_FF >= least + self.tables.min_cell)
        has_few = not (
            np.diagonal(is_joined_FF)[used_F].all() and is_alright_FF[np.ix_(used_F, used_F)].all()
        )
        parameters = int(np.count_nonzero(used_in(self.tables, state)))
        if not status_in(state).is_withheld:
            if not bears(records - least - self.tables.min_cell, parameters):
                state = with_status(state, Status.MANY_PARAMETERS)
            elif has_few:
                state = with_status(state, Status.DOMINATED)
        if several < least or status_in(state).is_withheld:
            block_F = np.full_like(block_F, -1)
        return PhaseResult(state={**state, BLOCKS: np.where(used_F, block_F, -1).astype(np.int64)})

    def _stands_out(
        self, state: Arrays, number_KJ: FloatArray, sum_KJ: FloatArray, square_KJ: FloatArray
    ) -> bool:
        row_J = joint_rows(self.tables, parts_in(self.tables, state))
        for number_J, sum_J, square_J in zip(number_KJ, sum_KJ, square_KJ, strict=True):
            records = float(total(number_J))
            variance = float(_squares(total(number_J), total(sum_J), total(square_J))) / max(
                records - 1.0, 1.0
            )
            number_T, sum_T, square_T = (_by_row(each, row_J) for each in (number_J, sum_J, square_J))
            found_T = _squares(number_T, sum_T, square_T)
            reach_T = 1.0 + np.abs(sum_T / np.maximum(number_T, 1.0))
            is_of_many_T = found_T >= (1.0 + 1.0 / SHARE) * (reach_T * reach_T)
            if not (is_of_many_T | (found_T <= FAR * variance * number_T)).all():
                return True
        return False


def least_patients(tables: Tables) -> int:
    """Of a cell, or in two: fewer than a cell has columns would be the rank of their products."""
    return tables.min_cell + len(
        {tuple(place for place, part in each if part == NUMBER) for each in design_of(tables)}
    )


def _squares(number: FloatArray, sum_: FloatArray, square: FloatArray) -> FloatArray:
    """Around the mean. Shapes: (...) -> (...)."""
    return np.asarray(square - sum_ * (sum_ / np.maximum(number, 1.0)))


def _by_row(value_J: FloatArray, row_J: Array) -> FloatArray:
    """Shapes: -> (T,)."""
    return np.array([float(total(value_J[row_J == row])) for row in range(int(row_J.max()) + 1)])
