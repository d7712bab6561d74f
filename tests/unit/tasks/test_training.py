"""Every task is trained, tested and personalized by what a silo runs, also by models without a cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chorale.spec.job_spec import JobSpec
from chorale_models.model import Sizes, model
from crypto.errors import ConfigError
from silo_agent.training.base.loss import LocalLoss, TaskLoss
from silo_agent.training.base.passes import run_model
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.dp_sgd.outer_products import materialized
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.models import registry, starting
from silo_agent.training.models.registry import build_model
from silo_agent.training.torch_objective import TorchObjective
from strategies.tasks.survival import Survival
from tests.support.objectives import make_work
from tests.support.simulation import simulate
from tests.support.task_samples import TASK_JOBS, job_of

NO_CUT = ("fedavg", "fedprox", "fedopt", "fednova", "fedexp", "scaffold", "moon")
PERSONAL = ("ditto", "per_fedavg", "fedavg_ft")
PRIVATE = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5},
    "statistics_noise_multiplier": 1.0,
}


class Pixels(nn.Module):
    """A logit of each class for each pixel."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(sizes.input_shape[0], 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, sizes.outputs, 1)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


class Words(nn.Module):
    """The next token by the present one."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding, self.words = nn.Embedding(sizes.outputs, 8), nn.Linear(8, sizes.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.words(self.embedding(inputs))  # type: ignore[no-any-return]


class Plain(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = int(np.prod(sizes.input_shape))
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, sizes.outputs)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


BODIES = {"segmentation": Pixels, "next-token": Words}


@pytest.fixture
def no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the mlp a network of the task's kind, as an author's that names no last layer."""

    @model()
    def bare(sizes: Sizes, *, norm: str, hidden: tuple[int, ...]) -> nn.Module:
        shape = sizes.input_shape
        word = "next-token" if len(shape) == 1 else "segmentation" if shape == (1, 4, 4) else ""
        return BODIES.get(word, Plain)(sizes)

    monkeypatch.setitem(registry.OWN, "mlp", bare)
    monkeypatch.setattr(starting, "is_declared", lambda _: False)  # its shapes are not the mlp's


def learnable(name: str, rng: np.random.Generator, count: int = 48) -> tuple[JobSpec, Samples]:
    """Samples whose targets follow from their inputs."""
    job = job_of(name)
    shape, classes, word = job.input_shape, job.sizes.outputs, job.method.task.word
    inputs = rng.normal(size=(count, *shape)).astype(np.float32)
    flat = inputs.reshape(count, -1)
    found: Any
    if word == "next-token":
        inputs = rng.integers(0, classes, size=(count, *shape))  # type: ignore[assignment]
        found = (inputs + 1) % classes
        found[:, -1] = -1
    elif word == "segmentation":
        found = np.digitize(inputs[:, 0], (-0.5, 0.5))
    elif word == "multi-label":
        found = (flat[:, :classes] > 0).astype(np.int64)
    elif word == "survival":
        place = np.clip((flat[:, 0] + 2) / 4 * classes, 0, classes - 1).astype(np.int64)
        found = np.stack([place, (flat[:, 1] > -1).astype(np.int64)], axis=1)
    elif word == "regression":
        target = job.method.task.target
        middle = 0.5 + 0.4 * np.tanh(flat[:, : max(1, classes)])
        found = (target.low + (target.high - target.low) * middle).astype(np.float32)
        found = found.reshape(count, *target.shape)
    else:
        found = flat[:, :classes].argmax(axis=1)
    return job, Samples(features=inputs, labels=found)


def federation(name: str, **fields: Any) -> tuple[JobSpec, list[SiloData]]:
    """Three silos of 48 samples, the same for each method."""
    rng = np.random.default_rng(11)
    parts = [learnable(name, rng) for _ in range(3)]
    job = job_of(name, silos=("a", "b", "c"), **fields)
    return job, [SiloData(train=each, holdout=each, name="own") for _, each in parts]


@pytest.mark.parametrize("name", TASK_JOBS)
def test_a_few_rounds_bring_each_task_forward(name: str, no_cut: None) -> None:
    rate = 2.0 if name == "next-token" else 0.2
    training = {"local_epochs": 3, "batch_size": 8, "learning_rate": rate, "momentum": 0.5}
    job, data = federation(name, rounds=4, training=training)
    phases = list(simulate(job, data, in_ring=True))
    losses = [each.figures["loss"] for each in phases if each.phase in ("train", "evaluate")]
    assert losses[-1] < 0.75 * losses[0]
    assert job.method.task.main in phases[-1].figures
    declared = {each.name for each in (*job.method.task.round_sums, *job.method.task.closing_sums)}
    assert declared <= set(phases[-1].values[0])


@pytest.mark.parametrize("preset", [*NO_CUT, *PERSONAL])
@pytest.mark.parametrize("name", ["segmentation", "regression"])
def test_methods_without_need_of_a_cut_train_a_model_without_one(
    name: str, preset: str, no_cut: None
) -> None:
    job, data = federation(name, rounds=2, strategy={"preset": preset})
    phases = list(simulate(job, data, in_ring=True))
    assert np.isfinite(phases[-1].figures["personal_accuracy" if preset in PERSONAL else "loss"])
    losses = [each.figures["loss"] for each in phases if "loss" in each.figures]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("preset", PERSONAL)
