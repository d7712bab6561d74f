"""A model tested on a silo's hold-out: sums, never means, because they go into a secure sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from chorale_models.task import Task
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import SampleLoss
from silo_agent.training.base.passes import run_model
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Cancelled
from strategies.base import Array
from strategies.phases.evaluation import ACCURACY, SILOS, SQUARE
from strategies.tasks.base import LOSS_SUM, TESTED, Metric, Sum

BASE_SUMS = (TESTED.name, LOSS_SUM.name)  # which no task measures
LARGEST = 1e30  # of a model's answers, in float32
ROUNDING = 1e-9  # of a norm in float64
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a task sums over the hold-out, by name."""

    sums: Mapping[str, Array]

    @property
    def tested(self) -> int:
        return int(self.sums["tested"])

    def personal_quantities(self, score: Callable[[Mapping[str, Array]], float]) -> dict[str, Array]:
        """Of a silo's own model: its score, the square and 1, or three zeros without a hold-out.

        Security: the score in whole hundredths. The rounding of a sum differs from round to round, so over
        many rounds of a model that stays the mean would be the exact sum, which has one set of addends.
        Shapes: all ().
        """
        found = round(score(self.sums), 2) if self.tested else 0.0
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
    metrics: Mapping[str, Metric] = NO_METRICS,
    loss_clip: float | None = None,
    weight_steps: int = 1,
) -> Figures:
    """What the task sums: counts in integers, losses in float32, other sums in float64. Raises Cancelled,
    ConfigError.

    sums: those that are wanted. metrics: asked for by the job, summed besides. loss_clip: of a private job.
    Each sample's loss is taken into [0, loss_clip], one that is no number to its upper end, and all batches
    have one shape: then no sample moves the sum by more, nor another's answer. What the task measures is
    measured record by record, and clipped to what its sum declares. A row of a larger unit weighs a part of
    a record: weight_steps as `Units.weights_N`, so a unit moves a sum by no more than a record would.
    """
    model.eval()
    is_private = loss_clip is not None
    wanted = {
        each.name: each for each in (*sums, *(each for metric in metrics.values() for each in metric.sums))
    }
    measured = [name for name in wanted if name not in BASE_SUMS]
    found = {
        name: np.zeros(
            wanted[name].shape, np.int64 if wanted[name].is_count and not is_private else np.float64
        )
        for name in measured
    }
    loss_sum, weights_N = 0.0, samples.weights_N(weight_steps)
    for batch in samples.passes(is_private=is_private):
        if is_cancelled():
            raise Cancelled("evaluation: no longer wanted")
        outputs = run_model(model, batch.inputs)
        loss_N = loss.per_sample(outputs, batch.labels_N)[: batch.count].double()
        if loss_clip is not None:
            loss_N = loss_N.nan_to_num(nan=loss_clip).clamp(0.0, loss_clip)
        weight_N = weights_N[batch.places_N[: batch.count]]
        loss_sum += float((weight_N * loss_N).sum())
        # what fills up is measured too where the number of records shall not show in the time
        measured_count = len(batch.labels_N) if samples.constant_work else batch.count
        # no answer of a model's is beyond what a sum can count
        answers = outputs.logits_NC[:measured_count].nan_to_num(nan=0.0, posinf=LARGEST, neginf=-LARGEST)
        targets = batch.labels_N[:measured_count]
        if is_private:
            answers, targets = answers.cpu(), targets.cpu()
        size = 1 if is_private else max(batch.count, 1)
        for start in range(0, measured_count, size):
            chosen = (answers[start : start + size], targets[start : start + size])
            if is_private:  # memory of its own: a kernel may round by where a row lies
                chosen = (chosen[0].clone(), chosen[1].clone())
            added = dict(task.measure(*chosen))
            for word in metrics:
                added |= task.measure_metric(word, *chosen)
            for name in measured:
                value = _checked(name, added, wanted[name])
                if is_private:
                    value = _of_one_record(value, wanted[name])
                    weight = float(weight_N[start]) if start < batch.count else 0.0
                    value = np.asarray(weight * value)
                found[name] += value
    return Figures(
        sums={
            **found,
            "tested": np.asarray(len(samples.units), dtype=np.int64),
            "loss_sum": np.asarray(loss_sum, dtype=np.float64),
        }
    )


def _checked(name: str, added: Mapping[str, Tensor], each: Sum) -> Array:
    """Raises ConfigError where a task does not measure what it declares."""
    if name not in added:
        raise ConfigError(f"task: measure gave no {name}, which the task declares")
    value = added[name].cpu().numpy()
    if value.shape != each.shape:
        raise ConfigError(f"task: measure gave {name} in shape {value.shape}, declared is {each.shape}")
    return value.astype(np.int64) if each.is_count else value


def _of_one_record(value: Array, each: Sum) -> Array:
    """What is longer than the sum declares is shortened, a count that is becomes 0: the noise is scaled by
    what is declared, and the weights that a record is measured by are the coordinator's."""
    length = float(np.linalg.norm(value.astype(np.float64)))
    if length <= each.per_record * (1.0 + ROUNDING):
        return value
    if each.is_count or not math.isfinite(length):
        return np.zeros_like(value)
    return np.asarray(value * (each.per_record / length))
