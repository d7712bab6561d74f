"""One unit moves no statistic by more than a record may, however many rows it has and whatever they are.

N = rows, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.evaluation import evaluate
from silo_agent.training.base.loss import TaskLoss
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.state import model_arrays
from silo_agent.training.parts.closing.ffc import calibrate
from silo_agent.training.parts.statistics.logit_prototypes import logit_prototypes
from silo_agent.training.parts.statistics.soft_labels import soft_labels
from strategies.base import Array
from strategies.tasks.base import LOSS_CLIP, Sum
from tests.support.objectives import cut_model, make_work
from tests.support.task_samples import TASK_JOBS, answers, both_of, job_of, targets
from tests.unit.training.dp_sgd import make_job, strategy_of

CPU = torch.device("cpu")
STEPS = 64
CLASSES = 4
CLIP = 10.0
ROWS = 7  # of the unit that is there or not


def summed(name: str, said: Tensor, true: Tensor, units_N: NDArray[np.int64] | None) -> Mapping[str, Array]:
    """What a private job's closing evaluation sums where a model's inputs are its answers."""
    declared, computed = both_of(job_of(name))
    samples = Samples(features=said.numpy(), labels=true.numpy(), units_N=units_N)
    return evaluate(
        FederatedModel(nn.Identity(), cut=None),
        Tensors.of(samples, CPU),
        loss=TaskLoss(computed),
        task=computed,
        sums=declared.round_sums,
        metrics=declared.asked,
        loss_clip=LOSS_CLIP,
        weight_steps=STEPS,
        is_cancelled=lambda: False,
    ).sums


@pytest.mark.parametrize("name", TASK_JOBS)
def test_one_unit_more_moves_each_sum_by_what_a_record_may(name: str) -> None:
    """Its rows are all alike, which moves a sum furthest; as records by themselves they move one beyond."""
    job, rng = job_of(name), np.random.default_rng(5)
    declared = job.method.task
    sums: tuple[Sum, ...] = (*declared.round_sums, *declared.closing_sums)
    beyond = 0
    for trial in range(12):
        others = int(rng.integers(0, 35))
        spread = (0.1, 3.0, 1e4)[trial % 3]
        said, true = answers(job, others + ROWS, rng, spread=spread), targets(job, others + ROWS, rng)
        said[others:], true[others:] = said[-1:].clone(), true[-1:].clone()
        units_N = np.repeat([*range(others // 2 + 1)], 2)[:others]
        units_N = np.append(units_N, np.full(ROWS, others))
        found = {}
        for kind, each in (("units", units_N), ("records", None)):
            more = summed(name, said, true, each)
            less = summed(name, said[:others], true[:others], None if each is None else each[:others])
            found[kind] = {of: float(np.linalg.norm(np.asarray(more[of], float) - less[of])) for of in more}
        for of in sums:
            assert found["units"][of.name] <= of.per_record * (1 + 1e-6), of.name
            beyond += found["records"][of.name] > 2 * of.per_record
            if of.is_count:
                steps = np.asarray(summed(name, said, true, units_N)[of.name]) * STEPS
                assert (steps == np.floor(steps)).all(), of.name
    assert beyond >= 12  # the control: `tested` moves by ROWS every time


def test_accuracy_is_the_mean_over_units() -> None:
    """One patient with 8 right rows, one with 2 wrong ones, one with a right and a wrong one: a half."""
    said = torch.tensor([[0.0, 9.0]] * 12)
    true = torch.tensor([1] * 8 + [0, 0] + [1, 0])
    units_N = np.repeat([0, 1, 2], [8, 2, 2])
    sums = summed("two-classes", said, true, units_N)
    assert (float(sums["correct"]), int(sums["tested"])) == (1.5, 3)


def statistics(
    logits_NC: NDArray[np.float32], labels_N: NDArray[np.int64], units_N: NDArray[np.int64] | None
) -> dict[str, Array]:
    """What the statistics of private jobs sum over training samples that are a model's answers."""
    parts = {"regularizer": "csd", "statistic": "logit-prototypes"}
    job = make_job(classes=CLASSES, input_shape=(CLASSES,), strategy=strategy_of(parts))
    data = Samples(features=logits_NC, labels=labels_N, units_N=units_N)
    model = cut_model(nn.Identity(), width=CLASSES, classes=CLASSES)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(CLASSES))
        model.head.bias.zero_()
    work = make_work(job, SiloData(train=data, holdout=data, name="test"), state=dict(model_arrays(model)))
    setting = Setting(work=work, received=model, device=CPU)
    return {**calibrate(setting), **soft_labels(setting, setting.train), **logit_prototypes(setting)}


LARGEST = {
    "prototypes": CLIP,
    "soft_labels": 1.0,
    "class_counts": 1.0,
    "gram": 1.0,
    "moment": 1.0,
}


def test_one_unit_more_moves_class_statistics_by_what_a_record_may() -> None:
    """Unit 0 has one row of 20 in class 0; the other unit's rows are where they move its mean furthest."""
    rng = np.random.default_rng(3)
    beyond = dict.fromkeys(LARGEST, 0)
    for trial in range(20):
        rows = int(rng.integers(1, 9))
        logits_NC = (rng.normal(size=(20 + rows, CLASSES)) * 100).astype(np.float32)
        labels_N = rng.integers(1, CLASSES, 20 + rows)
        labels_N[0], labels_N[20:] = 0, 0 if trial % 2 else labels_N[20:]
        logits_NC[20:] = -logits_NC[0] if trial % 2 else logits_NC[20]
        units_N = np.repeat([0, 1], [20, rows])
        for kind, each in (("units", units_N), ("records", None)):
            more = statistics(logits_NC, labels_N, each)
            less = statistics(logits_NC[:20], labels_N[:20], None if each is None else each[:20])
            for name, largest in LARGEST.items():
                moved = float(np.linalg.norm(np.asarray(more[name]) - less[name]))
                if kind == "units":
                    assert moved <= largest * (1 + 1e-6), name
                else:
                    beyond[name] += moved > 1.5 * largest
    assert all(beyond[name] for name in LARGEST if name != "prototypes"), beyond  # the control