@pytest.mark.parametrize("name", TASK_JOBS)
def test_personal_models_have_a_score_in_each_task(name: str, preset: str, no_cut: None) -> None:
    job, data = federation(name, rounds=1, strategy={"preset": preset})
    figures = [each.figures for each in simulate(job, data) if "personal_accuracy" in each.figures]
    assert 0.0 < figures[-1]["personal_accuracy"] <= 1.0
    assert figures[-1]["personal_silos"] == 3


@pytest.mark.parametrize("name", TASK_JOBS)
def test_a_private_job_trains_each_task(name: str, no_cut: None) -> None:
    """DP-SGD and a closing evaluation, record by record, of answers and targets of any shape."""
    job, data = federation(name, rounds=1, privacy=PRIVATE)
    work = make_work(job, data[0])
    found = TorchObjective(device="cpu").compute(dataclasses.replace(work, weight=0.25))
    assert np.isfinite(found["delta"]).all()
    assert np.linalg.norm(found["delta"]) > 0
    closing = TorchObjective(device="cpu").compute(make_work(job, data[0], kind="evaluate"))
    declared = [each.name for each in (*job.method.task.round_sums, *job.method.task.closing_sums)]
    assert sorted(closing) == sorted(declared)


@pytest.mark.parametrize("name", TASK_JOBS)
def test_gradients_of_single_records_are_those_of_autograd(name: str, no_cut: None) -> None:
    job, samples = learnable(name, np.random.default_rng(2), count=5)
    network = build_model(job.model, classes=job.classes, input_shape=job.input_shape).train()
    loss = LocalLoss(loss=TaskLoss(registry.build_task(job)))
    inputs, targets = torch.from_numpy(samples.features), torch.from_numpy(samples.labels)
    with SampleGradients(network) as sampled:
        together = sampled.of(loss, inputs.clone(), targets, torch.arange(5))
    parameters = list(network.parameters())
    for place in range(5):
        outputs = run_model(network, inputs[place : place + 1])
        alone = torch.autograd.grad(
            loss.loss.per_sample(outputs, targets[place : place + 1]).sum(), parameters
        )
        for expected, found in zip(alone, together, strict=True):
            torch.testing.assert_close(materialized(found)[place], expected, rtol=1e-4, atol=1e-6)


class Added(Words):
    """Has weights beside its layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.places = nn.Parameter(torch.zeros(sizes.input_shape[0], 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.words(self.embedding(inputs) + self.places)  # type: ignore[no-any-return]


class Tied(Words):
    """Uses the embedding's weights again, past the layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.embedding(inputs)
        return self.words(found) + found @ self.embedding.weight.T  # type: ignore[no-any-return]


class Placed(Words):
    """Looks up places once for all samples of a batch."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.places = nn.Embedding(sizes.input_shape[0], 8)

    def forward(self, inputs: Tensor) -> Tensor:
        placed = self.places(torch.arange(inputs.shape[1]))
        return self.words(self.embedding(inputs) + placed)  # type: ignore[no-any-return]


class Attends(Words):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.attention = nn.MultiheadAttention(8, 1, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.embedding(inputs)
        return self.words(self.attention(found, found, found)[0])  # type: ignore[no-any-return]


class Transforms(Words):
    """As language models are: learned places, a causal mask, and rows of words that are scores, too."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.places = nn.Embedding(sizes.input_shape[0], 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.words = nn.Linear(8, sizes.outputs)
        self.words.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        found = self.embedding(inputs) + self.places(torch.arange(length))
        return self.words(self.layer(found, src_mask=mask, is_causal=True))  # type: ignore[no-any-return]


@pytest.mark.parametrize("body", [Added, Placed, Attends, Tied, Transforms])
def test_a_private_job_trains_what_no_hook_on_a_layer_sees(
    body: type[nn.Module], no_cut: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opacus gives rows that are no record's gradient, without a word: a clip of them bounds nothing."""
    monkeypatch.setitem(BODIES, "next-token", body)
    test_gradients_of_single_records_are_those_of_autograd("next-token", no_cut)
    job, data = federation("next-token", rounds=1, privacy=PRIVATE)
    delta = TorchObjective(device="cpu").compute(make_work(job, data[0]))["delta"]
    assert np.isfinite(delta).all()
    assert np.count_nonzero(delta) > 0.9 * delta.size


class Read(Words):
    """Uses a dense layer's weights again, past the layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.embedding(inputs)
        return self.words(found) + found @ self.words.weight.T  # type: ignore[no-any-return]


def test_a_private_job_refuses_a_model_whose_records_gradients_are_not_to_be_had(
    no_cut: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BODIES, "next-token", Read)
    job, data = federation("next-token", rounds=1, privacy=PRIVATE)
    with pytest.raises(ConfigError, match="DP-SGD cannot take the gradient of each sample by itself"):
        TorchObjective(device="cpu").compute(make_work(job, data[0]))


def test_a_private_job_refuses_a_task_that_judges_records_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Survival, "is_mean", False)
    with pytest.raises(ValueError, match=r"task\.name: survival judges records together"):
        job_of("survival", privacy=PRIVATE)


def test_answers_of_another_shape_are_one_sentence(no_cut: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BODIES, "segmentation", Plain)
    job, data = federation("segmentation", rounds=1)
    with pytest.raises(ConfigError, match=r"answer to a sample has shape \(3,\), .* expects \(3, 4, 4\)"):
        TorchObjective(device="cpu").compute(make_work(job, data[0]))
