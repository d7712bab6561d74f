"""Boosted trees grown together: a round is one level of one tree, from sums by node, input and bin.

XGBoost: Chen and Guestrin, KDD 2016 (arXiv 1603.02754), equations 5 to 7 and algorithm 3, over histograms.
The first round finds the base score, -G / H at a score of 0. Each round after it sums, over the training
records of all silos, gradients G, hessians H and records by live node, input and bin, and one bin more for
missing values. A split is where G_L^2 / (H_L + l2) + G_R^2 / (H_R + l2) - G^2 / (H + l2) is largest; a leaf
is -rate G / (H + l2), rounded to LEAF_BITS bits. Of several classes one tree each is grown side by side. A
tree under growth is a model: a node that is not split yet is a leaf.

Leaks those sums: of a bin with one record, what the model answers it and so its class. Records by input and
bin at a tree's root are the same in every tree, so all rounds are over the same silos. What leaves tell:
docs/threat-model.md.

K = trees side by side, T = trees one after the other, M = nodes of a tree, L = nodes of the level,
D = inputs, E = edges, B = E + 2 bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import (
    METHOD,
    MODEL,
    TOTAL,
    Array,
    Arrays,
    FloatArray,
    PartOptions,
    PhaseContext,
    PhaseResult,
    SummedBeside,
    options_of,
    total_of,
)
from strategies.number_stream import NumberStream, ordered_sum
from strategies.phases.training import TRAIN, WEIGHT
from strategies.recipe import Growth, UnderPrivacy
from strategies.tasks.base import DeclaredTask
from strategies.tasks.classification import CLASSIFICATION

GROWN = METHOD + "trees_grown"  # (2,) int64: finished trees, levels of the next; absent before the base score
SPLIT_ON, THRESHOLD, MISSING_LEFT, VALUE = (
    f"{MODEL}body.{name}" for name in ("split_on", "threshold", "missing_left", "value")
)  # (T, K, M) float32: 1 + the input, 0 of a leaf; left is below; 1 or 0; of a leaf
BASE = MODEL + "body.base"  # (K,) float32
MODEL_ARRAYS = (SPLIT_ON, THRESHOLD, MISSING_LEFT, VALUE, BASE)
GRADIENTS, HESSIANS, RECORDS = "bin_gradients", "bin_hessians", "bin_records"
MISSING_INPUT = -1e30  # of an input without a value; what is below MISSING_BELOW is one
MISSING_BELOW = -1e29
FARTHEST_GRADIENT = 4.0  # of a number's error, in half ranges
LEAST_GAIN = 1e-6  # XGBoost's kRtEps
LEAF_BITS = 8  # with 24 the first tree tells how many records of which class each leaf has
EDGE_DIGITS = 4  # of quantiles: no rounding of a library reaches them
IMPLAUSIBLE = "implausible"
FIGURE = "trees"  # of a round: finished ones


class TreesOptions(PartOptions):
    """XGBoost's names behind the descriptions."""

    depth: int = Field(default=3, ge=1, le=8, description="levels of a tree (max_depth)")
    bins: int = Field(default=32, ge=2, le=256, description="of an input without edges of its own")
    l2: float = Field(default=1.0, ge=0, le=1e6, description="lambda of leaf values (reg_lambda)")
    min_gain: float = Field(default=0.0, ge=0, le=1e9, description="least gain of a split (gamma)")
    min_child_weight: float = Field(default=1.0, ge=1e-3, le=1e9, description="least H of a leaf")
    min_records: int = Field(default=10, ge=10, le=1_000_000, description="fewest records of a leaf")
    column_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the inputs that a level may split on (colsample_bylevel)",
    )


TREES = Growth(
    word="trees",
    options=TreesOptions,
    under_privacy=UnderPrivacy(
        why="sums by node, input and bin, in which noise would leave nothing",
        records="sums by bin, which no clipped gradient is made of",
        shared="sums by bin, which no clipped gradient is made of",
        sums="sums by bin, in which noise for silos would leave nothing",
    ),
)


@cache
def normal_edges(bins: int) -> tuple[float, ...]:
    """Between bins that hold alike of a normal law: those of an input that is standardized."""
    return tuple(round(NormalDist().inv_cdf(place / bins), EDGE_DIGITS) for place in range(1, bins))


