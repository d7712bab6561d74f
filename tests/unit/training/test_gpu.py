"""What trains on a GPU: presets beside the CPU's sums, private jobs, and whole numbers of their steps.

They ran last on one NVIDIA H200 with torch 2.11.0+cu130, on 2026-11-26.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crypto.errors import ConfigError
from silo_agent.metrics import SiloMetrics
from silo_agent.training.models.registry import OWN
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.presets import PRESETS
from strategies.published import PUBLISHED
from tests.support.objectives import make_data, make_job, make_work
from tests.support.simulation import simulate
from tests.unit.training.dp_sgd import clipped_sum, privacy
from tests.unit.training.test_processes import settings_in, shared_training, work_of
from tests.unit.training.test_rounded_sums import CLIP, HOSTILE, cut, rounded, some_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")

STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in PRESETS},
    **{
        f"{name}-code": {"preset": name, "as_published": "code"}
        for name, both in PUBLISHED.items()
        if both.code
    },
}
# of an array's length: through batch normalization 2e-7 in the weights become 3e-3 in two rounds, on CPUs too
SAME = 1e-2
# a round begins along the rounding of a gradient that is zero: one run in eight missed by 1.3e-2
SAME_ALONG_ROUNDING = {"fedsol": 5e-2}
# of images, where 8 is too small, or no multiple of the grid that the features are pooled to
SIDES = {"lenet": 16, "lenet_linear": 16, "cnn": 16, "convnet7": 32}


def data_of(place: int, *, count: int = 60, side: int = 8) -> Any:
    """Images whose class shows, three classes at each silo."""
    rng = np.random.default_rng(place)
    labels = np.resize([place, place + 1, place + 2], count) % 4
    features = rng.standard_normal((count, 1, side, side)) + labels[:, None, None, None]
    return make_data(features, labels, holdout=(features[:20], labels[:20]))


def private_work(name: str, *, side: int, **fields: Any) -> Work:
    job = make_job(
        classes=4,
        model={"name": name, "norm": "group", "seed": 1},
        input_shape=(1, side, side),
        training={"local_epochs": 1},
        **{"privacy": privacy(), **fields},
    )
    return make_work(job, data_of(0, side=side))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_every_preset_sums_on_a_gpu_what_it_sums_on_a_cpu(strategy: dict[str, Any]) -> None:
    same = SAME_ALONG_ROUNDING.get(strategy["preset"], SAME)
    job = make_job(
        strategy,
        rounds=2,
        classes=4,
        model={"name": "cnn", "norm": "batch", "seed": 1},
        training={"local_epochs": 1},
    )
    data = [data_of(place) for place in range(4)]
    runs = (simulate(job, data, min_class_holders=2, device=device) for device in ("cuda", "cpu"))
    for found, expected in zip(*runs, strict=True):
        for name, array in expected.state.items():
            missed = np.linalg.norm(np.float64(found.state[name]) - np.float64(array))
            assert missed <= same * np.linalg.norm(np.float64(array)) + 1e-6, f"{expected.phase}: {name}"


@pytest.mark.parametrize("name", [name for name in OWN if name != "alexnet"])  # it has dropout
def test_every_network_keeps_samples_apart_on_a_gpu(name: str) -> None:
    """cuDNN's convolutions did not, and private jobs were refused."""
    found = TorchObjective(device="cuda").compute(private_work(name, side=SIDES.get(name, 8)))
    assert np.isfinite(found["delta"]).all()
    assert np.abs(found["delta"]).max() > 0


def test_a_pooling_that_adds_in_any_order_is_refused_in_a_private_job() -> None:
    with pytest.raises(ConfigError, match="a sample depends on its place in the batch, .*: set device: cpu"):
        TorchObjective(device="cuda").compute(private_work("cnn", side=8))


def test_a_public_job_repeats_its_bits_on_a_gpu() -> None:
    work = private_work("resnet18", side=8, privacy=None)
    first_P, second_P = (TorchObjective(device="cuda").compute(work)["delta"] for _ in range(2))
    assert np.array_equal(first_P, second_P)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds one GPU on this machine")
def test_two_gpus_lead_to_what_one_does(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, device="cuda")
    training, work = shared_training(settings), work_of(settings)
    found = training.compute(work)["delta"]
    training.close()
    np.testing.assert_allclose(found, TorchObjective(device="cuda").compute(work)["delta"], rtol=0, atol=2e-6)


def test_clipped_and_rounded_sums_are_the_same_whole_numbers() -> None:
    rows_NP = np.concatenate([some_rows(5, length=CLIP / 2), *(row() for row in HOSTILE.values())])
    for run in (
        lambda rows: clipped_sum(rows, count=len(rows_NP), clip_norm=CLIP, clip_units=2.0**20),
        lambda rows: rounded().of(rows, count=len(rows_NP)),
    ):
        there, here = run([each.cuda() for each in cut(rows_NP)]), run(cut(rows_NP))
        assert there.dropped == here.dropped == 2
        assert torch.equal(there.sum_P.cpu(), here.sum_P)


def test_the_metric_tells_the_memory_that_training_holds() -> None:
    metrics = SiloMetrics()
    kept = torch.zeros(1 << 20, device="cuda")
    found = metrics.registry.get_sample_value("chorale_silo_gpu_memory_bytes")
    assert found is not None
    assert found >= kept.nbytes
