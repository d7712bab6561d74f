"""Mean, standard deviation and correlations of measured columns: over all records, but for correlations by
published part of the group, too.

Values are z, from -1 to 1 between a column's outermost edges. Source: docs/decisions/0041-analysis.md.

Mean and deviation together bound the farthest value: mean + (n - 1) SD / sqrt(n) is the one of 87,000 beside
nine near 100. So they are shown where even to one who knows a value no other makes more than three quarters
of the rest of the squares around the mean: the remaining ones make at least a quarter, by the published parts
that they are known to be in; or all together make so much that none within the outermost edges can. And where
the parts that hold values are three: of zeros and ones the mean would give the counts, and so how many values
are missing.

Correlations are of columns whose means are shown, and rounded as these are. A large one tells that few
records are low in one column and high in the other. So it is shown where moments leave room for min_cell of
them in the cells of outermost parts that it speaks against: m records that lie u and v deviations from the
means leave the others a covariance where m n / (n - m) (u^2 + v^2 + 2 |r| u v) <= (n - 1) (1 - r^2).

K = measured columns, R = published parts of the group, H = R + 1: all records, then by part; V = published
parts of a column that hold values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import CELL_COUNTS, CELL_PARTS, IMPLAUSIBLE, PART_COUNTS, PARTS, ROW_COUNTS
from strategies.analysis.model_state import bears
from strategies.analysis.model_sums import is_of_squares, model_quantity, room_of
from strategies.analysis.partition import Partition, Tables
from strategies.base import Array, Arrays, FloatArray, Phase, PhaseContext, PhaseResult, total_of
from strategies.exact import total
from strategies.rounding import rounded, rounding_step

VALUES, PRODUCTS = "analysis-values", "analysis-products"
NUMBERS, SUMS, SQUARES = "value_counts", "value_sums", "value_squares"
SCORES = "score_products"

# in the state, followed by the column's place: of all records and of each published part of the group
MEANS = "method/means/"  # (H,) float64, in the column's units, rounded; 0 where none is shown
DEVIATIONS = "method/deviations/"  # (H,) float64, likewise
SHOWN = "method/means_shown/"  # (H,) uint8: 1 where mean and deviation are published
# of each two measured columns, in the order of combinations
CORRELATIONS = "method/correlations"  # (K (K - 1) / 2,) float64, rounded; 0 where it is not shown
CORRELATIONS_SHOWN = "method/correlations_shown"  # likewise, uint8

SHARE = 0.75  # of the squares without those of one value, the most that another one makes
FEWEST_PARTS = 3  # of which two hold min_cell values each, whatever is missing
NOISY = 2.0  # deviations of rounding
NO_PART = -1  # of missing values, where there are none
DOUBLE = 2.0  # squares of scores, of a spread that rounding made or of a lie
TENTHS = 0.1  # three digits of a correlation are those behind the point


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesPhase(Phase):
    """Sums by measured column and published part of the group how many values there are, the values, and
    their squares."""

    tables: Tables
    addends: int = 1  # sums that each sum handed over is made of
    kind: str = VALUES

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K, G), of which the first R are used: no size follows from what was counted."""
        shape = (len(self.tables.measured), self.tables.group_size)
        return tuple(
            Quantity(
                name=name,
                shape=shape,
                bound=2.0 * total_of(context.state),
                is_count=name == NUMBERS,
                sensitivity_l2=math.sqrt(shape[0]),
                is_tagged=True,
                discloses=Disclosure.CELL,
            )
            for name in (NUMBERS, SUMS, SQUARES)
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write means and deviations where they are shown. Nothing where values are not of the counted
        records: of fewer silos, or a silo's lie.

        Beside rows of which some are shown, figures of all records would give the sum of the others.
        """
        error = math.sqrt(context.members) / self.quantities(context)[1].scale(context.members)
        state = dict(context.state)
        rows = len(state[ROW_COUNTS])
        for number_R, sum_R, square_R, place in zip(
            *(np.asarray(sums[name], np.float64)[:, :rows] for name in (NUMBERS, SUMS, SQUARES)),
            self.tables.measured,
            strict=True,
        ):
            parts = self._parts(context.state, place)
            if any(not each.holds(number) for each, number in zip(parts[1:], number_R, strict=True)):
                return PhaseResult(state=None, reason=IMPLAUSIBLE)
            number_H, sum_H, square_H = (_with_all(each_R) for each_R in (number_R, sum_R, square_R))
            mean_H = np.clip(sum_H / np.maximum(number_H, 1.0), -1.0, 1.0)
            square_H = np.clip(square_H - number_H * (mean_H * mean_H), 0.0, number_H)
            noise = error * len(number_R) * self.addends
            # an error of each sum makes at most (1 + |mean|)^2 times it of the squares around the mean
            reach_H = 1.0 + np.abs(mean_H)
            # and a deviation is off by at most half a standard error of the mean
            has_spread_H = square_H > NOISY * noise * (reach_H * reach_H) * np.sqrt(number_H)
            least_H = np.array([each.least_squares_of_others() for each in parts])
            is_of_many_H = (1.0 - SHARE) * square_H <= least_H
            is_of_many_H |= square_H >= (1.0 + 1.0 / SHARE) * (reach_H * reach_H)
            has_parts_H = np.array([len(each.number_V) >= FEWEST_PARTS for each in parts])
            shown_H = has_spread_H & has_parts_H & is_of_many_H
            shown_H[0] &= shown_H[1:].all() or not shown_H[1:].any()
            deviation_H = np.sqrt(square_H / np.maximum(number_H - 1.0, 1.0))
            figures_2H = _in_units(self.tables.partitions[place], number_H, mean_H, deviation_H)
            state[MEANS + str(place)], state[DEVIATIONS + str(place)] = np.where(shown_H, figures_2H, 0.0)
            state[SHOWN + str(place)] = shown_H.astype(np.uint8)
        return PhaseResult(state=state)

    def _parts(self, state: Arrays, place: int) -> list[PublishedParts]:
        """Of all records, where a column is in its finest parts, and of each row."""
        finest, in_table = state[PARTS + str(place)].tolist(), state[CELL_PARTS + str(place)].tolist()
        counts_Q = state[PART_COUNTS + str(place)]
        # missing values that are published with others are few, unless nothing else is published
        is_known = finest.count(finest[-1]) == 1 or len(counts_Q) == 1
        missing = int(counts_Q[-1]) if is_known else self.tables.min_cell - 1
        if not self.tables.partitions[place].has_missing:
            finest, in_table, missing = [*finest, NO_PART], [*in_table, NO_PART], 0
        edges = self.tables.partitions[place].edges
        return [
            PublishedParts.of(part_of, counts.tolist(), edges=edges, most_missing=missing)
            for part_of, counts in (
                (finest, counts_Q),
                *((in_table, row_T) for row_T in state[CELL_COUNTS + str(place)]),
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductsPhase(Phase):
    """Sums products of scores: of values less the published mean, in published deviations. Of z itself they
    would be lost in rounding where edges are wide. That a mean is rounded, by a quarter of its standard error
    at most, moves a correlation by 1 / (16 n)."""

    tables: Tables
    kind: str = PRODUCTS

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: (K (K + 1) / 2,), the upper triangle of (K, K), row by row. Squares of scores add up to the
        records but for rounding, and no product adds up to more."""
        size = len(self.tables.measured)
        return (model_quantity(SCORES, (size * (size + 1) // 2,), 2.0, context),)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write correlations where they are shown. Nothing of sums that no records give."""
        state, measured = context.state, self.tables.measured
        room = room_of(self.quantities(context)[0], context.members)
        records, least = float(state[ROW_COUNTS][0]), float(self.tables.min_cell)
        product_KK = np.zeros((len(measured), len(measured)))
        upper = np.triu_indices(len(measured))
        product_KK[upper] = product_KK.T[upper] = np.asarray(sums[SCORES], np.float64)
        if not is_of_squares(product_KK, room):
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        square_K = np.diagonal(product_KK)
        has_K = np.array([state[SHOWN + str(place)][0] == 1 for place in measured])
        has_K &= (square_K > records / DOUBLE) & (square_K < records * DOUBLE)
        has_K &= bears(int(records), len(measured) + 1)
        root_K = np.sqrt(np.where(has_K, square_K, 1.0))
        correlation_KK = np.clip(product_KK / (root_K * root_K[:, None]), -1.0, 1.0)
        apart_K2 = [self._outermost(state, place) for place in measured]
        shown, correlations = [], []
        for one, other in combinations(range(len(measured)), 2):
            found = float(correlation_KK[one, other])
            against = apart_K2[other] if found < 0.0 else apart_K2[other][::-1]
            most = (1.0 - found * found) * (records - 1.0) * (records - least) / (records * least)
            has_room = all(
                u * u + v * v + 2.0 * abs(found) * u * v <= most
                for u, v in zip(apart_K2[one], against, strict=True)
            )
            shown.append(bool(has_K[one] and has_K[other]) and has_room)
            step = rounding_step(TENTHS, (1.0 - found * found) / math.sqrt(records))
            correlations.append(rounded(found, step) if shown[-1] else 0.0)
        state = {**state, CORRELATIONS: np.array(correlations), CORRELATIONS_SHOWN: np.array(shown, np.uint8)}
        return PhaseResult(state=state)

    def _outermost(self, state: Arrays, place: int) -> tuple[float, float]:
        """How many deviations below and above the mean the lowest and the highest published part begin."""
        edges, parts = self.tables.partitions[place].edges, state[PARTS + str(place)].tolist()
        mean, deviation = standard_of(state, place, edges)
        low = as_z(edges[parts.count(parts[0])], edges)
        high = as_z(edges[len(parts) - parts.count(parts[-1])], edges)
        if deviation <= 0.0:
            return 0.0, 0.0
        return max((mean - low) / deviation, 0.0), max((high - mean) / deviation, 0.0)


def standard_of(state: Arrays, place: int, edges: Sequence[float]) -> tuple[float, float]:
    """Published mean and deviation of all records, as z; zeros where they are not shown."""
    if not state[SHOWN + str(place)][0]:
        return 0.0, 0.0
    width = edges[-1] - edges[0]
    mean, deviation = float(state[MEANS + str(place)][0]), float(state[DEVIATIONS + str(place)][0])
    return as_z(mean, edges), deviation / width * 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedParts:
    """Where values of a column are known to lie: at least so many within each interval, as z, upwards.

    fewest, most: values in all of them.
    """

    number_V: FloatArray
    low_V: FloatArray
    high_V: FloatArray
    fewest: int
    most: int

    @classmethod
    def of(
        cls, part_of: Sequence[int], counts: Sequence[int], *, edges: Sequence[float], most_missing: int
    ) -> PublishedParts:
        """part_of: of each declared part, missing values last. most_missing: of those that a part holds
        beside values."""
        ends = [as_z(edge, edges) for edge in edges]
        fewest, most, intervals = 0, 0, []
        for part, count in enumerate(counts):
            places = [place for place, published in enumerate(part_of[:-1]) if published == part]
            if not places:
                continue
            certain = max(count - most_missing, 0) if part == part_of[-1] else count
            fewest, most = fewest + certain, most + count
            intervals.append((float(certain), ends[places[0]], ends[places[-1] + 1]))
        number_V, low_V, high_V = np.array(intervals).T
        return cls(number_V=number_V, low_V=low_V, high_V=high_V, fewest=fewest, most=most)

    def holds(self, number: float) -> bool:
        return self.fewest <= number <= self.most

    def least_squares_of_others(self) -> float:
        """The least sum of squares around any center of all but two values of each interval, each as near
        to it as its interval lets it be.

        It is convex, and one square within each interval: of the places where each of these would be least,
        moved into its interval, one is the least of all.
        """
        is_below_VV = np.tri(len(self.number_V), k=-1).T > 0  # part by interval of the center
        is_above_VV = np.tri(len(self.number_V), k=-1) > 0
        other_V = np.maximum(self.number_V - 2.0, 0.0)
        near_VV = np.where(is_below_VV, self.high_V[:, None], self.low_V[:, None])
        weight_VV = np.where(is_below_VV | is_above_VV, other_V[:, None], 0.0)
        center_V = total(weight_VV * near_VV) / np.maximum(total(weight_VV), 1.0)
        center_V = np.clip(center_V, self.low_V, self.high_V)
        gap_VV = np.maximum(self.low_V[:, None] - center_V, center_V - self.high_V[:, None])
        gap_VV = np.maximum(gap_VV, 0.0)
        return float(total(other_V[:, None] * (gap_VV * gap_VV)).min())


def _with_all(number_R: FloatArray) -> FloatArray:
    """Their sum, then they. Shapes: (R,) -> (H,)."""
    return np.concatenate([total(number_R)[None], number_R])


def as_z(edge: float, edges: Sequence[float]) -> float:
    return (edge - edges[0]) / (edges[-1] - edges[0]) * 2.0 - 1.0


def _in_units(
    partition: Partition, number_H: FloatArray, mean_H: FloatArray, deviation_H: FloatArray
) -> list[list[float]]:
    """Means and deviations in the column's units, each rounded by its own standard error."""
    low, width = partition.edges[0], partition.edges[-1] - partition.edges[0]
    means, deviations = [], []
    for number, mean, deviation in zip(
        number_H.tolist(), mean_H.tolist(), (width / 2.0 * deviation_H).tolist(), strict=True
    ):
        step = rounding_step(deviation, deviation / math.sqrt(max(number, 1.0)))
        means.append(rounded(low + width * ((mean + 1.0) / 2.0), step))
        deviations.append(rounded(deviation, step))
    return [means, deviations]