def side_by_side(task: DeclaredTask) -> int:
    """K: a tree a class from three on."""
    return task.sizes.classes if task.has_classes and task.sizes.classes > 2 else 1


def widest(task: DeclaredTask) -> tuple[float, float]:
    """The largest gradient and hessian of a record, as XGBoost has them."""
    if not task.has_classes:
        return FARTHEST_GRADIENT, 1.0
    return 1.0, 0.5 if task.sizes.classes > 2 else 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TreesPhase:
    """One level. own_edges: ascending, by input, where they are not `normal_edges`. rate: XGBoost's eta."""

    kind: str = TRAIN
    task: DeclaredTask = CLASSIFICATION
    rate: float = 0.1
    own_edges: Mapping[int, tuple[float, ...]]
    statistics: tuple[SummedBeside, ...] = ()

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: gradients, hessians and records (K, L, D, B); one number each K in the round of the base
        score. The hessian of a squared error is 1 and is not summed."""
        level = _grown(context.state)
        most = 2.0 * total_of(context.state) if TOTAL in context.state else 1.0
        shape = (side_by_side(self.task), 1, 1, 1)
        if level is not None:
            edges_DE = self.edges(context)
            shape = (shape[0], 1 << level[1], len(edges_DE), edges_DE.shape[1] + 2)
        gradient, hessian = widest(self.task)
        sums = {GRADIENTS: gradient, HESSIANS: hessian, RECORDS: 1.0}
        if not self.task.has_classes:
            del sums[HESSIANS]
        found = [
            Quantity(
                name=name,
                shape=shape,
                bound=most * bound if name != RECORDS else most,
                is_count=name == RECORDS,
                is_tagged=True,
                discloses=Disclosure.BIN_STATISTIC,
                side=Side.TRAIN,
            )
            for name, bound in sums.items()
        ]
        beside = [quantity for part in self.statistics for quantity in part.quantities(context)]
        return (*found, WEIGHT, *beside)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """The base score, or the splits of a level; nothing for sums that no records give."""
        weight = float(sums["weight"])
        share = min(max(weight, 0.0), 1.0)
        if weight <= 0.0 or weight < context.min_weight:
            return PhaseResult(state=None, data_share=share, reason="min-weight" if weight > 0 else "no-data")
        count = np.asarray(sums[RECORDS], np.float64)
        gradient = np.asarray(sums[GRADIENTS], np.float64)
        hessian = np.asarray(sums[HESSIANS], np.float64) if HESSIANS in sums else count
        if not self._is_possible(context, gradient, hessian, count):
            return PhaseResult(state=None, data_share=share, reason=IMPLAUSIBLE)
        grown = _grown(context.state)
        if grown is None:
            arrays: dict[str, Array] = {name: np.zeros_like(context.state[name]) for name in MODEL_ARRAYS}
            flat_K = [each.reshape(-1) for each in (gradient, hessian)]
            # without hessians there are no records, and nothing to divide by
            arrays[BASE] = (-flat_K[0] / np.maximum(flat_K[1], 1.0)).astype(np.float32)
            arrays[GROWN] = np.zeros(2, np.int64)
        else:
            arrays = self._grow(context, grown, gradient, hessian, count)
        figures = {FIGURE: float(arrays[GROWN][0])}
        return PhaseResult(state={**context.state, **arrays}, figures=figures, data_share=share)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {
            name: value for part in self.statistics for name, value in part.figures(context, sums).items()
        }

    def edges(self, context: PhaseContext) -> NDArray[np.float32]:
        """Ascending; infinite where an input has fewer than others. Shapes: -> (D, E)."""
        usual = normal_edges(options_of(TreesOptions, context.options).bins)
        inputs = math.prod(self.task.sizes.input_shape)
        of_inputs = [self.own_edges.get(place, usual) for place in range(inputs)]
        edges_DE = np.full((inputs, max(map(len, of_inputs))), np.inf, np.float32)
        for place, edges in enumerate(of_inputs):
            edges_DE[place, : len(edges)] = edges
        return edges_DE

    def _is_possible(
        self, context: PhaseContext, gradient: FloatArray, hessian: FloatArray, count: FloatArray
    ) -> bool:
        """Whether records may give such sums, up to the ring's rounding. Of each node, every input has the
        same records in other bins, so that the totals agree."""
        rounding = {
            each.name: context.members / each.scale(context.members) for each in self.quantities(context)
        }
        most, most_hessian = widest(self.task)
        hessian_error = rounding.get(HESSIANS, 0.0)
        is_possible_KLDB = (count >= 0) & (np.abs(gradient) <= most * count + rounding[GRADIENTS])
        is_possible_KLDB &= (hessian >= -hessian_error) & (hessian <= most_hessian * count + hessian_error)
        if not is_possible_KLDB.all():
            return False
        errors = ((count, 0.0), (gradient, rounding[GRADIENTS]), (hessian, hessian_error))
        for value, error in errors:
            total_KLD = ordered_sum(value, axis=-1)
            if (np.abs(total_KLD - total_KLD[..., :1]) > 2.0 * value.shape[-1] * error).any():
                return False
        return True

    def _grow(
        self,
        context: PhaseContext,
        grown: tuple[int, int],
        gradient: FloatArray,
        hessian: FloatArray,
        count: FloatArray,
    ) -> dict[str, Array]:
        """What the level changes in the state."""
        options, (tree, level) = options_of(TreesOptions, context.options), grown
        arrays: dict[str, Array] = {name: context.state[name].copy() for name in MODEL_ARRAYS[:-1]}
        edges_DE = self.edges(context)
        is_drawn_D = _drawn(len(edges_DE), options.column_share, context.public_seed)
        first, has_split = (1 << level) - 1, False
        for side in range(len(gradient)):
            for place in range(1 << level):
                node = first + place
                if level and arrays[SPLIT_ON][tree, side, (node - 1) // 2] == 0:
                    continue
                found = best_split(
                    gradient[side, place],
                    hessian[side, place],
                    count[side, place],
                    is_allowed_DE=np.isfinite(edges_DE) & is_drawn_D[:, np.newaxis],
                    options=options,
                )
                at = (tree, side, node)
                if found is None:
                    if level == 0:
                        whole, weight = (float(ordered_sum(each[side, 0, 0])) for each in (gradient, hessian))
                        arrays[VALUE][at] = self._leaf((whole, weight), options.l2)
                    continue
                has_split = True
                arrays[SPLIT_ON][at] = 1 + found.input
                arrays[THRESHOLD][at] = edges_DE[found.input, found.edge]
                arrays[MISSING_LEFT][at] = found.missing_left
                arrays[VALUE][at] = 0.0  # Security: beside those of its leaves it is one more equation
                arrays[VALUE][tree, side, 2 * node + 1] = self._leaf(found.left, options.l2)
                arrays[VALUE][tree, side, 2 * node + 2] = self._leaf(found.right, options.l2)
        is_done = not has_split or level + 1 == options.depth
        arrays[GROWN] = np.array([tree + 1, 0] if is_done else [tree, level + 1], np.int64)
        return arrays

    def _leaf(self, sums: tuple[float, float], l2: float) -> float:
        gradient, hessian = sums
        fraction, exponent = math.frexp(-self.rate * gradient / max(hessian + l2, LEAST_GAIN))
        return math.ldexp(round(fraction * (1 << LEAF_BITS)), exponent - LEAF_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """left, right: G and H of the children."""

    gain: float
    input: int
    edge: int
    missing_left: bool
    left: tuple[float, float]
    right: tuple[float, float]


def best_split(
    gradient_DB: FloatArray,
    hessian_DB: FloatArray,
    count_DB: FloatArray,
    *,
    is_allowed_DE: NDArray[np.bool_],
    options: TreesOptions,
) -> Split | None:
    """That of the largest gain; of equal ones the lowest input, then the lowest edge, then missing values to
    the right. None where none is allowed and gains enough."""
    sums = (gradient_DB, hessian_DB, count_DB)
    edges = is_allowed_DE.shape[1]
    # of whole numbers below 2^53 in one unit, so no order of addition changes a bit
    below = [np.add.accumulate(each, axis=1) for each in sums]
    left = [
        np.stack([each[:, :edges], each[:, :edges] + whole[:, -1:]], axis=-1)
        for each, whole in zip(below, sums, strict=True)
    ]
    right = [each[:, -1:, np.newaxis] - part for each, part in zip(below, left, strict=True)]
    is_valid = np.broadcast_to(is_allowed_DE[..., np.newaxis], left[0].shape)
    for _, hessian, count in (left, right):
        is_valid = is_valid & (count >= options.min_records) & (hessian >= options.min_child_weight)
    if not is_valid.any():
        return None
    whole = _score(below[0][:, -1], below[1][:, -1], options.l2)
    gains = _score(left[0], left[1], options.l2) + _score(right[0], right[1], options.l2)
    gains = np.where(is_valid, gains - whole[:, np.newaxis, np.newaxis], -np.inf)
    at = np.unravel_index(int(np.argmax(gains)), gains.shape)
    if not gains[at] > max(options.min_gain, LEAST_GAIN):
        return None
    return Split(
        gain=float(gains[at]),
        input=int(at[0]),
        edge=int(at[1]),
        missing_left=bool(at[2]),
        left=(float(left[0][at]), float(left[1][at])),
        right=(float(right[0][at]), float(right[1][at])),
    )


def _score(gradient: FloatArray, hessian: FloatArray, l2: float) -> FloatArray:
    return gradient * gradient / np.maximum(hessian + l2, LEAST_GAIN)


def _drawn(inputs: int, share: float, seed: bytes) -> NDArray[np.bool_]:
    """Which inputs the level may split on. Shapes: -> (D,)."""
    kept_D = np.zeros(inputs, np.bool_)
    order_D = np.argsort(NumberStream(seed).uniform(inputs, bound=1.0), kind="stable")
    kept_D[order_D[: math.ceil(share * inputs)]] = True
    return kept_D


def _grown(state: Arrays) -> tuple[int, int] | None:
    """Finished trees, and levels of the next; None before the base score. Raises ConfigError for arrays that
    no rounds lead to: the state may come from outside."""
    found = state.get(GROWN)
    if found is None:
        return None
    split_on = state.get(SPLIT_ON)
    if found.shape != (2,) or found.dtype != np.int64 or split_on is None or split_on.ndim != 3:
        raise ConfigError(f"state: {GROWN}: expected two whole numbers beside {SPLIT_ON}")
    tree, level = map(int, found)
    if not (0 <= tree < split_on.shape[0] and 0 <= level <= _deepest(split_on)):
        raise ConfigError(f"state: {GROWN}: expected a tree and a level of {SPLIT_ON}, got {found.tolist()}")
    return tree, level


def check_splits(arrays: Arrays, *, inputs: int) -> None:
    """Raises ConfigError for a file whose nodes ask for no input of the model, or compare with no number."""
    split_on, threshold = arrays[SPLIT_ON], arrays[THRESHOLD]
    if not ((split_on >= 0) & (split_on <= inputs) & (split_on == np.floor(split_on))).all():
        raise ConfigError(f"{SPLIT_ON}: expected 0, or inputs from 1 to {inputs}")
    if not np.isfinite(threshold).all():
        raise ConfigError(f"{THRESHOLD}: expected finite numbers")


def at_widest(state: Arrays) -> Arrays:
    """Before the level of most nodes, for whom sizes matter; a state of no trees as it is."""
    split_on = state.get(SPLIT_ON)
    return state if split_on is None else {**state, GROWN: np.array([0, _deepest(split_on)], np.int64)}


def after_rounds(state: Arrays, trees: Sequence[object]) -> Arrays:
    """For whom sizes matter: before the round that follows rounds whose figures name so many trees each; a
    state of no trees as it is."""
    if GROWN not in state:
        return state
    arrays = {name: each for name, each in state.items() if name != GROWN}
    return {**arrays, GROWN: np.array([0, trees.count(trees[-1]) - 1], np.int64)} if trees else arrays


def _deepest(split_on: Array) -> int:
    """The last level whose nodes have children in it."""
    return (int(split_on.shape[2]) + 1).bit_length() - 3


def trees_in(state: Arrays) -> tuple[int, int]:
    """As silos read them: finished trees, levels of the next. Raises ConfigError."""
    return _grown(state) or (0, 0)
