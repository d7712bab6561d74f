"""Values of a model's columns of numbers, summed by cell of its joint table: whether one may stand out.

A model's coefficients and errors give the sums of its columns in each joint cell away. So beside the rule of
all records (values.py), within no published cell the values are spread far more than they are in all, but for
a spread that no value within the outermost edges makes by itself: among ten of which nine are near 100, one
of 87,000 is such a spread. Source: docs/decisions/0041-analysis.md.

K = columns of numbers, J = cells of the joint table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from crypto.fixed_point.layout import Quantity
from strategies.analysis.joint import joint_rows
from strategies.analysis.model_state import MODEL_PARTS, Status, status_in, with_status
from strategies.analysis.partition import Tables
from strategies.analysis.values import NUMBERS, SHARE, SHOWN, SQUARES, SUMS, VALUES, ValuesPhase
from strategies.base import Array, Arrays, FloatArray, PhaseContext, PhaseResult
from strategies.exact import total

FAR = 4.0  # times the variance of all: ten values of a normal column exceed it in one cell of 130,000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelValuesPhase:
    """As `ValuesPhase`, by cell of the joint table."""

    tables: Tables
    kind: str = VALUES

    @property
    def _of_all(self) -> ValuesPhase:
        return ValuesPhase(tables=self.tables, addends=self.tables.joint_cells)

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K, J)."""
        shape = (len(self.tables.measured), self.tables.joint_cells)
        return tuple(replace(each, shape=shape) for each in self._of_all.quantities(context))

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
        return replace(result, state=state)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {}

    def _stands_out(
        self, state: Arrays, number_KJ: FloatArray, sum_KJ: FloatArray, square_KJ: FloatArray
    ) -> bool:
        row_J = joint_rows(
            self.tables, {place: state[MODEL_PARTS + str(place)].tolist() for place in self.tables.factors}
        )
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


def _squares(number: FloatArray, sum_: FloatArray, square: FloatArray) -> FloatArray:
    """Around the mean. Shapes: (...) -> (...)."""
    return np.asarray(square - sum_ * (sum_ / np.maximum(number, 1.0)))


def _by_row(value_J: FloatArray, row_J: Array) -> FloatArray:
    """Shapes: -> (T,)."""
    return np.array([float(total(value_J[row_J == row])) for row in range(int(row_J.max()) + 1)])
