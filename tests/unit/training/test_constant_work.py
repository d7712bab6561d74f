"""Constant work: how much a private phase computes does not tell how many records the silo has.

What is counted are passes through the model, which is what takes the time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from chorale.privacy.batch_cap import CUT_FAILURE, batch_cap
from crypto.fixed_point.layout import Layout
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_work
from tests.unit.training.dp_sgd import (
    Quiet,
    make_job,
    make_model,
    make_samples,
    micro_batches,
    privacy,
    quantity_of,
    step_job,
)

DECLARED = 300
HELD = {"nothing": 0, "few": 20, "many": 290}


@contextmanager
def counted() -> Iterator[list[int]]:
    """The rows of each pass through a linear layer while it lasts."""
    rows: list[int] = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: rows.append(len(given[0])) if isinstance(module, nn.Linear) else None
    )
    try:
        yield rows
    finally:
        hook.remove()


def held(count: int) -> Samples:
    generator = np.random.default_rng(count)
    return Samples(
        features=generator.normal(size=(count, 1, 8, 8)).astype(np.float32),
        labels=generator.integers(10, size=count),
    )


def work_of(job: Any, records: int, *, kind: str = "train", constant_work: int | None) -> Work:
    data = SiloData(train=held(records), holdout=held(records // 2), name="data")
    work = make_work(job, data, kind=kind)
    object.__setattr__(work, "constant_work", constant_work)
    if job.privacy.has_shared_noise and kind == "train":
        quantity = quantity_of(work.context.trained_values, batch_size=64, scale=2.0**10)
        object.__setattr__(work, "layout", Layout(quantities=(quantity,), members=4))
    return work


JOBS: dict[str, tuple[Any, str]] = {
    "a step of shared noise": (step_job(), "train"),
    "a round of noise of its own": (make_job(), "train"),
    "a test": (make_job(), "evaluate"),
    "a teacher whose answers are kept": (make_job(strategy={"preset": "fedntd"}), "train"),
    "ffc": (make_job(strategy={"preset": "spherefed"}), "calibrate"),
}


@pytest.mark.parametrize("job, kind", JOBS.values(), ids=JOBS)
def test_passes_are_the_same_whatever_a_silo_holds(job: Any, kind: str) -> None:
    """Red before: a round took 11 ms at 128 records and 146 ms at 4,096. Without the policy they differ."""
    rows: dict[int | None, list[list[int]]] = {DECLARED: [], None: []}
    for constant_work, seen in rows.items():
        for records in HELD.values():
            with counted() as passes:
                work = work_of(job, records, kind=kind, constant_work=constant_work)
                TorchObjective(device="cpu").compute(work)
            seen.append(passes)
    nothing, few, many = rows[DECLARED]
    assert nothing == few == many
    assert len(rows[None][0]) < len(rows[None][2])


def test_what_fills_up_changes_no_figure() -> None:
    """By weights that answer zeros with class 0, which is the label of what fills up."""
    for job, kind in (JOBS["a test"], JOBS["ffc"]):
        found = []
        for constant_work in (None, DECLARED):
            work = work_of(job, 50, kind=kind, constant_work=constant_work)
            for name, array in work.state.items():
                if name.endswith(".bias"):
                    array.flags.writeable = True
                    array[...] = 1.0 - np.arange(array.size)
            found.append(TorchObjective(device="cpu").compute(work))
        assert found[0].keys() == found[1].keys()
        for name in found[0]:
            np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-12, err_msg=name)


class Everyone(Quiet):
    """Draws all of those that there are, and who would be there if the policy's number were true."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def records(self, count: int, *, rate: float) -> NDArray[np.int64]:
        self.asked.append(count)
        return np.arange(count)


@pytest.mark.parametrize("records", [40, 90, 100, 150])
def test_a_batch_is_cut_at_the_cap(records: int) -> None:
    """All records are drawn, which the law of the draw makes rarer than the cap allows. A silo with more
    records than its policy says computes longer, because what delta pays for is the law of what it has."""
    model, draws, rate = make_model(), Everyone(), 0.2
    cap = batch_cap(max(records, 100), sample_rate=rate, steps=50)
    assert 40 < cap < 90
    with SampleGradients(model) as gradients:
        batches = micro_batches(
            make_samples(records), gradients, draws=draws, rate=rate, steps=50, constant_work=100
        )
        counts = [count for _, count in batches.of(0)]
    assert sum(counts) == min(cap, records)
    assert len(counts) == math.ceil(cap / 32)
    assert draws.asked == [max(records, 100)]


@pytest.mark.parametrize(
    "records, rate, steps",
    [(100, 0.2, 50), (4096, 0.2, 50), (10**6, 1e-3, 1000), (64, 0.99, 52), (5, 1.0, 3)],
)
def test_the_cap_is_exceeded_as_seldom_as_delta_pays_for(records: int, rate: float, steps: int) -> None:
    """Against scipy's exact tail: within it, and hardly larger than it has to be."""
    cap = batch_cap(records, sample_rate=rate, steps=steps)
    assert steps * stats.binom.sf(cap, records, rate) <= CUT_FAILURE
    assert cap == records or steps * stats.binom.sf(cap - 2, records, rate) > CUT_FAILURE


@pytest.mark.parametrize("job", [step_job(), make_job(privacy=privacy(sample_rate=1.0))], ids=["sum", "silo"])
def test_no_log_tells_how_many_records_were_drawn(job: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Weights that make every gradient infinite: red before, the log counted the records whose gradient was
    none, which are those that were drawn."""
    planted = 173
    work = work_of(job, planted, constant_work=None)
    for array in work.state.values():
        if array.dtype == np.float32:
            array.flags.writeable = True
            array[...] = 3e38
    with caplog.at_level(logging.DEBUG, logger="chorale"):
        TorchObjective(device="cpu").compute(work)
    lines = [f"{each.getMessage()} {vars(each).get('fields')}" for each in caplog.records]
    assert [line for line in lines if "finite gradient" in line]  # the control
    assert not [line for line in lines if any(str(planted * times) in line for times in range(1, 9))]
