"""One round of training: the weighted mean of the silos' model deltas, and what is summed with it.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
2017, algorithm 1: w <- w + sum_k (n_k/n) delta_k, here over the silos of the revealed sum:
w <- w + (sum_k p_k delta_k) / (sum_k p_k) with p_k = n_k/total. Source: docs/protocol.md 4 and 7.
Leaks sum_k p_k delta_k of each round and the share of the data that took part.

P = trained parameters, B = values of float buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import CLIPPED, MAX_VALUES, Disclosure, Quantity
from strategies.base import (
    MODEL,
    Array,
    FloatArray,
    Keeper,
    PhaseContext,
    PhaseResult,
    ServerRule,
    ServerStep,
    SummedBeside,
    blocks,
)
from strategies.update_scale import UpdateScale, delta_quantity

TRAIN = "train"
BUFFER_BOUND = 1e3  # of BatchNorm's running means and variances
CLIPPED_SHARE_LIMIT = 1e-3  # above it the figure `clipped_too_often` is 1
WEIGHT = Quantity(name="weight", bound=1.0, is_tagged=True, discloses=Disclosure.CONSTANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPhase:
    """One round of training: p * delta, p, what the server update and the statistics need besides.

    update: None where the whole model is each silo's own, and p and the statistics are all that is summed.
    """

    kind: str = TRAIN
    update: ServerRule | None
    statistics: tuple[SummedBeside, ...] = (UpdateScale(),)
    keepers: tuple[Keeper, ...] = ()

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: delta (P,) in the order of context.trained, buffers (B,) in that of context.buffers."""
        statistics = self._of_statistics(context)
        clipped = Quantity(
            name=CLIPPED, bound=float(MAX_VALUES), is_count=True, discloses=Disclosure.DIAGNOSTIC
        )
        if self.update is None:
            return (WEIGHT, *statistics, clipped) if statistics else (WEIGHT,)
        return (*_model_quantities(context), WEIGHT, *self.update.quantities(context), *statistics, clipped)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Take the server's step and the mean buffers; nothing where too little data took part."""
        weight = float(sums["weight"])
        data_share = min(max(weight, 0.0), 1.0)  # the ring's resolution leaves 1.0000000001
        if weight <= 0.0:
            return PhaseResult(state=None, reason="no-data")
        if weight < context.min_weight:
            return PhaseResult(state=None, data_share=data_share, reason="min-weight")
        figures: Mapping[str, float] = {}
        written: dict[str, Array] = {}
        if self.update is not None:
            step = self.update.step(context, sums)
            written, figures = {**moved(context, step), **step.arrays}, step.figures
        if context.buffers:
            written |= _averaged_buffers(context, sums["buffers"] / weight)
        for part in self.statistics:
            written |= part.arrays(context, sums)
        state = {**context.state, **written}
        for keeper in self.keepers:
            state |= keeper.arrays(context, state)
        return PhaseResult(state=state, figures=figures, data_share=data_share)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """How much was clipped, and what the statistics say."""
        # a private job sums none
        figures = _clipped_figures(context, sums, values=self._values(context)) if CLIPPED in sums else {}
        for part in self.statistics:
            figures.update(part.figures(context, sums))
        return figures

    def _of_statistics(self, context: PhaseContext) -> list[Quantity]:
        return [quantity for part in self.statistics for quantity in part.quantities(context)]

    def _values(self, context: PhaseContext) -> int:
        """Of one silo: deltas, buffers, and the server update's own vectors, such as SCAFFOLD's. Of a silo
        that sends none of these, the statistics' vectors."""
        further = self._of_statistics(context) if self.update is None else self.update.quantities(context)
        vectors = sum(math.prod(each.shape) for each in further if each.shape)
        return vectors + context.trained_values + _size(context, context.buffers)


def unflatten(values_P: FloatArray, like: Mapping[str, Array], names: tuple[str, ...]) -> dict[str, Array]:
    """Cut a vector into arrays shaped as in `like`. Shapes: (P,) -> any."""
    cuts = np.cumsum([like[name].size for name in names])[:-1]
    parts = np.split(values_P, cuts)
    return {name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)}


def _model_quantities(context: PhaseContext) -> list[Quantity]:
    quantities = [delta_quantity(context, size=context.trained_values)]
    if context.buffers:
        quantities.append(
            Quantity(
                name="buffers",
                shape=(_size(context, context.buffers),),
                bound=BUFFER_BOUND,
                is_tagged=True,
                discloses=Disclosure.STATISTIC,
            )
        )
    return quantities


def _size(context: PhaseContext, names: tuple[str, ...]) -> int:
    return sum(context.state[MODEL + name].size for name in names)


def moved(context: PhaseContext, step: ServerStep) -> dict[str, Array]:
    """The model after the step, which is the only vector of its length that is held."""
    arrays, start = {}, 0
    for name in (MODEL + name for name in context.trained):
        before_N = context.state[name].reshape(-1)
        moved_N = np.empty(before_N.size, np.float32)
        for block in blocks(before_N.size):
            steps_B = step.steps(slice(start + block.start, start + block.stop))
            moved_N[block] = before_N[block] + steps_B / step.divisor  # in float64 and rounded once
        start += before_N.size
        arrays[name] = moved_N.reshape(context.state[name].shape)
    return arrays


def _averaged_buffers(context: PhaseContext, mean_B: FloatArray) -> dict[str, Array]:
    names = tuple(MODEL + name for name in context.buffers)
    arrays = {}
    for name, value in unflatten(mean_B, context.state, names).items():
        # stochastic rounding may take a variance of zero just below it
        floor = 0.0 if name.endswith("running_var") else -np.inf
        arrays[name] = np.where(value > floor, value, floor).astype(np.float32)
    return arrays


def _clipped_figures(context: PhaseContext, sums: Mapping[str, Array], *, values: int) -> dict[str, float]:
    """clipped_share is of the values that all m silos would send, so exact where none was left out.

    values: of one silo.
    """
    clipped = float(sums[CLIPPED])
    share = clipped / (context.members * values)
    return {
        "clipped": clipped,
        "clipped_share": share,
        "clipped_too_often": float(share > CLIPPED_SHARE_LIMIT),
    }
