"""Mean and scale of columns of a table, over all silos' training records, before the first round.

Two phases, because a sum of squares alone loses a small spread beside a large mean: the first sums values and
how many there are, the second squares around the mean that the first gave. Values are z, from -1 to 1, whose
range the job declares (chorale/spec/samples/computed_columns.py). A column with fewer than LEAST values in
all silos ends the job: its mean would tell of single records.
Leaks by column the number of values, their mean and their variance over all silos of the sum, to all silos
and to everyone who has the model: of a column of zeros and ones, how many ones there are. So a silo's policy
treats it as a sum by class. Two sums over nearly the same silos would show those of one, so silos
refuse the second (docs/protocol.md 6.2). Under noise each sum is noised, and a scale that is no larger than
the noise is 1.

K = computed columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import Array, PhaseContext, PhaseResult, total_of

COLUMN_MEANS, COLUMN_SCALES = "column-means", "column-scales"
COUNTS = "method/column_counts"  # (K,) float64, between the two phases
MEANS = "method/column_means"  # (K,) float64, of z
SCALES = "method/column_scales"  # (K,) float64, of z
LEAST = 10.0  # values of a column, as noised
FEW_VALUES = "few-values"
NOISY = 2.0  # a variance that is no larger than so many deviations of its noise is none


def _summed(context: PhaseContext, name: str, columns: int) -> Quantity:
    """A record adds -1 to 1 to each of the K numbers. A silo has at most twice as many records as it counted:
    counts are rounded down."""
    return Quantity(
        name=name,
        shape=(columns,),
        bound=2.0 * total_of(context.state),
        sensitivity_l2=math.sqrt(columns),
        is_tagged=True,
        discloses=Disclosure.CLASS_STATISTIC,
        side=Side.TRAIN,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeansPhase:
    """Sums how many values there are, and the values."""

    columns: int
    kind: str = COLUMN_MEANS

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: both (K,)."""
        names = ("column_counts", "column_sums")
        return tuple(_summed(context, name, self.columns) for name in names)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write counts and means, each (K,) float64."""
        count_K = np.asarray(sums["column_counts"], np.float64)
        if (count_K < LEAST).any():
            return PhaseResult(state=None, reason=FEW_VALUES)
        mean_K = np.clip(sums["column_sums"] / count_K, -1.0, 1.0)
        return PhaseResult(state={**context.state, COUNTS: count_K, MEANS: mean_K})

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnScalesPhase:
    """Sums squares around the means, a quarter of each so that none is above 1."""

    columns: int
    kind: str = COLUMN_SCALES

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K,)."""
        return (_summed(context, "column_squares", self.columns),)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write scales, (K,) float64, in the place of the counts: standard deviations with n - 1; 1 for a
        column of one value."""
        square_K = np.asarray(sums["column_squares"], np.float64)
        count_K = context.state[COUNTS]
        has_spread_K = square_K > NOISY * context.noise_of_survivors.get("column_squares", 0.0)
        variance_K = 4.0 * np.where(has_spread_K, square_K, 0.0) / (count_K - 1.0)
        scale_K = np.where(has_spread_K, np.sqrt(variance_K), 1.0)
        kept = {name: array for name, array in context.state.items() if name != COUNTS}
        return PhaseResult(state={**kept, SCALES: scale_K})

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {}
