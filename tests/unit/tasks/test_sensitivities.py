"""One record moves no sum of a task by more than the sum declares, whatever model and record are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chorale_models.task import Task
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.evaluation import evaluate
from silo_agent.training.base.loss import TaskLoss
from silo_agent.training.data.base import Samples
from silo_agent.training.models.base import FederatedModel
from strategies.base import Array
from strategies.tasks.base import LOSS_CLIP, Sum
from tests.support.task_samples import TASK_JOBS, answers, both_of, job_of, targets


def summed(
    name: str, said: Tensor, true: Tensor, *, loss_clip: float | None, task: Task | None = None
) -> Mapping[str, Array]:
    """What one silo gives to a closing evaluation in which its model's inputs are its answers."""
    declared, own = both_of(job_of(name))
    computed = task or own
    samples = Samples(features=said.numpy(), labels=true.numpy())
    return evaluate(
        FederatedModel(nn.Identity(), cut=None),
        Tensors.of(samples, torch.device("cpu")),
        loss=TaskLoss(computed),
        task=computed,
        sums=declared.round_sums,
        metrics=declared.asked,
        loss_clip=loss_clip,
        is_cancelled=lambda: False,
    ).sums


def all_sums(name: str) -> tuple[Sum, ...]:
    declared = job_of(name).method.task
    return (*declared.round_sums, *declared.closing_sums)


@pytest.mark.parametrize("loss_clip", [None, LOSS_CLIP])
@pytest.mark.parametrize("name", TASK_JOBS)
def test_one_record_more_moves_each_sum_by_what_it_declares(name: str, loss_clip: float | None) -> None:
    job, rng = job_of(name), np.random.default_rng(5)
    largest = {each.name: 0.0 for each in all_sums(name)}
    for trial in range(32):
        count = int(rng.integers(0, 35))
        # among them answers that no good model gives: the coordinator chooses the weights
        spread = (0.1, 3.0, 1e4, 1e30)[trial % 4]
        said, true = answers(job, count + 1, rng, spread=spread), targets(job, count + 1, rng)
        if trial % 3 == 0:
            said[-1].flatten()[0] = (np.nan, np.inf, -np.inf, 0.0)[trial % 4]
        less = summed(name, said[:-1], true[:-1], loss_clip=loss_clip)
        more = summed(name, said, true, loss_clip=loss_clip)
        for each in all_sums(name):
            if each.name == "loss_sum" and loss_clip is None:
                continue  # of a job without privacy as it is
            moved = np.linalg.norm(np.asarray(more[each.name], float) - less[each.name])
            assert moved <= each.per_record * (1 + 1e-6), each.name
            largest[each.name] = max(largest[each.name], float(moved))
    # what is declared is not far above what happens, which would be noise for nothing
    for each in all_sums(name):
        if each.name not in ("loss_sum", "token_loss") and "target_" not in each.name:
            assert largest[each.name] >= 0.3 * each.per_record, each.name


class Lies(Task):
    """Measures more of a record than the sum declares."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] * 0

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"labels_right": outputs.sum()}

    def measure_metric(self, metric: str, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        sums = job_of("multi-label").method.task.asked[metric].sums
        return {each.name: torch.zeros(each.shape) for each in sums}


def test_a_private_job_clips_what_a_task_measures_beyond_its_declaration() -> None:
    """The sum would carry a record in clear through noise that is scaled for less."""
    lies, said = Lies(job_of("multi-label").sizes), torch.full((3, 4), 50.0)
    true = torch.zeros((3, 4), dtype=torch.int64)
    bare, private = (
        summed("multi-label", said, true, loss_clip=clip, task=lies)["labels_right"]
        for clip in (None, LOSS_CLIP)
    )
    assert float(bare) == 600.0
    assert float(private) == pytest.approx(3.0)
