"""A model tested on a silo's hold-out: sums, never means, because they go into a secure sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from chorale_models.task import Task
from silo_agent.objective import Cancelled
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import SampleLoss
from silo_agent.training.base.passes import run_model
from silo_agent.training.models.base import FederatedModel
from strategies.base import Array
from strategies.phases.evaluation import ACCURACY, SILOS, SQUARE
from strategies.tasks.base import Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a task sums over the hold-out, by name."""

    sums: Mapping[str, Array]

    @property
    def tested(self) -> int:
        return int(self.sums["tested"])

    def personal_quantities(self, score: Callable[[Mapping[str, Array]], float]) -> dict[str, Array]:
        """Of a silo's own model: its score, the square and 1, or three zeros without a hold-out.

        Shapes: all ().
        """
        found = score(self.sums) if self.tested else 0.0
        return {
            ACCURACY: np.asarray(found, dtype=np.float64),
            SQUARE: np.asarray(found**2, dtype=np.float64),
            SILOS: np.asarray(int(self.tested > 0), dtype=np.int64),
        }


@torch.inference_mode()
def evaluate(
    model: FederatedModel,
    samples: Batches,
    *,
    loss: SampleLoss,
    task: Task,
    sums: Sequence[Sum],
    is_cancelled: Callable[[], bool],
    loss_clip: float | None = None,
) -> Figures:
    """What the task sums: counts in integers, losses in float32, other sums in float64. Raises Cancelled.

    sums: those that are wanted. loss_clip: of a private job. Each sample's loss is taken into [0, loss_clip],
    one that is no number to its upper end, and all batches have one shape: then no sample moves the sum by
    more, nor another's answer.
    """
    model.eval()
    found = {each.name: np.zeros(each.shape, np.int64 if each.is_count else np.float64) for each in sums}
    loss_sum = 0.0
    for batch in samples.passes(is_private=loss_clip is not None):
        if is_cancelled():
            raise Cancelled("evaluation: no longer wanted")
        outputs = run_model(model, batch.inputs)
        loss_N = loss.per_sample(outputs, batch.labels_N)[: batch.count].double()
        if loss_clip is not None:
            loss_N = loss_N.nan_to_num(nan=loss_clip).clamp(0.0, loss_clip)
        loss_sum += float(loss_N.sum())
        measured = task.measure(outputs.logits_NC[: batch.count], batch.labels_N[: batch.count])
        for name, value in measured.items():
            if name in found:
                found[name] += value.cpu().numpy()
    return Figures(
        sums={
            **found,
            "tested": np.asarray(len(samples), dtype=np.int64),
            "loss_sum": np.asarray(loss_sum, dtype=np.float64),
        }
    )
