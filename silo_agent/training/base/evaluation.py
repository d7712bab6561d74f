"""A model tested on a silo's hold-out: sums, never means, because they go into a secure sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from silo_agent.objective import Cancelled
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.loss import SampleLoss
from silo_agent.training.base.passes import run_model
from silo_agent.training.models.base import CutModel
from strategies.base import Array
from strategies.phases.evaluation import ACCURACY, SILOS, SQUARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Sums over the hold-out."""

    correct: int
    tested: int
    loss_sum: float

    def quantities(self) -> dict[str, Array]:
        """As the train and evaluate phases name them."""
        return {
            "correct": np.asarray(self.correct, dtype=np.int64),
            "tested": np.asarray(self.tested, dtype=np.int64),
            "loss_sum": np.asarray(self.loss_sum, dtype=np.float64),
        }

    def personal_quantities(self) -> dict[str, Array]:
        """Of a silo's own model: accuracy, its square and 1, or three zeros without a hold-out.

        Shapes: all (). Units: shares of the hold-out.
        """
        accuracy = self.correct / self.tested if self.tested else 0.0
        return {
            ACCURACY: np.asarray(accuracy, dtype=np.float64),
            SQUARE: np.asarray(accuracy**2, dtype=np.float64),
            SILOS: np.asarray(int(self.tested > 0), dtype=np.int64),
        }


@torch.inference_mode()
def evaluate(
    model: CutModel,
    samples: Tensors,
    *,
    loss: SampleLoss,
    is_cancelled: Callable[[], bool],
    loss_clip: float | None = None,
) -> Figures:
    """Counts in integers, losses in float32, their sum in float64. Raises Cancelled.

    loss_clip: of a private job. Each sample's loss is taken into [0, loss_clip], one that is no number to
    its upper end, and all batches have one shape: then no sample moves the sum by more, nor another's answer.
    """
    model.eval()
    correct, loss_sum = 0, 0.0
    for batch in samples.passes(is_private=loss_clip is not None):
        if is_cancelled():
            raise Cancelled("evaluation: no longer wanted")
        outputs = run_model(model, batch.inputs)
        is_correct_N = outputs.logits_NC.argmax(dim=1) == batch.labels_N
        correct += int(is_correct_N[: batch.count].sum())
        loss_N = loss.per_sample(outputs, batch.labels_N)[: batch.count].double()
        if loss_clip is not None:
            loss_N = loss_N.nan_to_num(nan=loss_clip).clamp(0.0, loss_clip)
        loss_sum += float(loss_N.sum())
    return Figures(correct=correct, tested=len(samples), loss_sum=loss_sum)
