"""Federated evaluation: correct answers, tested samples and loss, summed like everything else.

Leaks the federation's accuracy and loss on the silos' hold-outs, and their total size. A record moves
each count by 1 and, where a private job clips each sample's loss, the loss sum by LOSS_CLIP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import Array, PhaseContext, PhaseResult, SummedBeside

EVALUATE = "evaluate"
ACCURACY, SQUARE, SILOS = "personal_accuracy", "personal_accuracy_square", "personal_silos"
DEVIATION = "personal_accuracy_deviation"  # a figure; no sum has this name
MAX_COUNT = float(1 << 40)  # samples at one silo; 2^22 such silos fit a 64-bit word
MAX_LOSS_SUM = float(1 << 30)  # of one silo's hold-out
LOSS_CLIP = 8.0  # of one sample in a private job: chance among 2,981 classes; less noise than a higher one


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The statistic that rides in the train phase: the model as the silos received it."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return (
            Quantity(
                name="correct",
                bound=MAX_COUNT,
                is_count=True,
                sensitivity_l2=1.0,
                discloses=Disclosure.STATISTIC,
                at_most="tested",
            ),
            Quantity(
                name="tested",
                bound=MAX_COUNT,
                is_count=True,
                sensitivity_l2=1.0,
                discloses=Disclosure.STATISTIC,
            ),
            Quantity(
                name="loss_sum", bound=MAX_LOSS_SUM, sensitivity_l2=LOSS_CLIP, discloses=Disclosure.STATISTIC
            ),
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """accuracy, loss (mean per tested sample; NaN where nothing was tested) and tested.

        Noise may take the sums out of their ranges; the figures stay in theirs.
        """
        tested = float(sums["tested"])
        correct, loss_sum = float(sums["correct"]), float(sums["loss_sum"])
        return {
            "accuracy": min(max(correct / tested, 0.0), 1.0) if tested > 0 else math.nan,
            "loss": max(loss_sum / tested, 0.0) if tested > 0 else math.nan,
            "tested": tested,
        }

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalAccuracy:
    """How good the silos' own models are, where a part of the model is theirs and after a fine-tuning.

    strategies/parts/closing/fine_tuning.py says what the sums tell.
    """

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Units: accuracies are shares of a silo's hold-out, 0 to 1."""
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
    """Closing phase: figures of the final model, or of the silos' own; the state stays as it is."""

    kind: str = EVALUATE
    statistics: tuple[SummedBeside, ...] = (Evaluation(),)

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return tuple(quantity for part in self.statistics for quantity in part.quantities(context))

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        return PhaseResult(state=context.state)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {
            name: figure for part in self.statistics for name, figure in part.figures(context, sums).items()
        }
