"""What a GPU decides, tried with fakes on a CPU: which one it is, its kernels, its copies, its memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from crypto.errors import ConfigError
from silo_agent.training.base.batches import DeviceCopies, Tensors, batches_of
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.base.shares import ALONE, BatchShares
from silo_agent.training.data.base import Samples
from silo_agent.training.loop import local_training
from silo_agent.training.machine.devices import device_of, float32_kernels
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_data, make_job, make_work
from tests.unit.training.dp_sgd import privacy

FAKE = torch.device("meta")  # of a CPU build of torch the one device that is no CPU
BATCH = 16
MEMORY = "^device: cpu has too little memory for this model with"


def samples_of(count: int = 40) -> Samples:
    return Samples(features=np.zeros((count, 2), np.float32), labels=np.zeros(count, np.int64))


def copies_of(copies: DeviceCopies, part: str, samples: Samples) -> Tensors:
    found = copies.of(part, samples, FAKE, constant_work=0, micro_batch=None)
    assert isinstance(found, Tensors)
    return found


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """A device whose memory ends at so many samples; gives the sizes that training tried."""

    def set_most(most: int) -> list[int]:
        tried: list[int] = []

        def run(model: FederatedModel, inputs: torch.Tensor) -> Outputs:
            tried.append(len(inputs))
            if len(inputs) > most:
                raise torch.OutOfMemoryError
            return run_model(model, inputs)

        monkeypatch.setattr(local_training, "run_model", run)
        return tried

    return set_most


def work_of(norm: str = "group", **fields: object) -> Work:
    rng = np.random.default_rng(3)
    data = make_data(rng.standard_normal((40, 1, 8, 8)), rng.integers(0, 10, 40))
    training = {"local_epochs": 1, "batch_size": BATCH}
    job = make_job(model={"name": "cnn", "norm": norm, "seed": 1}, training=training, **fields)  # type: ignore[arg-type]
    return make_work(job, data)


@pytest.mark.parametrize(
    ("device", "place", "expected"),
    [
        ("auto", 0, "cuda:0"),
        ("cuda", 0, "cuda:0"),
        ("cuda:1", 0, "cuda:1"),
        ("cuda:1", 1, "cuda:0"),
        ("cpu", 1, "cpu"),
    ],
)
def test_a_setting_names_a_gpu(
    device: str, place: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert str(device_of(device, place=place)) == expected
    with pytest.raises(
        ConfigError, match="^device: cuda:2 is set but torch finds 2 GPUs .*, the last is cuda:1$"
    ):
        device_of("cuda:2")


@pytest.mark.parametrize("is_private", [False, True])
def test_kernels_of_a_gpu_compute_float32_and_add_in_one_order(is_private: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True  # as NVIDIA's images have it
    before = torch.backends.cudnn.enabled
    with float32_kernels(FAKE, is_private=is_private):
        cudnn = torch.backends.cudnn
        assert not torch.backends.cuda.matmul.allow_tf32
        assert (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == (False, False, True)
        assert cudnn.enabled == (before and not is_private)
        assert torch.get_deterministic_debug_mode() == int(is_private)
    assert torch.backends.cudnn.enabled == before
    assert torch.get_deterministic_debug_mode() == 0


def test_samples_are_copied_to_a_gpu_once() -> None:
    """Each look at them copied them whole: FFC's two, and one of every phase."""
    copies, samples, others = DeviceCopies(), samples_of(), samples_of()
    first = copies_of(copies, "train", samples)
    copies_of(copies, "hold-out", others)
    assert copies_of(copies, "train", samples).features is first.features
    assert copies_of(copies, "train", others).features is not first.features


def test_a_copy_goes_with_its_samples() -> None:
    """Of people who were left out, nothing stays on a GPU."""
    copies, samples = DeviceCopies(), samples_of()
    kept = weakref.ref(copies_of(copies, "train", samples).features)
    gc.collect()
    assert kept() is not None
    del samples
    gc.collect()
    assert kept() is None


def test_the_order_of_an_epoch_is_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of each batch's places waited for the batch before."""
    moved: list[int] = []
    monkeypatch.setattr(Tensors, "placed", lambda _, order: moved.append(len(order)) or order)
    samples = batches_of(samples_of(), torch.device("cpu"))
    assert len(list(samples.shuffled(8, generator=torch.Generator()))) == 5
    assert moved == [40]


def test_passes_take_no_more_samples_than_micro_batch() -> None:
    samples = batches_of(samples_of(), torch.device("cpu"), micro_batch=15)
    assert [batch.count for batch in samples.passes(is_private=False)] == [15, 15, 10]


def test_a_batch_beyond_a_gpus_memory_is_taken_in_halves(fits: Callable[[int], list[int]]) -> None:
    work, tried = work_of(), fits(BATCH)
    whole_P = TorchObjective(device="cpu").compute(work)["delta"]
    parts_P = TorchObjective(device="cpu", shares=BatchShares(micro_batch=BATCH // 2)).compute(work)["delta"]
    tried = fits(BATCH // 2)
    objective = TorchObjective(device="cpu")
    assert np.array_equal(objective.compute(work)["delta"], parts_P)
    np.testing.assert_allclose(parts_P, whole_P, rtol=0, atol=2e-6)
    objective.compute(work)
    assert [size for size in tried if size > BATCH // 2] == [BATCH]  # the next round begins with halves


@pytest.mark.parametrize(
    ("work", "shares", "most", "expected"),
    [
        (work_of(), ALONE, 7, f"{MEMORY} 8 samples at a time: set micro_batch below 8 or device: cpu$"),
        (work_of(), BatchShares(micro_batch=1), 0, f"{MEMORY} 1 samples at a time: set device: cpu$"),
        (
            work_of("batch"),
            ALONE,
            8,
            f"{MEMORY} 16 .* 16 or .*; batch normalization then sees a part of each batch$",
        ),
        (work_of(), BatchShares(processes=2), 4, f"{MEMORY} 8 samples at a time: set micro_batch below 8"),
    ],
    ids=["halves too", "one sample", "batch normalization", "several processes"],
)
def test_a_memory_that_is_too_small_is_said_in_one_line(
    work: Work, shares: BatchShares, most: int, expected: str, fits: Callable[[int], list[int]]
) -> None:
    fits(most)
    with pytest.raises(ConfigError, match=expected):
        TorchObjective(device="cpu", shares=shares).compute(work)


def test_a_private_job_is_not_tried_in_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("silo_agent.training.dp_sgd.micro_batches.MicroBatches.of", of)
    with pytest.raises(
        ConfigError, match=f"{MEMORY} 32 samples, which every private job takes at a time: set"
    ):
        TorchObjective(device="cpu").compute(work_of(privacy=privacy(sample_rate=0.5, clip_norm=1.0)))
