"""Federated evaluation: what the job's task sums over the silos' hold-outs, summed like everything else.

Leaks what strategies/tasks/ says of each task, and the hold-outs' total size. A record moves each sum by at
most what is declared there (`Sum.per_record`); where a private job clips each sample's loss, that is
LOSS_CLIP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import Array, PhaseContext, PhaseResult, SummedBeside
from strategies.figure import flat_figures
from strategies.tasks.base import DeclaredTask
from strategies.tasks.classification import CLASSIFICATION

EVALUATE = "evaluate"
EVALUATE_ALL = "evaluate-all"  # between rounds, over all silos
ACCURACY, SQUARE, SILOS = "personal_accuracy", "personal_accuracy_square", "personal_silos"
DEVIATION = "personal_accuracy_deviation"  # a figure; no sum has this name


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The model as the silos received it, tested in the train phase; is_closing: the last one, by all metrics
    that the job asks for."""

    task: DeclaredTask = CLASSIFICATION
    is_closing: bool = False

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        if not context.tests_model:
            return ()
        further = self.task.closing_sums if self.is_closing else ()
        return tuple(each.quantity for each in (*self.task.round_sums, *further))

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        if not context.tests_model:
            return {}
        noise = context.noise_of_survivors
        figures = self.task.figures(sums, noise)
        for metric in self.task.asked.values() if self.is_closing else ():
            figures |= metric.figures(sums, noise)
        return flat_figures(figures)

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalAccuracy:
    """How good the silos' own models are, where a part of the model is theirs and after a fine-tuning.

    strategies/parts/closing/fine_tuning.py says what the sums tell.
    """

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Units: accuracies are shares of a silo's hold-out, 0 to 1."""
        if not context.tests_model:
            return ()
        return (
            Quantity(name=ACCURACY, bound=1.0, ring_bits=16, discloses=Disclosure.STATISTIC),
            Quantity(name=SQUARE, bound=1.0, ring_bits=16, discloses=Disclosure.STATISTIC),
            Quantity(name=SILOS, bound=1.0, is_count=True, discloses=Disclosure.STATISTIC),
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """Mean and standard deviation over the silos that have a hold-out, and their number.

        Every silo weighs the same; the deviation is that of these silos, not an estimate for others.
        Without any hold-out the number stands alone.
        """
        if not context.tests_model:
            return {}
        silos = int(sums[SILOS])
        figures = {SILOS: float(silos)}
        if silos > 0:
            # rounding in the ring may take a mean out of its range, and a variance of zero just below it
            mean, square = (min(max(float(sums[name]) / silos, 0.0), 1.0) for name in (ACCURACY, SQUARE))
            figures |= {ACCURACY: mean, DEVIATION: math.sqrt(max(square - mean * mean, 0.0))}
        return figures

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatePhase:
    """Figures of the model, or of the silos' own, over all silos: at the end, and between rounds where the
    job says `evaluate_all_every`. The state stays as it is."""

    kind: str = EVALUATE
    statistics: tuple[SummedBeside, ...] = (Evaluation(is_closing=True),)

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return tuple(quantity for part in self.statistics for quantity in part.quantities(context))

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        return PhaseResult(state=context.state)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {
            name: figure for part in self.statistics for name, figure in part.figures(context, sums).items()
        }

    def tables(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        """Matrices and curves of what the job asks for by `task.metrics`, and the deviation of the noise in
        each number of the sums that they are made of."""
        closing = [each for each in self.statistics if isinstance(each, Evaluation) and each.is_closing]
        noise = context.noise_of_survivors
        metrics = [metric for each in closing for metric in each.task.asked.values()]
        found = {name: table for metric in metrics for name, table in metric.tables(sums, noise).items()}
        named = [each.name for metric in metrics for each in metric.sums if each.name in noise]
        return found | {f"{name}_noise_deviation": np.array([noise[name]]) for name in named}
