"""Mean and scale of columns of a table, and its rare categories, over all silos' training records, before the
first round.

One phase sums how many values there are, the values and their squares, so that all three are of the same
silos: a scale of some silos' squares by the counts of others would be wrong, and two counts would show one
silo's. Values are z, from -1 to 1, whose range the job declares (chorale/spec/samples/computed_columns.py). A
column with fewer than LEAST values in all silos ends the job: its mean would tell of single records.
Leaks by column the number of values, their mean and their variance over all silos of the sum, to all silos
and to everyone who has the model: of a column of zeros and ones, how many ones there are. So a silo's policy
treats it as a sum by class. Two sums over nearly the same silos would show those of one, so silos
refuse the second (docs/protocol.md 6.2). Under noise each sum is noised. A spread that is no larger than
noise and rounding make of one value is none. Of a category with fewer than LEAST records nothing is known but
that.

K = computed columns, G = counted categories of all columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import Array, Phase, PhaseContext, PhaseResult, total_of

COLUMN_MOMENTS = "column-moments"
MEANS = "method/column_means"  # (K,) float64, of z
SCALES = "method/column_scales"  # (K,) float64, of z
KEPT = "method/categories_kept"  # (G,) uint8: 1 where it is not rare
LEAST = 10.0  # values of a column, records of a category, as noised
MOMENTS, CATEGORY_COUNTS = ("column_counts", "column_sums", "column_squares"), "category_counts"
FEW_VALUES = "few-values"
TOO_FEW = f"a column with standardize: computed has fewer than {LEAST:g} values in all silos"
NOISY = 2.0  # deviations of noise and rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMomentsPhase(Phase):
    """Sums how many values there are, the values, and their squares; and the records of each category.
    categories: how many each counted column has."""

    columns: int
    categories: tuple[int, ...] = ()
    kind: str = COLUMN_MOMENTS

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K,) and (G,). A record adds -1 to 1 to each number of a column, and 1 to one category of
        each. A silo has at most twice as many records as it counted: counts are rounded down."""
        found = [(name, self.columns, self.columns) for name in MOMENTS if self.columns]
        if self.categories:
            found.append((CATEGORY_COUNTS, sum(self.categories), len(self.categories)))
        return tuple(
            Quantity(
                name=name,
                shape=(size,),
                bound=2.0 * total_of(context.state),
                sensitivity_l2=math.sqrt(moved),
                is_tagged=True,
                discloses=Disclosure.CLASS_STATISTIC,
                side=Side.TRAIN,
            )
            for name, size, moved in found
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write means and scales, each (K,) float64: standard deviations with n - 1; 1 for a column of
        one value. And which categories are kept, (G,)."""
        state = dict(context.state)
        if self.categories:
            state[KEPT] = (np.asarray(sums[CATEGORY_COUNTS]) >= LEAST).astype(np.uint8)
        if not self.columns:
            return PhaseResult(state=state)
        count_K = np.asarray(sums["column_counts"], np.float64)
        if (count_K < LEAST).any():
            return PhaseResult(state=None, reason=FEW_VALUES)
        mean_K = np.clip(sums["column_sums"] / count_K, -1.0, 1.0)
        square_K = sums["column_squares"] - count_K * (mean_K * mean_K)
        square_K = np.minimum(square_K, count_K)  # each z is within -1 to 1
        rounding = math.sqrt(context.members) / self.quantities(context)[0].scale(context.members)
        # an error of each sum makes at most (1 + |mean|)^2 times it of the squares around the mean
        error = max(rounding, context.noise_of_survivors.get("column_squares", 0.0))
        reach_K = 1.0 + np.abs(mean_K)
        has_spread_K = square_K > NOISY * error * (reach_K * reach_K)
        scale_K = np.sqrt(np.where(has_spread_K, square_K / (count_K - 1.0), 1.0))
        return PhaseResult(state={**state, MEANS: mean_K, SCALES: scale_K})
